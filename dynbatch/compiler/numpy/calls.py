"""The calls of NumPy and of kernels that an operator of a program is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dynbatch.compiler.buffers import Columns, ProgramBuffer, Role
from dynbatch.compiler.differentiate import partial_reads
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.numpy.views import CallConstant, ColumnView, Operand, ValuePlaces, alike
from dynbatch.kernels import binary, blas
from dynbatch.parameter import Array

UFUNCS = (np.add, np.subtract, np.multiply, np.divide)


class KernelCall(NamedTuple):
    """A function and its operands, the output among them."""

    function: Callable[..., object]
    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", None) or self.function.__name__
        return f"{name}({', '.join(map(str, self.operands))})"


class OperatorCalls:
    """Writes operators as calls.

    Attributes:
        scratch: buffers that products in planes need beside those of values, by name.
        weight_planes: width of the planes of each V, by its number; 0 for plain rows.

    Args:
        maps, generic: numbers of linear maps and of operators with own kernels, by identity.
    """

    def __init__(self, places: ValuePlaces, maps: dict[int, int], generic: dict[int, int]) -> None:
        self._places = places
        self._maps = maps
        self._generic = generic
        self.scratch: dict[str, ProgramBuffer] = {}
        self.weight_planes: dict[int, int] = {}

    def calls(self, op: Op, from_zeros: bool = False) -> list[KernelCall]:
        """The calls of an operator.

        Args:
            from_zeros: whether the state is zeros, and so is every map of it.
        """
        if op.is_linear:
            return self._linear(op, from_zeros)
        if op.opcode is OpCode.LINEAR_GRADIENT:
            return [self._linear_gradient(op)]
        if op.opcode is OpCode.GENERIC:
            xs = [self._argument(x) for x in op.inputs]
            out = self._places.rows(op.output)
            return [KernelCall(_forward_step, (f"G{self._generic[id(op)]}", "t", "n", out, *xs))]
        if op.opcode is OpCode.GENERIC_GRADIENT:
            return [self._generic_gradient(op)]
        if op.opcode is OpCode.COPY:
            return self._copies(op)
        places = [self._places.of(x) for x in [*op.inputs, op.output]]
        return [_elementwise(op, *views) for views in alike(places)]

    # Products -------------------------------------------------------------------------------------

    def _linear(self, op: Op, from_zeros: bool) -> list[KernelCall]:
        number = self._maps[id(op)]
        ((out,),) = alike([self._places.of(op.output)])
        product = blas.matmul_planes if out.plane else blas.matmul
        calls = [KernelCall(product, (self._places.rows(op.inputs[0]), f"W{number}", out))]
        if from_zeros and op.reads_state:
            calls = [KernelCall(_fill_zeros, (out,))]
        return [*calls, KernelCall(np.add, (out, f"b{number}", out))] if op.has_bias else calls

    def _linear_gradient(self, op: Op) -> KernelCall:
        number, out = self._maps[id(op.source)], self._places.rows(op.output)
        weight = f"V{number}"
        ((dy,),) = alike([self._places.of(op.inputs[0])])
        self.weight_planes[number] = dy.plane
        if not dy.plane:
            return KernelCall(blas.matmul, (dy, weight, out))
        planes = dy.width // dy.plane
        label, width = f"{planes}_{out.width}", planes * out.width
        buffer = ProgramBuffer(Role.PLANE_SCRATCH, label, width, False, out.width)
        buffer = self.scratch.setdefault(buffer.name, buffer)
        scratch = ColumnView(buffer, 0, width, out.width)
        return KernelCall(blas.matmul_sum, (dy, weight, scratch, out))

    # Operators with own kernels -------------------------------------------------------------------

    def _argument(self, value: Value) -> Operand:
        """A view, or the number of a memory."""
        is_memory = value.base.origin is Origin.MEMORY
        return CallConstant(value.number) if is_memory else self._places.rows(value)

    def _generic_gradient(self, op: Op) -> KernelCall:
        source = op.source
        assert source is not None
        retains, results = source.node.retains, iter(op.outputs)
        saved: list[Operand] = []
        targets: list[Operand] = []
        for position, x in enumerate(source.inputs):
            is_memory = x.base.origin is Origin.MEMORY
            is_read = retains.input(position) or is_memory
            saved.append(self._argument(x) if is_read else CallConstant(None))
            targets.append(CallConstant(None) if is_memory else self._places.rows(next(results)))
        output = self._places.rows(source.output) if retains.output else CallConstant(None)
        operands = (self._places.rows(op.inputs[0]), output, *saved, *targets)
        return KernelCall(_backward_step, (f"G{self._generic[id(source)]}", "t", "n", *operands))

    # Copies ---------------------------------------------------------------------------------------

    def _copies(self, op: Op) -> list[KernelCall]:
        calls = []
        buffer, first, _ = self._places.of(op.output)
        for x, column in zip(op.inputs, op.columns, strict=True):
            source, target = self._places.of(x), Columns(buffer, first + column, x.width)
            if (source.buffer.name, source.column) != (buffer.name, target.column):
                calls += [KernelCall(np.copyto, (out, x)) for x, out in alike([source, target])]
        return calls


def _elementwise(op: Op, *views: ColumnView) -> KernelCall:
    *xs, out = views
    if op.opcode is OpCode.ZERO:
        return KernelCall(_fill_zeros, (out,))
    if op.opcode is OpCode.UNARY:
        return KernelCall(op.kernel.forward, (*xs, out, *map(CallConstant, op.arguments)))
    if op.opcode is OpCode.BINARY:
        return KernelCall(_function(op), (*xs, out))
    if op.opcode is OpCode.SCALE:
        return KernelCall(np.multiply, (*xs, CallConstant(op.number), out))
    if op.opcode is OpCode.SHIFT:
        return KernelCall(np.add, (*xs, CallConstant(op.number), out))
    if op.opcode is OpCode.WHERE:
        return KernelCall(binary.choose, (*xs, out))
    if op.opcode is OpCode.WITH_NUMBER:
        return KernelCall(_function(op), (*_beside_number(op, xs[0]), out))
    assert op.opcode is OpCode.PARTIAL
    return _partial(op, xs[0], xs[1:], out)


def _function(op: Op) -> Callable[..., object]:
    """The function of two values; NumPy's own where that takes an output as the third."""
    kernel: binary.BinaryFunction = op.kernel
    return kernel.ufunc if kernel.ufunc in UFUNCS else kernel.forward


def _partial(op: Op, dy: ColumnView, read: list[ColumnView], out: ColumnView) -> KernelCall:
    source, side = op.source, op.position
    assert source is not None
    if source.opcode is OpCode.UNARY:
        saved = read[0] if read else dy
        return KernelCall(
            source.kernel.backward, (dy, saved, out, *map(CallConstant, source.arguments))
        )
    if source.opcode is OpCode.WHERE:
        return KernelCall(binary.choose_backward, (dy, read[0], out, CallConstant(side - 1)))
    held = {id(x): view for x, view in zip(partial_reads(source), read, strict=True)}
    operands: list[Operand] = [held.get(id(x), CallConstant(None)) for x in source.inputs]
    if source.opcode is OpCode.WITH_NUMBER:
        operands, side = _beside_number(source, operands[0]), source.side
    way = (source.kernel.backward_a, source.kernel.backward_b)[side]
    return KernelCall(way, (dy, *operands, out))


def _beside_number(op: Op, x: Operand) -> list[Operand]:
    """The two operands of a function of a value and a number, in order."""
    return [CallConstant(op.number), x] if op.side else [x, CallConstant(op.number)]


def _fill_zeros(out: Array) -> None:
    out[...] = 0


def _forward_step(step: Any, t: int, n: int, out: Array, *xs: Any) -> None:
    step.forward(t, n, out, *xs)


def _backward_step(step: Any, t: int, n: int, dy: Array, y: Any, *arrays: Any) -> None:
    """Backward of an operator with own kernels: half of the arrays are read, half are written."""
    half = len(arrays) // 2
    step.backward(t, n, dy, y, arrays[:half], arrays[half:])
