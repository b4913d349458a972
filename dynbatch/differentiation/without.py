"""The node types that have no rule, and why; an error about one of them says so."""

from __future__ import annotations

from types import MappingProxyType

COMPOSE = "compose it of others, such as F.softmax(q @ F.transpose(k)) @ v"
PLAIN = "the gradient is taken of plain nodes"

WITHOUT_A_RULE = MappingProxyType(
    {
        **dict.fromkeys(
            ("DropoutAttention", "BiasedDropoutAttention"),
            f"its masks are never nodes: {COMPOSE}",
        ),
        **dict.fromkeys(
            ("CachedAttention", "MemoryAttention", "ResumedScan"),
            "it is in programs that generate alone, which take no gradients",
        ),
        **dict.fromkeys(
            ("GatedLinearAttention", "GatedDeltaRule"),
            "its states come from a kernel and are not nodes: write the recurrence with nodes",
        ),
        **dict.fromkeys(
            ("Crf", "Ctc", "SemiCrf"), "its marginals come from a kernel and are not nodes"
        ),
        **dict.fromkeys(
            ("Scan", "Port", "RegionNode", "StackCalls"),
            f"{PLAIN}, which a cell is where grad itself calls the function",
        ),
        **dict.fromkeys(
            ("BlockCall", "BlockResult"),
            f"{PLAIN}, which a block is where grad itself calls the function",
        ),
        "ResumedCall": "it is in programs that generate alone, which take no gradients",
        "LinearCrossEntropy": "it stands for a CrossEntropy during a run, and is not a node",
        "LinearOfWindows": "it stands for a LinearMap during a run, and is not a node",
        "Input": "it reads no node",
        **dict.fromkeys(
            ("Placeholder", "BlockArgument"), "it stands for an argument while one is traced"
        ),
        "Lookup": "it reads no node, and has a rule for its table",
        "ParameterNode": "it reads no node, and has a rule for its parameter",
    }
)
"""By the type's name the reason."""
