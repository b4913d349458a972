"""Why batches of one node type ran apart: their signatures differ, or one needs the other.

Parameters are named as they were when the row was made, so that a closed graph still explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dynbatch.batcher.execution.record import Known, Names
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import signature_parts, signature_type
from dynbatch.parameter import UNNAMED

NEIGHBOURS = 3
"""A signature is compared with so many of its type that come next, so that it takes linear time."""

COMPILED = "compiled cell"

DEPENDS = "depends on each other"
EARLIER_RUN = "an earlier run: a value was read in between"
ANOTHER_PART = "another part of the mini-batch: memory_limit"


class Apart(NamedTuple):
    """Batches of one node type that are not one batch.

    kind: the node type · first, second: numbers of batch steps; in a chain of one signature `first`
    is all of them and `second` empty · reason.
    """

    kind: str
    first: tuple[int, ...]
    second: tuple[int, ...]
    reason: str


def apart(plans: Sequence[Plan], known: Known) -> list[Apart]:
    """Which batches of one node type ran apart, and why; numbers count through all plans."""
    steps: dict[int, list[int]] = {}
    kinds: dict[type[Node], list[int]] = {}
    links: dict[int, str] = {}  # a step, and why it did not run with the last of its signature
    start = 0
    for plan in plans:
        needed = _needs_its_own_kind(plan)
        for number, step in enumerate(plan.steps, start):
            earlier = steps.setdefault(step.signature, [])
            if not earlier:
                kinds.setdefault(signature_type(step.signature), []).append(step.signature)
            elif earlier[-1] < start:
                links[number] = ANOTHER_PART if plan.part else EARLIER_RUN
            elif number - start in needed:
                links[number] = DEPENDS
            else:
                links[number] = f"kept apart by the policy {plan.policy}"
            earlier.append(number)
        start += len(plan.steps)
    found: list[Apart] = []
    for kind, signatures in kinds.items():
        for place, a in enumerate(signatures):
            by_reason: dict[str, list[int]] = {}
            for before, number in zip(steps[a], steps[a][1:], strict=False):
                chain = by_reason.setdefault(links[number], [before])
                chain += [before] * (chain[-1] != before) + [number]
            for reason, members in by_reason.items():
                found.append(Apart(kind.__name__, tuple(members), (), reason))
            for b in signatures[place + 1 : place + 1 + NEIGHBOURS]:
                reason = difference(a, b, known)
                found.append(Apart(kind.__name__, tuple(steps[a]), tuple(steps[b]), reason))
    return found


def notes(found: Sequence[Apart]) -> dict[int, list[str]]:
    """The reasons beside each batch step: "3: parameter differs: 'a' / 'b'", the other's number."""
    beside: dict[int, list[str]] = {}
    for one in found:
        if not one.second:
            for before, number in zip(one.first, one.first[1:], strict=False):
                beside.setdefault(number, []).append(f"{before}: {one.reason}")
        for own, others in ((one.first, one.second), (one.second, one.first)):
            for number in own if others else ():
                more = f" and {len(others) - 1} more" if len(others) > 1 else ""
                beside.setdefault(number, []).append(f"{others[0]}{more}: {one.reason}")
    return beside


def difference(a: int, b: int, known: Known) -> str:
    """What keeps two signatures of one node type apart."""
    own, other = signature_parts(a), signature_parts(b)
    if signature_type(a) is RegionNode:
        return _regions_differ(a, b, known)
    found: dict[str, str] = {}
    if len(own) != len(other):
        counts = [dict(p).get("inputs") for p in (own, other)]
        found["inputs"] = f"numbers of inputs differ: {counts[0]} / {counts[1]}"
    for (name, x), (_, y) in zip(own, other, strict=False):
        if x == y or name == "inputs":
            continue
        if "width" in name:
            what = "widths of features" if signature_type(a).any_length else "widths"
            found["widths"] = f"{what} differ: {_widths(own)} / {_widths(other)}"
        elif _is_parameter(x) or _is_parameter(y):
            found.setdefault("parameter", f"parameter differs: {_pair(x, y, known)}")
        elif name == COMPILED:
            found.update(_cells_differ(known.owned.get(a, {}), known.owned.get(b, {}), known))
        elif name == "part of the signature":
            found.setdefault(name, f"{name} differs: {_short(x)} / {_short(y)}")
        else:
            found[name] = f"static attribute {name} differs: {_short(x)} / {_short(y)}"
    return ", ".join(found.values())


def differ_in_widths(signatures: Iterable[int]) -> bool:
    """Whether signatures of one node type hold the same but for widths."""
    return len({_without_widths(signature) for signature in signatures}) == 1


def _without_widths(signature: int) -> tuple[Any, ...]:
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


def _needs_its_own_kind(plan: Plan) -> set[int]:
    """Steps in which some node descends from the step before that has the same signature."""
    members: dict[int, list[int]] = {}
    own = [0] * len(plan.structure)
    for number, step in enumerate(plan.steps):
        members.setdefault(step.signature, []).append(number)
        for node in step.nodes:
            own[node] = number
    found: set[int] = set()
    for signature, numbers in members.items():
        if len(numbers) < 2:
            continue
        previous = dict(zip(numbers[1:], numbers, strict=False))
        latest: list[int] = []  # the last step of this signature among a node and its ancestors
        for node, inputs in enumerate(plan.structure.inputs):
            seen = max([latest[i] for i in inputs], default=-1)
            if plan.structure.signatures[node] == signature:
                if seen >= 0 and seen == previous.get(own[node]):
                    found.add(own[node])
                seen = own[node]
            latest.append(seen)
    return found


def _widths(parts: Sequence[tuple[str, Any]]) -> str:
    """Widths of the inputs and of the output: "4, 8 → 3"."""
    inputs = ", ".join([str(value) for name, value in parts if name == "input width"])
    return " → ".join([inputs] * bool(inputs) + [str(v) for name, v in parts if name == "width"])


def _cells_differ(own: Names, other: Names, known: Known) -> dict[str, str]:
    """Cells are compiled for their parameters: the first that differs, where one does."""
    for x, y in zip(own, other, strict=False):
        if x != y:
            pair = _pair(("parameter", x), ("parameter", y), known)
            return {"parameter": f"parameter differs: {pair}"}
    return {COMPILED: "another cell, or other widths"}


def _regions_differ(a: int, b: int, known: Known) -> str:
    """Why calls are in two regions: their cells, what was between them, or what they read."""
    (cells, phase), (others, later) = [
        [value for _, value in signature_parts(signature)[:2]] for signature in (a, b)
    ]
    if set(cells).isdisjoint(others):
        return "other cells, which do not read each other"
    if phase != later:
        return f"ordinary nodes between calls: phase {phase} / {later}"
    return ", ".join(_cells_differ(known.owned[a], known.owned[b], known).values())


def _is_parameter(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] == "parameter"


def _name(value: Any, known: Known) -> str:
    if not _is_parameter(value):
        return "none"
    name, shape = known.names.get(value[1], (UNNAMED, ()))
    return f"unnamed {shape}" if name == UNNAMED else repr(name)


def _pair(x: Any, y: Any, known: Known) -> str:
    a, b = _name(x, known), _name(y, known)
    return f"{a} / {b}" if a != b else f"two called {a}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
