"""Reasons for batches apart of one node type: signatures differ, or one needs the other.

Rows keep the parameters' names, so that a closed graph can be explained too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeGuard

from dynbatch.batcher.schedule.plan import Plan
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import signature_parts, signature_type
from dynbatch.nodes.signature import reach_of, without_reach
from dynbatch.parameter import UNNAMED
from dynbatch.reporting.run_record import Known, Names, RunRecord

NEIGHBOURS = 3
"""The number of later signatures that each is compared with: keeps the time linear."""

STEPS_LISTED = 12
"""The most batches that are named where a list of them is shown."""

NAMES_LISTED = 6
"""The most names of a batch's nodes that are shown."""

COMPILED = "compiled cell"

DEPENDS = "depends on each other"
EARLIER_RUN = "an earlier run: a value was read in between"
POLICY = "kept apart by the policy"
REACH = "the loss's gradient does not reach both alike"
ANOTHER_PART = "another part of the mini-batch: memory_limit"


class Apart(NamedTuple):
    """Batches of one node type that are not one batch.

    Args:
        node_type:     its name.
        first, second: numbers of batches. Those of one signature are all in `first`.
        reason:        what keeps `first` from `second`, or the steps in `first` from each other.
    """

    node_type: str
    first: tuple[int, ...]
    second: tuple[int, ...]
    reason: str


def apart(record: RunRecord) -> list[Apart]:
    """The batches of one node type that ran apart, and why; numbers are those of the rows."""
    rows = record.row_numbers

    def numbers(steps: Iterable[int]) -> tuple[int, ...]:
        return tuple([row for row in [rows[step] for step in steps] if row is not None])

    pairs = [
        Apart(pair.node_type, numbers(pair.first), numbers(pair.second), pair.reason)
        for pair in _batches_apart(record.plans, record.known)
    ]
    return [pair for pair in pairs if pair.first]


def _batches_apart(plans: Sequence[Plan], known: Known) -> list[Apart]:
    steps: dict[int, list[int]] = {}
    signatures_of: dict[type[Node], list[int]] = {}
    links: dict[int, str] = {}  # a step, and why it did not run with the last of its signature
    start = 0
    for plan in plans:
        needed = _needs_its_signature(plan)
        for number, step in enumerate(plan.steps, start):
            earlier = steps.setdefault(step.signature, [])
            if not earlier:
                signatures_of.setdefault(signature_type(step.signature), []).append(step.signature)
            elif earlier[-1] < start:
                links[number] = ANOTHER_PART if plan.part else EARLIER_RUN
            elif number - start in needed:
                links[number] = DEPENDS
            else:
                links[number] = f"{POLICY} {plan.policy}"
            earlier.append(number)
        start += len(plan.steps)
    pairs: list[Apart] = []
    for node_type, signatures in signatures_of.items():
        name = node_type.__name__
        for first, a in enumerate(signatures):
            by_reason: dict[str, list[int]] = {}
            for before, number in zip(steps[a], steps[a][1:], strict=False):
                chain = by_reason.setdefault(links[number], [before])
                chain += [before] * (chain[-1] != before) + [number]
            for reason, members in by_reason.items():
                pairs.append(Apart(name, tuple(members), (), reason))
            for b in signatures[first + 1 : first + 1 + NEIGHBOURS]:
                reason = difference(a, b, known)
                pairs.append(Apart(name, tuple(steps[a]), tuple(steps[b]), reason))
    return pairs


def numbers_text(numbers: Sequence[int]) -> str:
    """Numbers of batches: "0, 3, … 9 more"."""
    more = f", … {len(numbers) - STEPS_LISTED} more" if len(numbers) > STEPS_LISTED else ""
    return ", ".join([str(number) for number in numbers[:STEPS_LISTED]]) + more


def names_text(names: Sequence[str]) -> str:
    """Names that were given to nodes of a batch: 'named "h 0", "h 1", … 62 more'."""
    if not names:
        return ""
    more = f", … {len(names) - NAMES_LISTED} more" if len(names) > NAMES_LISTED else ""
    quoted = [json.dumps(name, ensure_ascii=False) for name in names[:NAMES_LISTED]]
    return f"named {', '.join(quoted)}{more}"


def notes(pairs: Sequence[Apart]) -> dict[int, list[str]]:
    """Notes on the steps that ran apart, by batch step: "3: parameter differs: 'a' / 'b'"."""
    beside: dict[int, list[str]] = {}
    for pair in pairs:
        if not pair.second:
            for before, number in zip(pair.first, pair.first[1:], strict=False):
                beside.setdefault(number, []).append(f"{before}: {pair.reason}")
        for numbers, others in ((pair.first, pair.second), (pair.second, pair.first)):
            for number in numbers if others else ():
                more = f" and {len(others) - 1} more" if len(others) > 1 else ""
                beside.setdefault(number, []).append(f"{others[0]}{more}: {pair.reason}")
    return beside


def difference(a: int, b: int, known: Known) -> str:
    """The difference of two signatures of one node type."""
    parts, others = signature_parts(a), signature_parts(b)
    if signature_type(a) is RegionNode:
        return _regions_differ(a, b, known)
    reasons: dict[str, str] = {}
    if reach_of(a) != reach_of(b):
        reasons["reach"] = REACH
    if len(parts) != len(others):
        counts = [dict(p).get("inputs") for p in (parts, others)]
        reasons["inputs"] = f"numbers of inputs differ: {counts[0]} / {counts[1]}"
    for (name, x), (_, y) in zip(parts, others, strict=False):
        if x == y or name == "inputs":
            continue
        if "width" in name:
            what = "widths of features" if signature_type(a).any_length else "widths"
            reasons["widths"] = f"{what} differ: {_widths(parts)} / {_widths(others)}"
        elif _is_parameter(x) or _is_parameter(y):
            reasons.setdefault("parameter", f"parameter differs: {_pair(x, y, known)}")
        elif name == COMPILED:
            owned = [known.owned.get(without_reach(one), {}) for one in (a, b)]
            reasons.update(_cells_differ(owned[0], owned[1], known))
        elif name == "part of the signature":
            reasons.setdefault(name, f"{name} differs: {_short(x)} / {_short(y)}")
        else:
            reasons[name] = f"static attribute {name} differs: {_short(x)} / {_short(y)}"
    return ", ".join(reasons.values())


def differ_in_widths(signatures: Iterable[int]) -> bool:
    """Whether signatures of one node type differ in widths alone."""
    return len({_without_widths(signature) for signature in signatures}) == 1


def _without_widths(signature: int) -> tuple[object, ...]:
    return tuple([value for name, value in signature_parts(signature) if "width" not in name])


def signature_text(signature: int, known: Known) -> str:
    """A signature in words: "Linear weight='proj.weight' bias='proj.bias' 4 → 3"."""
    if signature_type(signature) is RegionNode:
        cells, phase = [value for _, value in signature_parts(signature)[:2]]
        return f"calls of {', '.join(cells)}" + (f", phase {phase}" if phase > 1 else "")
    parts = [
        f"{name}={_name(value, known) if _is_parameter(value) else _short(value)}"
        for name, value in signature_parts(signature)
        if name not in ("inputs", COMPILED) and "width" not in name and value is not None
    ]
    if any([name == COMPILED for name, _ in signature_parts(signature)]):
        parts = [_name(("parameter", uid), known) for uid in known.owned.get(signature, ())] + parts
    words = [signature_type(signature).__name__, *parts, _widths(signature_parts(signature))]
    return " ".join(words).rstrip()


def _needs_its_signature(plan: Plan) -> set[int]:
    """Steps with a node that descends from the previous step of the same signature."""
    members: dict[int, list[int]] = {}
    step_of = [0] * len(plan.structure)
    for number, step in enumerate(plan.steps):
        members.setdefault(step.signature, []).append(number)
        for node in step.nodes:
            step_of[node] = number
    needing: set[int] = set()
    for signature, numbers in members.items():
        if len(numbers) < 2:
            continue
        previous = dict(zip(numbers[1:], numbers, strict=False))
        latest: list[int] = []  # the last step of this signature among a node and its ancestors
        for node, inputs in enumerate(plan.structure.inputs):
            seen = max([latest[i] for i in inputs], default=-1)
            if plan.structure.signatures[node] == signature:
                if seen >= 0 and seen == previous.get(step_of[node]):
                    needing.add(step_of[node])
                seen = step_of[node]
            latest.append(seen)
    return needing


def _widths(parts: Sequence[tuple[str, object]]) -> str:
    """Widths of the inputs and of the output: "4, 8 → 3"."""
    inputs = ", ".join([str(value) for name, value in parts if name == "input width"])
    return " → ".join([inputs] * bool(inputs) + [str(v) for name, v in parts if name == "width"])


def _cells_differ(names: Names, others: Names, known: Known) -> dict[str, str]:
    """The first parameter in which two compiled cells differ, if any."""
    for x, y in zip(names, others, strict=False):
        if x != y:
            pair = _pair(("parameter", x), ("parameter", y), known)
            return {"parameter": f"parameter differs: {pair}"}
    return {COMPILED: "another cell, or other widths"}


def _regions_differ(a: int, b: int, known: Known) -> str:
    """The reason why calls are in two regions: their cells, their phases, or their inputs."""
    (cells, phase), (others, later) = [
        [value for _, value in signature_parts(signature)[:2]] for signature in (a, b)
    ]
    if set(cells).isdisjoint(others):
        return "other cells, which do not read each other"
    if phase != later:
        return f"ordinary nodes between calls: phase {phase} / {later}"
    return ", ".join(_cells_differ(known.owned[a], known.owned[b], known).values())


def _is_parameter(value: object) -> TypeGuard[tuple[str, int]]:
    return isinstance(value, tuple) and len(value) == 2 and value[0] == "parameter"


def _name(value: object, known: Known) -> str:
    if not _is_parameter(value):
        return "none"
    name, shape = known.names.get(value[1], (UNNAMED, ()))
    return f"unnamed {shape}" if name == UNNAMED else repr(name)


def _pair(x: object, y: object, known: Known) -> str:
    a, b = _name(x, known), _name(y, known)
    return f"{a} / {b}" if a != b else f"two called {a}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
