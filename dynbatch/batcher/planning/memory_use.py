"""`MemoryUse`: the bytes in a run's arena, by stage, cause and node type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynbatch.memory import Interval

EARLIER = "earlier runs"
GAPS = "gaps"


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of arenas that a graph holds at the stage of a run at which they are most.

    Attributes:
        peak_bytes:   of all its arenas together, as they are asked of the pool.
        live_bytes:   largest sum of what is alive at one stage: no plan could do with less.
        by_cause:     the peak by what it is for; adds up to `peak_bytes`. "activations": values ·
            "kept for backward": what forward leaves beside them · "gradients": of values ·
            "workspace": while a kernel runs · "copies": inputs packed together · "earlier runs" of
            the same graph · "gaps": between blocks.
        by_type:      the same peak by node type, without gaps and earlier runs.
        peak_stage:   what runs at that stage, and of which node types: "backward Scan".
        stages:       of each stage of the run, in order, its label and the bytes alive by cause. A
            label is "forward", "backward", "recompute" or "accumulate" with node types; "early
            backward Total" comes before forward, as the gradient of a mean needs no value.
        tables_bytes: index tables of the run's batches (offsets, ids, orders) on top of the arena;
            on a GPU all that a run brings up: tables of kernels, and inputs of the host.
        blocks_bytes: sum of all blocks, as if none took the room of another, and none in 16 bits.
        saving:       what the run does to stay within a `memory_limit`.
        limit:        that limit in bytes, or None.
        recompute_share: what `saving` computes again, as a share of the cost of forward, in
            multiply-adds as they are planned.
        parameter_bytes, gradient_bytes: of an estimate, bytes of the parameters that the run reads
            and of the gradients that backward leaves for them, which lie outside of the arena;
            None after a run, when the parameters tell.
        device_bytes: of an estimate for a GPU, the most bytes of its memory at once in a step after
            the first: arena, parameters, gradients, the buffer that tables come up to, what the
            pool rounds up and what kernels take for themselves. An optimizer's state and what
            CUDA and cuBLAS hold for themselves come on top.
    """

    peak_bytes: int
    live_bytes: int
    by_cause: Mapping[str, int]
    by_type: Mapping[str, int]
    stages: Sequence[tuple[str, Mapping[str, int]]]
    tables_bytes: int = 0
    blocks_bytes: int = 0
    saving: str = ""
    limit: int | None = field(default=None, compare=False)
    recompute_share: float = 0.0
    parameter_bytes: int | None = field(default=None, compare=False)
    gradient_bytes: int | None = field(default=None, compare=False)
    device_bytes: int | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        blocks: Sequence[Interval],
        stages: Sequence[tuple[str, Sequence[type]]],
        itemsize: int = 1,
        held_bytes: int = 0,
        arena_bytes: int = 0,
        **told: Any,
    ) -> MemoryUse:
        """Add up the bytes of a run.

        Args:
            blocks:      of its arenas.
            stages:      of each stage what it does, and with which node types.
            itemsize:    bytes of an element.
            held_bytes:  arenas of earlier runs.
            arena_bytes: the run's own arenas.
            told:        further attributes.
        """
        labels = [
            f"{what} {', '.join([k.__name__ for k in types])}".rstrip() for what, types in stages
        ]
        changes: list[Counter[str]] = [Counter() for _ in range(len(labels) + 1)]
        for block in blocks:
            changes[block.first][block.cause] += block.size * itemsize
            changes[min(block.last + 1, len(labels))][block.cause] -= block.size * itemsize
        alive: Counter[str] = Counter()
        uses = []
        for label, change in zip(labels, changes, strict=False):
            alive.update(change)
            uses.append((label, {cause: size for cause, size in alive.items() if size}))
        sums = [sum(causes.values()) for _, causes in uses]
        live = max(sums, default=0)
        fullest = sums.index(live) if sums else 0
        by_cause = dict(uses[fullest][1]) if uses else {}
        by_type: Counter[str] = Counter()
        for block in blocks:
            if block.first <= fullest <= block.last:
                by_type[block.owner] += block.size * itemsize
        return cls(
            held_bytes + arena_bytes,
            held_bytes + live,
            by_cause | {EARLIER: held_bytes, GAPS: arena_bytes - live},
            dict(by_type.most_common()),
            uses,
            **told,
        )

    @property
    def peak_stage(self) -> str:
        """The stage with most bytes alive, as "backward Scan"; "" for a run without memory."""
        sums = [sum(causes.values()) for _, causes in self.stages]
        return self.stages[sums.index(max(sums))][0] if sums else ""

    def __str__(self) -> str:
        head = f"peak {self.peak_bytes:,} bytes (live {self.live_bytes:,})"
        head += f" in {self.peak_stage}" if self.stages else ""
        causes = "; ".join([f"{cause} {size:,}" for cause, size in self.by_cause.items() if size])
        types = "; ".join([f"{kind} {size:,}" for kind, size in self.by_type.items() if size])
        head += f"\n  saving: {self.saving}" if self.saving else ""
        text = f"{head}\n  by cause: {causes}\n  by type:  {types}"
        if self.parameter_bytes is None:
            return text
        text += (
            f"\n  beside it: parameters {self.parameter_bytes:,}; their gradients "
            f"{self.gradient_bytes:,}; index tables {self.tables_bytes:,}"
        )
        return text + ("" if self.device_bytes is None else f"; in all {self.device_bytes:,}")
