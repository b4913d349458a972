"""The items of a step in C, and of matrices in CUDA: linear maps, and groups between them.

A group is printed lane after lane, all rows of one before the next; within a lane an element's
operands are loaded before its results are stored. Values share memory: what one lane stores must
not be what a later one was to load. Where no order of lanes avoids that, the group is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynbatch.compiler.ir import Op
from dynbatch.compiler.lanes import (
    FUSED,
    Item,
    KernelGroup,
    Lane,
    find_cuts,
    lanes_of,
    loaded,
)
from dynbatch.compiler.nests import IsKept, NestGroup, Strides, is_safe, sizes_in_nests
from dynbatch.compiler.places import Pointer, Pointers


def items(ops: Sequence[Op], places: Pointers, is_kept: IsKept) -> list[Item | NestGroup]:
    """The items of a step, in the operators' order.

    Raises:
        AssertionError: the operands of a single operator cannot be put in order.
    """
    sizes = sizes_in_nests(ops)
    cuts = find_cuts([op for op in ops if id(op) not in sizes])
    result: list[Item | NestGroup] = []
    for op in ops:
        if id(op) in sizes:
            nest = _nest(result[-1] if result else None, op, sizes[id(op)], places, is_kept)
            result[-1 if nest.ops[:-1] else len(result) :] = [nest]
            continue
        if op.opcode not in FUSED:
            result.append(op)
            continue
        before = result[-1] if result else None
        if isinstance(before, KernelGroup):
            group = _group([*before.ops, op], cuts, places, is_kept)
            if group is not None:
                result[-1] = group
                continue
        group = _group([op], cuts, places, is_kept)
        assert group is not None, f"the lanes of {op.node} write over each other's operands"
        result.append(group)
    return result


def _nest(
    before: Item | NestGroup | None, op: Op, sizes: Strides, places: Pointers, is_kept: IsKept
) -> NestGroup:  # fmt: skip
    """The nest before an operator with it, or one of its own."""
    nest = before.with_op(op, sizes) if isinstance(before, NestGroup) else None
    if nest is not None:
        if is_safe(nest, places.of, is_kept):
            return nest
    nest = NestGroup(sizes).with_op(op, sizes)
    assert nest is not None
    return nest


def _group(
    ops: Sequence[Op], cuts: dict[int, set[int]], places: Pointers, is_kept: IsKept
) -> KernelGroup | None:
    """The operators as one group, its lanes in a safe order; None if there is none."""
    accesses = [_Accesses(lane, ops, places, is_kept) for lane in lanes_of(ops, cuts)]
    if not all([each.is_safe() for each in accesses]):
        return None
    order: list[Lane] = []
    waiting = accesses
    while waiting:
        first = [x for x in waiting if not any([y.precedes(x) for y in waiting if y is not x])]
        if not first:
            return None
        order.append(first[0].lane)
        waiting = [each for each in waiting if each is not first[0]]
    return KernelGroup(tuple(ops), tuple(order))


class _Accesses:
    """Loads and stores of a lane, each place with a time: an operator loads, then it stores."""

    def __init__(self, lane: Lane, ops: Sequence[Op], places: Pointers, is_kept: IsKept) -> None:
        self.lane = lane
        number = {id(op): k for k, op in enumerate(ops)}
        self.loads = [
            (2 * number[id(scalar.op)], places.of(x))
            for scalar in lane.ops
            for x in loaded(lane, scalar.inputs)
        ]
        self.stores = [
            (2 * number[id(scalar.op)] + 1, places.of(scalar.output))
            for scalar in lane.ops
            if is_kept(scalar.output, ops)
        ]

    def is_safe(self) -> bool:
        """Whether places that meet are the same: then element j is loaded before it is stored."""
        places = [columns for _, columns in [*self.loads, *self.stores]]
        return not any(
            [
                columns.overlaps(other) and columns[1:3] != other[1:3]
                for _, columns in self.stores
                for other in places
            ]
        )

    def precedes(self, other: _Accesses) -> bool:
        """Whether some operator of this lane must run before one of another."""
        mine, theirs = [*self.loads, *self.stores], [*other.loads, *other.stores]
        return _meet(self.stores, theirs) or _meet(mine, other.stores)


def _meet(first: Iterable[tuple[int, Pointer]], second: list[tuple[int, Pointer]]) -> bool:
    return any([k < m and columns.overlaps(other) for k, columns in first for m, other in second])
