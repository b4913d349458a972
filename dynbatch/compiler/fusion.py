"""Fusion: turns many narrow operators of a program into few wide ones.

A cell spelt out gate by gate thus runs as few wide kernels, like a hand-fused cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dynbatch.compiler.ir import ELEMENTWISE, Op, OpCode, Value
from dynbatch.compiler.lowering import LoopProgram


def fuse(program: LoopProgram) -> None:
    """Merge linear maps of one input, then elementwise operators on neighbouring columns.

    First, values that are only read in parts are cut into these parts, so that gates of one wide
    map and gates written one by one look alike.
    """
    _narrow(program)
    _fold_biases(program)
    rank = _ranks(program)
    program.ahead = _merge_linear(program, program.stream_maps, rank)
    program.ops = _merge_linear(program, program.ops, rank)
    while _merge_elementwise(program):
        pass


def _narrow(program: LoopProgram) -> None:
    """Cut operators whose output is read only in parts."""
    leaving = program.leaving()
    ops: list[Op] = []
    for op in reversed(program.ops):
        parts = _parts(program, op.output) if id(op.output) not in leaving else []
        if op.is_linear and parts:
            ops += reversed(_cut_linear(program, op, parts))
        elif op.opcode in ELEMENTWISE and parts:
            cut = [_cut_elementwise(program, op, *part) for part in parts]
            position = program.ops.index(op)
            program.ops[position : position + 1] = cut
            ops += reversed(cut)
        else:
            ops.append(op)
    program.ops = ops[::-1]
    program.ahead = [
        cut
        for op in program.stream_maps
        for cut in _cut_linear(program, op, _parts(program, op.output))
    ]


def _parts(program: LoopProgram, value: Value) -> list[tuple[int, int]]:
    """The columns (first, width) that `value` is read in, if they tile it; else nothing."""
    parts = sorted(
        {(x.column, x.width) for op in program.ops for x in op.inputs if x.overlaps(value)}
    )
    end = 0
    for column, width in parts:
        if column != end:
            return []
        end += width
    return parts if len(parts) > 1 and end == value.width else []


def _cut_elementwise(program: LoopProgram, op: Op, column: int, width: int) -> Op:
    inputs = [program.columns(x.base, x.column + column, width) for x in op.inputs]
    return op.like(inputs, _cut_value(program, op.output, column, width))


def _cut_linear(program: LoopProgram, op: Op, parts: Sequence[tuple[int, int]]) -> list[Op]:
    if not parts:
        return [op]
    result = []
    for column, width in parts:
        cut = Op(OpCode.LINEAR, op.inputs, _cut_value(program, op.output, column, width), op.node)
        cut.pieces = [op.pieces[0].part(column, width)]
        result.append(cut)
    return result


def _cut_value(program: LoopProgram, value: Value, column: int, width: int) -> Value:
    """Make some columns a base value, and redirect their views to it."""
    part = program.value(width)
    for view in program.values:
        if view.base is value and (view.column, view.width) == (column, width):
            view.base, view.column = part, 0
    return part


def _fold_biases(program: LoopProgram) -> None:
    """Add a recurrent map's bias once for all tokens where it is summed with a stream's map."""
    from_stream = {id(op.output): op for op in program.stream_maps}
    for op in program.ops:
        readers = program.readers(op.output) if op.is_linear else []
        if len(readers) != 1 or not readers[0].is_add or not op.pieces[0].biases:
            continue
        (other,) = [x for x in readers[0].inputs if x.base is not op.output] or [op.output]
        stream = from_stream.get(id(other.base)) if other.width == op.output.width else None
        if stream is not None and other.is_whole() and len(program.readers(other)) == 1:
            stream.pieces[0].biases += op.pieces[0].biases
            op.pieces[0].biases = []


def _ranks(program: LoopProgram) -> dict[int, tuple[int, int]]:
    """An order of linear maps that puts those with the same activation next to each other."""
    numbers: dict[tuple[object, ...], int] = {}
    rank: dict[int, tuple[int, int]] = {}
    position = {id(op): i for i, op in enumerate(program.ops)}
    for op in program.linear_maps:
        readers = program.readers(op.output)
        while len(readers) == 1 and readers[0].is_add:
            readers = program.readers(readers[0].output)
        last = readers[0] if readers else op
        activation = numbers.setdefault(last.key, len(numbers))
        rank[id(op)] = (activation, position.get(id(last), 0))
    return rank


def _merge_linear(
    program: LoopProgram, ops: Sequence[Op], rank: dict[int, tuple[int, int]]
) -> list[Op]:
    groups: dict[tuple[int, int, int], list[Op]] = {}
    for op in ops:
        if op.is_linear:
            (x,) = op.inputs
            groups.setdefault((id(x.base), x.column, x.width), []).append(op)
    merged: dict[int, Op] = {}
    for group in groups.values():
        first = group[0]
        group.sort(key=lambda op: rank[id(op)])
        if len(group) > 1:
            wide = program.value(sum(op.output.width for op in group))
            wide.planes = tuple([op.output.width for op in group])
            pieces = [piece for op in group for piece in op.pieces]
            column = 0
            for op in group:
                _rebase(program, op.output, wide, column)
                op.pieces[0].column = column
                column += op.output.width
            first = Op(OpCode.LINEAR, group[0].inputs, wide, group[0].node)
            first.pieces = pieces
        for op in group:
            merged[id(op)] = first
    done: set[int] = set()
    result: list[Op] = []
    for op in ops:
        op = merged.get(id(op), op)
        if id(op) not in done:
            done.add(id(op))
            result.append(op)
    return result


def _rebase(program: LoopProgram, value: Value, base: Value, column: int) -> None:
    """`value`, and every view of it, become columns of `base`."""
    for view in program.values:
        if view.base is value and view is not value:
            view.base, view.column = base, view.column + column
    value.base, value.column = base, column


def _merge_elementwise(program: LoopProgram) -> bool:
    """Merge one pair of operators on neighbouring columns; False if there is none."""
    leaving = program.leaving()
    ops = [op for op in program.ops if op.opcode in ELEMENTWISE]
    for a in ops:
        for b in ops:
            if a is b or a.key != b.key or {id(a.output), id(b.output)} & leaving:
                continue
            if not all(map(_neighbours, a.inputs, b.inputs)) or not _keeps_planes(a, b):
                continue
            if not _dependent(program, a, b):
                _join(program, a, b)
                return True
    return False


def _neighbours(a: Value, b: Value) -> bool:
    return a.base is b.base and a.column + a.width == b.column


def _keeps_planes(a: Op, b: Op) -> bool:
    """Whether the joined operator reads, of each operand, part of one plane or the output's planes.

    Values are stored plane by plane, and all operands of one call must be cut alike.
    """
    planes = a.output.planes + b.output.planes
    for x, y in zip(a.inputs, b.inputs, strict=True):
        ends = [*itertools.accumulate(x.base.planes)]
        starts = [0, *ends[:-1]]
        first, last = x.column, y.column + y.width
        read = [(s, e) for s, e in zip(starts, ends, strict=True) if s < last and first < e]
        whole = (read[0][0], read[-1][1]) == (first, last)
        if len(read) > 1 and not (whole and tuple([e - s for s, e in read]) == planes):
            return False
    return True


def _dependent(program: LoopProgram, a: Op, b: Op) -> bool:
    return _reaches(program, a, b) or _reaches(program, b, a)


def _reaches(program: LoopProgram, start: Op, end: Op) -> bool:
    stack, seen = [start], {id(start)}
    while stack:
        for reader in program.readers(stack.pop().output):
            if reader is end:
                return True
            if id(reader) not in seen:
                seen.add(id(reader))
                stack.append(reader)
    return False


def _join(program: LoopProgram, a: Op, b: Op) -> None:
    inputs = [
        program.columns(x.base, x.column, x.width + y.width)
        for x, y in zip(a.inputs, b.inputs, strict=True)
    ]
    wide = program.value(a.output.width + b.output.width)
    wide.planes = a.output.planes + b.output.planes
    left = a.output.width
    _rebase(program, a.output, wide, 0)
    _rebase(program, b.output, wide, left)
    joined = a.like(inputs, wide)
    remaining = [op for op in program.ops if op is not a and op is not b]
    program.ops = in_order([*remaining, joined])


def in_order(ops: Sequence[Op]) -> list[Op]:
    """The operators in topological order, otherwise unchanged."""
    waiting = list(ops)
    outputs = {id(op.output) for op in ops}
    done: set[int] = set()
    result: list[Op] = []
    while waiting:
        for op in waiting:
            if all(id(x.base) not in outputs or id(x.base) in done for x in op.inputs):
                break
        waiting.remove(op)
        result.append(op)
        done.add(id(op.output))
    return result
