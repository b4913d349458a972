"""Floating-point operations of compiled loops: of a scan's tokens, or of the calls of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dynbatch.backend import DType
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import Op, OpCode, Origin
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops


class RowNodes(Sequence[Any]):
    """One traced operator as nodes of a batch, one for each row of a loop."""

    def __init__(self, op: Op, count: int, memories: Sequence[Sequence[int]]) -> None:
        self._node = op.node
        self._count = count
        self.lengths, self.widths = [1] * count, [op.node.width] * count
        self._inputs = [
            InputSizes(
                memories[x.base.number] if x.base.origin is Origin.MEMORY else [1] * count,
                [x.width] * count,
            )
            for x in op.inputs
        ]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return self._node

    def input_nodes(self, position: int) -> Any:
        return self._inputs[position]

    def input_elements(self) -> list[int]:
        return [sum(each.lengths) * each.widths[0] if self._count else 0 for each in self._inputs]


class InputSizes:
    """Rows and widths of what nodes read."""

    def __init__(self, lengths: Sequence[int], widths: Sequence[int]) -> None:
        self.lengths = lengths
        self.widths = widths

    def __getitem__(self, place: int) -> Any:
        raise IndexError(place)  # sizes only


def forward_flops(
    cell: CompiledLoop, count: int, memories: Sequence[Sequence[int]], dtype: DType
) -> Flops:
    """Operations of forward.

    Args:
        count:    rows of the loop.
        memories: for each memory, how many rows of it each of these reads.
    """
    flops = cell.flops.forward.times(count)
    for op, sizes in _generic(cell, count, memories, dtype):
        flops = flops.plus(type(op.node).flops(sizes))
    return flops


def backward_flops(
    cell: CompiledLoop, count: int, memories: Sequence[Sequence[int]], dtype: DType,
    streams: Sequence[int],
) -> Flops:  # fmt: skip
    """Operations of backward.

    Args:
        streams: numbers of those whose gradients are wanted; others cost nothing.
    """
    a_row = cell.flops
    flops = a_row.backward.plus(a_row.parameters())
    flops = flops.plus(Flops(sum([a_row.streams.get(k, 0) for k in streams]))).times(count)
    ops = cell.backward_program.ops
    reached = {id(op.source) for op in ops if op.opcode is OpCode.GENERIC_GRADIENT}
    for op, sizes in _generic(cell, count, memories, dtype):
        if id(op) in reached and count:
            flops = flops.plus(type(op.node).flops_backward(sizes, [True] * len(op.inputs)))
    return flops


def _generic(
    cell: CompiledLoop, count: int, memories: Sequence[Sequence[int]], dtype: DType
) -> Iterator[tuple[Op, BatchSizes]]:
    for op in cell.generic.values():
        nodes = RowNodes(op, count, memories)
        sizes = BatchSizes(
            Batch(nodes, dtype), count, count * op.node.width, nodes.input_elements()
        )
        yield op, sizes
