"""Divides a cell's loop for compiled code: operators among kernels, columns among lanes.

Linear maps and operators with kernels of their own stand alone; the elementwise operators between
them become groups, one kernel or loop each. Within a group every operator is cut into scalar
operators on segments: ranges of columns so narrow that element j of each operand meets element j of
the others. Segments that meet form a lane: element (row, j) of it is computed with every value in a
register, on a GPU by one thread, in C in one lane of a vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dynbatch.compiler.ir import ALIKE, Op, OpCode, Value

FUSED = (*ALIKE, OpCode.COPY)


class ScalarOp(NamedTuple):
    """An elementwise operator on segments of one width."""

    op: Op
    inputs: tuple[Value, ...]
    output: Value


@dataclass(frozen=True)
class Lane:
    """Scalar operators that one thread runs for one row and one column, in order."""

    width: int
    ops: tuple[ScalarOp, ...]


@dataclass(frozen=True)
class KernelGroup:
    """Elementwise operators that one kernel runs."""

    ops: tuple[Op, ...]
    lanes: tuple[Lane, ...]


Item = Op | KernelGroup


def ops_of(item: Item) -> tuple[Op, ...]:
    return item.ops if isinstance(item, KernelGroup) else (item,)


def find_cuts(ops: Sequence[Op]) -> dict[int, set[int]]:
    """The cuts of each base value: wherever an operand next to it begins or ends."""
    cuts: dict[int, set[int]] = {}
    for op in ops:
        if op.opcode in FUSED:
            cuts.setdefault(id(op.output), set()).update((0, op.output.width))
        else:
            for x in op.inputs:
                cuts.setdefault(id(x.base), set()).update((x.column, x.column + x.width))
    relations = [(x, op.output, at) for op in ops if op.opcode in FUSED for x, at in op.parts()]
    for x, output, at in relations:
        cuts.setdefault(id(x.base), set()).update((x.column, x.column + x.width))
        cuts.setdefault(id(output), set()).update((0, at, at + x.width, output.width))
    # A cut in an operand cuts the result at the same element, and the other way round; such cuts
    # travel along chains of operators, so this goes on until nothing is added.
    changed = True
    while changed:
        changed = False
        for x, output, at in relations:
            of_x, of_output = cuts[id(x.base)], cuts[id(output)]
            shift = at - x.column
            inside = {c for c in of_x if x.column <= c <= x.column + x.width}
            back = {c - shift for c in of_output if at <= c <= at + x.width}
            if not (back <= of_x and {c + shift for c in inside} <= of_output):
                of_x |= back
                of_output |= {c + shift for c in inside}
                changed = True
    return cuts


def _segments(base: Value, first: int, width: int, cuts: dict[int, set[int]]) -> list[Value]:
    edges = sorted([c for c in cuts[id(base)] if first <= c <= first + width])
    return [Value.columns(base, a, b - a) for a, b in itertools.pairwise(edges)]


def lanes_of(group: Sequence[Op], cuts: dict[int, set[int]]) -> tuple[Lane, ...]:
    """The lanes of elementwise operators, each with its scalar operators in order."""
    scalars: list[ScalarOp] = []
    for op in group:
        if op.opcode is OpCode.COPY:
            for x, at in op.parts():
                for segment in _segments(x.base, x.column, x.width, cuts):
                    first = segment.column - x.column + at
                    scalars.append(
                        ScalarOp(op, (segment,), Value.columns(op.output, first, segment.width))
                    )
            for hole in op.holes():
                segments = _segments(op.output, hole.column, hole.width, cuts)
                scalars += [ScalarOp(op, (), segment) for segment in segments]
            continue
        for output in _segments(op.output, 0, op.output.width, cuts):
            inputs = [
                Value.columns(x.base, x.column + output.column, output.width) for x in op.inputs
            ]
            scalars.append(ScalarOp(op, tuple(inputs), output))
    # Operators that touch a segment in common belong to one lane: a union of sets, where each new
    # operator merges all lanes that it meets.
    lane_of: dict[tuple[int, int], int] = {}
    lanes: dict[int, list[ScalarOp]] = {}
    for number, scalar in enumerate(scalars):
        met = {lane_of[s.key] for s in [*scalar.inputs, scalar.output] if s.key in lane_of}
        joined = [op for lane in sorted(met) for op in lanes.pop(lane)] + [scalar]
        lanes[number] = joined
        for member in joined:
            for segment in [*member.inputs, member.output]:
                lane_of[segment.key] = number
    order = {id(scalar): number for number, scalar in enumerate(scalars)}
    return tuple(
        [
            Lane(ops[0].output.width, tuple(sorted(ops, key=lambda op: order[id(op)])))
            for ops in lanes.values()
        ]
    )


def loaded(lane: Lane, segments: Iterable[Value]) -> list[Value]:
    """The segments that no operator of the lane makes."""
    made = {scalar.output.key for scalar in lane.ops}
    return [segment for segment in segments if segment.key not in made]


def is_read(segment: Value, ops: Sequence[Op], group: Sequence[Op], kept: Sequence[Value]) -> bool:
    """Whether a segment is `kept`, or read by any of `ops` but those of a group."""
    inside = {id(op) for op in group}
    others = [x for op in ops if id(op) not in inside for x in op.inputs]
    return any([segment.overlaps(x) for x in (*kept, *others)])


class LaneNames(NamedTuple):
    """Names of an element's values, each with what it names.

    loads:  segments that are read from memory.
    makes:  scalar operators, with the names of their operands.
    stores: segments that are written to memory.
    """

    loads: list[tuple[str, Value]]
    makes: list[tuple[str, ScalarOp, list[str]]]
    stores: list[tuple[str, Value]]


def names_of(lane: Lane, is_stored: Callable[[Value], bool]) -> LaneNames:
    lane_names = LaneNames([], [], [])
    names: dict[tuple[int, int], str] = {}
    for segment in loaded(lane, [x for scalar in lane.ops for x in scalar.inputs]):
        if segment.key not in names:
            names[segment.key] = f"v{len(names)}"
            lane_names.loads.append((names[segment.key], segment))
    for scalar in lane.ops:
        name = f"v{len(names)}"
        lane_names.makes.append((name, scalar, [names[x.key] for x in scalar.inputs]))
        names[scalar.output.key] = name
        if is_stored(scalar.output):
            lane_names.stores.append((name, scalar.output))
    return lane_names
