"""`LoopFlops`: floating-point operations of a compiled loop for one row, by its two programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import ELEMENTWISE, Op, OpCode
from dynbatch.nodes.flops import NO_FLOPS, Flops
from dynbatch.parameter import Parameter


class LoopFlops:
    """Operations for a token of a scan, or for a call. Operators with kernels of their own
    (`generic`) are not in it: what they take follows from the rows of their memories.

    Args:
        backward: the derivative of a program.
        reached:  streams that it gives a gradient.

    Attributes:
        forward:  of a step and of the linear maps ahead of the loop.
        backward: of a step back, without the gradients below.
        streams:  of the gradient of each stream, by number, through the maps that read it.
    """

    def __init__(self, backward: BackwardProgram, reached: Collection[int]) -> None:
        program = backward.forward
        self.forward = _sum(program.every_op())
        self.backward = _sum(backward.every_op())
        self.streams: dict[int, int] = dict.fromkeys(reached, 0)
        self._pieces: list[tuple[Parameter, Flops]] = []
        maps, ahead = program.linear_maps, len(program.ahead)
        for number in backward.of_maps:
            op = maps[number]
            (x,) = op.inputs
            for piece in op.pieces:
                self._pieces.append((piece.weight, Flops(2 * piece.width * x.width)))
                for bias, _ in piece.biases:
                    self._pieces.append((bias, Flops(elementwise=piece.width)))
            if number < ahead:
                self.streams[x.number] += _of_map(op).products

    def parameters(self) -> Flops:
        """Operations of the gradients of all weights and biases that are trained."""
        total = NO_FLOPS
        for parameter, flops in self._pieces:
            if not parameter.frozen:
                total = total.plus(flops)
        return total


def _sum(ops: Iterable[Op]) -> Flops:
    total = NO_FLOPS
    for op in ops:
        if op.opcode is OpCode.LINEAR:
            biases = sum([piece.width * len(piece.biases) for piece in op.pieces])
            total = total.plus(_of_map(op)).plus(Flops(elementwise=biases))
        elif op.opcode is OpCode.LINEAR_GRADIENT:
            assert op.source is not None
            total = total.plus(_of_map(op.source))
        elif op.opcode is OpCode.CONTRACT:
            count = prod(op.nest.sizes)
            is_product = len(op.inputs) == 2 and count > op.output.width
            total = total.plus(Flops(2 * count) if is_product else Flops(elementwise=count))
        elif op.opcode in ELEMENTWISE or op.opcode is OpCode.PARTIAL:
            total = total.plus(Flops(elementwise=op.output.width))
    return total


def _of_map(op: Op) -> Flops:
    """The product of one row with a wide linear map, or of a row of its gradient."""
    return Flops(2 * op.inputs[0].width * sum([piece.width for piece in op.pieces]))
