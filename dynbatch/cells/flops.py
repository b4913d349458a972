"""Floating-point operations of compiled loops: of a scan's tokens, or of the calls of a group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any

from dynbatch.backend import DType
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import ELEMENTWISE, Op, OpCode, Origin
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import NO_FLOPS, BatchSizes, Flops


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
    flops = _sum(map(_of_op, cell.program.every_op())).times(count)
    of_nodes = [type(op.node).flops(sizes) for op, sizes in _generic(cell, count, memories, dtype)]
    return flops.plus(_sum(of_nodes))


def backward_flops(
    cell: CompiledLoop, count: int, memories: Sequence[Sequence[int]], dtype: DType,
    streams: Collection[int] | None = None,
) -> Flops:  # fmt: skip
    """Operations of backward.

    Args:
        streams: numbers of those whose gradients are wanted; others cost nothing. None for all.
    """
    ops = cell.backward_program.ops
    a_row = [_of_op(op) for op in ops]
    for number in cell.backward_program.of_maps:
        op = cell.maps[number]
        a_row += _of_weights(op)
        is_wanted = streams is None or op.inputs[0].number in streams
        if number in cell.stream_maps and is_wanted:
            a_row.append(_of_map(op))
    flops = _sum(a_row).times(count)
    reached = {id(op.source) for op in ops if op.opcode is OpCode.GENERIC_GRADIENT}
    for op, sizes in _generic(cell, count, memories, dtype):
        if id(op) in reached and count:
            flops = flops.plus(type(op.node).flops_backward(sizes, [True] * len(op.inputs)))
    return flops


def _sum(terms: Iterable[Flops]) -> Flops:
    return reduce(Flops.plus, terms, NO_FLOPS)


def _of_op(op: Op) -> Flops:
    """Operations of an operator for one row; none where it has kernels of its own."""
    if op.opcode is OpCode.LINEAR:
        biases = sum([piece.width * len(piece.biases) for piece in op.pieces])
        return _of_map(op).plus(Flops(elementwise=biases))
    if op.opcode is OpCode.LINEAR_GRADIENT:
        assert op.source is not None
        return _of_map(op.source)
    if op.opcode is OpCode.CONTRACT:
        count = prod(op.nest.sizes)
        is_product = len(op.inputs) == 2 and count > op.output.width
        return Flops(2 * count) if is_product else Flops(elementwise=count)
    is_elementwise = op.opcode in (*ELEMENTWISE, OpCode.PARTIAL)
    return Flops(elementwise=op.output.width) if is_elementwise else NO_FLOPS


def _of_map(op: Op) -> Flops:
    """The product of one row with a wide linear map, or of a row of its gradient."""
    return Flops(2 * op.inputs[0].width * op.output.width)


def _of_weights(op: Op) -> Iterator[Flops]:
    """Operations of the gradients of a map's weights and biases, if they are trained."""
    for piece in op.pieces:
        if not piece.weight.frozen:
            yield Flops(2 * piece.width * op.inputs[0].width)
        for bias, _ in piece.biases:
            if not bias.frozen:
                yield Flops(elementwise=piece.width)


def _generic(
    cell: CompiledLoop, count: int, memories: Sequence[Sequence[int]], dtype: DType
) -> Iterator[tuple[Op, BatchSizes]]:
    for op in cell.generic.values():
        nodes = RowNodes(op, count, memories)
        sizes = BatchSizes(
            Batch(nodes, dtype), count, count * op.node.width, nodes.input_elements()
        )
        yield op, sizes
