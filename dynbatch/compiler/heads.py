"""Finds the heads of a loop with matrices: parts of all values that no operator brings together.

A state (H, d, e) is H matrices side by side, and so is each value that a step makes: a part of
width / H columns for each head. Where a head reads no other's part, all steps of one head can run
before the next head's, whose matrices do not share the cache with them then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from dynbatch.compiler.buffers import Role, Storage
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import OpCode, Origin, Value
from dynbatch.compiler.lanes import Item, KernelGroup
from dynbatch.compiler.nests import NestGroup
from dynbatch.compiler.program import Program

# Elements of the largest nest of a head, below which its loops take longer than what they do.
LEAST_ELEMENTS = 64

OUTSIDE = (Origin.STREAM, Origin.MEMORY)


class Heads:
    """A number of heads, and the values that are cut into parts for them.

    Args:
        count:    of heads.
        programs: whose operators run head by head.
        results:  values that have whole rows of their own.
    """

    def __init__(
        self, count: int, programs: Sequence[Program] = (), results: Sequence[Value] = ()
    ) -> None:
        self.count = count
        ops = [op for program in programs for op in program.ops]
        read = {id(x.base) for op in ops for x in op.inputs}
        joined = {id(op.output) for op in ops if op.opcode is OpCode.COPY} & {*map(id, results)}
        ahead = {id(x) for program in programs for op in program.ahead for x in op.outputs}
        # What stands side by side for readers outside the loop may have any order.
        self._whole = ahead | (joined - read)

    def cuts(self, base: Value) -> bool:
        """Whether each head has a part of a value; else it may read, or write, any columns."""
        return base.origin not in OUTSIDE and id(base) not in self._whole

    def offset(self, base: Value, width: int) -> str:
        """The text that moves a head on in columns of which each has `width`, if it needs one."""
        return f" + head * {width}" if self.count > 1 and not self.cuts(base) else ""

    def group(self, nest: NestGroup) -> NestGroup:
        """A nest with the heads as its first axis."""
        cut = nest.cut(self.count)
        assert cut is not None
        return cut

    def fit(self, items: Iterable[Item | NestGroup]) -> bool:
        """Whether each head reads and makes its own parts only."""
        return all([self._fits(item) for item in items])

    def fit_in(self, storage: Storage) -> bool:
        """Whether the parts of buffers that several values share lie apart."""
        packed = [b for b in storage.packed if b.role is Role.PACKED and not storage.is_ahead(b)]
        buffers = [*packed, *storage.temporary]
        places = [storage.buffer_of(value)[1] for b in buffers for value in b.values]
        return not any([size % self.count for size in (*places, *[b.width for b in buffers])])

    def _fits(self, item: Item | NestGroup) -> bool:
        if isinstance(item, KernelGroup):
            segments = [
                x for lane in item.lanes for op in lane.ops for x in (*op.inputs, op.output)
            ]
            is_cut = [self.cuts(x.base) and x.width < x.base.width for x in segments]
            return not any(is_cut) and not any([x.width % self.count for x in segments])
        nest = item.cut(self.count) if isinstance(item, NestGroup) else None
        return nest is not None and all(
            [
                self._is_part(x, nest.sizes, steps)
                for op, strides in zip(nest.ops, nest.strides, strict=True)
                for x, steps in zip((*op.inputs, op.output), strides, strict=True)
            ]
        )

    def _is_part(self, x: Value, sizes: Sequence[int], steps: Sequence[int]) -> bool:
        if not self.cuts(x.base):
            return True
        part, rest = divmod(x.base.width, self.count)
        end = x.column + sum([(n - 1) * s for n, s in zip(sizes[1:], steps[1:], strict=True)])
        return not rest and steps[0] == part and end < part


def heads_of(
    backward: BackwardProgram, storages: Sequence[Storage],
    items: Sequence[Sequence[Item | NestGroup]],
) -> Heads:  # fmt: skip
    """The most heads that a loop can be cut into.

    Args:
        backward: its passes, whose `storages` are those of both.
        items:    of each pass.
    """
    programs, results = [backward.forward, backward], backward.packed_results()
    leaving = [*backward.forward.exports, *backward.forward.states]
    nests = [op.nest for program in programs for op in program.ops if op.opcode is OpCode.CONTRACT]
    largest = max([prod(nest.sizes) for nest in nests], default=0)
    for count in sorted({nest.sizes[0] for nest in nests if len(nest.sizes) > 2}, reverse=True):
        heads = Heads(count, programs, results)
        if (
            largest >= LEAST_ELEMENTS * count
            and not any([value.width % count for value in leaving])
            and all([heads.fit_in(storage) for storage in storages])
            and all([heads.fit(each) for each in items])
        ):
            return heads
    return ONE_HEAD


ONE_HEAD = Heads(1)
