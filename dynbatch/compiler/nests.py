"""Groups operators on matrices into loop nests, as `lanes` groups those on columns.

A nest runs over the axes of its matrices, (H, d, e) say. At each element its operators follow one
another, and what one makes there for another stays in a register: S ← a S + k wᵀ and o = Sᵀ q are
one pass over S. A sum over an axis is complete behind the nest, so what reads it is in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from dynbatch.compiler.ir import ALIKE, Op, OpCode, Origin, Value
from dynbatch.compiler.places import Pointer
from dynbatch.compiler.program import Program

Strides = tuple[int, ...]

IsKept = Callable[[Value, Sequence[Op]], bool]
"""Whether anything but some operators reads columns of a value that one of them made."""


def sizes_in_nests(ops: Sequence[Op]) -> dict[int, Strides]:
    """The axes of each operator that belongs to nests, by identity, the longest stride first.

    An elementwise operator on what CONTRACT makes or reads element by element has its axes.
    """
    sizes: dict[int, Strides] = {}
    of_value: dict[int, Strides] = {}
    for op in ops:
        if op.opcode is OpCode.CONTRACT:
            sizes[id(op)] = op.nest.sizes
            for value in (*op.inputs, op.output):
                if value.width == prod(op.nest.sizes):
                    of_value.setdefault(id(value.base), op.nest.sizes)
    changed = True
    while changed:
        changed = False
        for op in ops:
            if op.opcode in ALIKE and id(op) not in sizes:
                values = [*op.inputs, op.output]
                axes = [of_value[id(v.base)] for v in values if id(v.base) in of_value]
                axes = [each for each in axes if prod(each) == op.output.width]
                if axes:
                    sizes[id(op)] = axes[0]
                    for value in values:
                        of_value.setdefault(id(value.base), axes[0])
                    changed = True
    return sizes


@dataclass
class NestGroup:
    """Operators of one nest.

    sizes:   of its axes.
    strides: of each operator's operands and output along them.
    """

    sizes: Strides
    ops: list[Op] = field(default_factory=list)
    strides: list[list[Strides]] = field(default_factory=list)

    def with_op(self, op: Op, sizes: Strides) -> NestGroup | None:
        """The group with one more operator; None if it must run behind the nest."""
        common = _common(self.sizes, sizes)
        if common is None:
            return None
        strides = [_finer(sizes, each, common) for each in _strides_of(op, sizes)]
        known = [[_finer(self.sizes, each, common) for each in of_op] for of_op in self.strides]
        group = NestGroup(common, [*self.ops, op], [*known, strides])
        for maker, of_maker in zip(self.ops, known, strict=True):
            made = of_maker[-1]
            for x, steps in zip(op.inputs, strides, strict=False):
                if x.base is maker.output and not (
                    x.is_whole() and steps == made and not is_sum(group.sizes, made)
                ):
                    return None
        return group

    def cut(self, count: int) -> NestGroup | None:
        """The nest with so many heads as its first axis; None if it has no such axis."""
        width, rest = divmod(prod(self.sizes), count)
        finer = None if rest else _common(self.sizes, (count, width))
        if finer is None or count == 1:
            return None if finer is None else self
        if finer == (count,):
            finer = (count, 1)
        if finer[0] != count:
            return None
        strides = [[_finer(self.sizes, each, finer) for each in of_op] for of_op in self.strides]
        return NestGroup(finer, [*self.ops], strides)


def is_sum(sizes: Strides, strides: Strides) -> bool:
    """Whether an output with these strides is a sum over an axis of the nest."""
    return any([not step and size > 1 for size, step in zip(sizes, strides, strict=True)])


class Access(NamedTuple):
    """A value that a nest reads or writes in memory.

    name: of the pointer to it.
    op:   which operator makes it; None for what is read.
    """

    name: str
    value: Value
    strides: Strides
    op: Op | None = None


def accesses(
    group: NestGroup, is_kept: IsKept
) -> tuple[list[Access], list[Access], list[list[str]]]:
    """Values that a nest reads, and writes, and the names of each operator's operands."""
    reads: list[Access] = []
    writes: list[Access] = []
    operands: list[list[str]] = []
    made: dict[int, str] = {}
    known: dict[tuple[int, int, int, Strides], str] = {}
    for number, (op, strides) in enumerate(zip(group.ops, group.strides, strict=True)):
        names = []
        for x, steps in zip(op.inputs, strides, strict=False):
            key = (id(x.base), x.column, x.width, steps)
            if id(x.base) not in made and key not in known:
                known[key] = f"x{len(reads)}"
                reads.append(Access(known[key], x, steps))
            names.append(made.get(id(x.base)) or known[key])
        operands.append(names)
        made[id(op.output)] = f"v{number}"
        if is_sum(group.sizes, strides[-1]) or is_kept(op.output, group.ops):
            writes.append(Access(f"y{len(writes)}", op.output, strides[-1], op))
    return reads, writes, operands


def is_safe(group: NestGroup, place: Callable[[Value], Pointer], is_kept: IsKept) -> bool:
    """Whether nothing is written over that is still to be read: places that meet are the same."""
    reads, writes, _ = accesses(group, is_kept)
    places = [(each, place(each.value)) for each in (*reads, *writes)]
    for write, at in places[len(reads) :]:
        for other, lies in places:
            if other is write or not at.overlaps(lies):
                continue
            sums = [is_sum(group.sizes, x.strides) for x in (write, other) if x.op is not None]
            if any(sums) or at[1:3] != lies[1:3] or write.strides != other.strides:
                return False
    return True


def cheap_makers(ops: Sequence[Op]) -> dict[int, Op]:
    """Operators, by what they make: outer products, and states times numbers or vectors."""
    makers: dict[int, Op] = {}
    for op in ops:
        if op.opcode is OpCode.CONTRACT and op.output.width == prod(op.nest.sizes):
            widths = [
                x.width
                for x in op.inputs
                if x.base.origin is not Origin.STATE and id(x.base) not in makers
            ]
            if max(widths, default=0) < op.output.width:
                makers[id(op.output)] = op
    return makers


def remake(program: Program, makers: dict[int, Op]) -> None:
    """Make what is cheap anew for every reader.

    That is a multiplication at each element, where a matrix that is kept is a store and a load.

    Args:
        makers: of forward's values, which backward reads too: see `cheap_makers`.
    """
    ops: list[Op] = []
    for op in program.ops:
        _add_with_makers(program, op, makers, ops)
    program.ops = ops


def _add_with_makers(program: Program, op: Op, makers: dict[int, Op], ops: list[Op]) -> None:
    for k, x in enumerate(op.inputs):
        maker = makers.get(id(x.base))
        if maker is not None and x.is_whole():
            again = maker.like([*maker.inputs], program.value(x.width))
            _add_with_makers(program, again, makers, ops)
            op.inputs[k] = again.output
    ops.append(op)


def cluster(program: Program) -> None:
    """Put the operators of a program with matrices in an order with few nests.

    Whatever can join the nest that is open does; else small operators run before large ones, so
    that a nest opens when most that can be in it is ready.
    """
    sizes = sizes_in_nests(program.ops)
    if not sizes:
        return
    made_here = {id(value) for op in program.ops for value in op.outputs}
    waiting, order = [*program.ops], []
    done: set[int] = set()
    group: NestGroup | None = None
    while waiting:
        ready = [
            op for op in waiting
            if all([id(x.base) in done or id(x.base) not in made_here for x in op.inputs])
        ]  # fmt: skip
        chosen, larger = None, None
        for op in ready if group is not None else ():
            if id(op) in sizes and group is not None:
                larger = group.with_op(op, sizes[id(op)])
                if larger is not None:
                    chosen = op
                    break
        if chosen is None:
            chosen = min(ready, key=lambda op: prod(sizes.get(id(op), (0,))))
            axes = sizes.get(id(chosen))
            larger = None if axes is None else NestGroup(axes).with_op(chosen, axes)
        group = larger
        order.append(chosen)
        waiting = [op for op in waiting if op is not chosen]
        done |= {id(value) for value in chosen.outputs}
    program.ops = order


def _strides_of(op: Op, sizes: Strides) -> Sequence[Strides]:
    if op.opcode is OpCode.CONTRACT:
        return op.nest.strides
    dense = tuple([prod(sizes[k + 1 :]) for k in range(len(sizes))])
    return [dense] * (len(op.inputs) + 1)


def _common(a: Strides, b: Strides) -> Strides | None:
    """The axes that both can be cut into; None if there are none."""
    if prod(a) != prod(b):
        return None
    inner = sorted({*accumulate(a[::-1], initial=1, func=int.__mul__)}
                   | {*accumulate(b[::-1], initial=1, func=int.__mul__)})  # fmt: skip
    if any([large % small for small, large in pairwise(inner)]):
        return None
    return tuple([large // small for small, large in pairwise(inner)][::-1]) or (1,)


def _finer(sizes: Strides, strides: Strides, finer: Strides) -> Strides:
    """Strides along axes that are cut into more."""
    cut: list[int] = []
    rest = [*finer]
    for size, step in zip(sizes, strides, strict=True):
        parts: list[int] = []
        while prod(parts) < size:
            parts.append(rest.pop(0))
        cut += [step * prod(parts[k + 1 :]) for k in range(len(parts))]
    return (*cut, *(0,) * len(rest))
