"""The functions of NumPy that compute operators on arrays: (operands …, out)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dynbatch.backend import Array
from dynbatch.compiler.ir import Nest, Op, OpCode
from dynbatch.kernels import binary

Function = Callable[..., object]


def elementwise(op: Op) -> Function:
    """The function of an elementwise operator, of forward or backward."""
    kernel, arguments = op.kernel, op.arguments
    if op.opcode is OpCode.PARTIAL:
        return _partial(op)
    if op.opcode is OpCode.CONTRACT:
        return _contraction(op.nest)
    if op.opcode is OpCode.WHERE:
        return binary.choose
    if op.opcode is OpCode.WITH_NUMBER:
        return lambda x, out: kernel.forward(*op.operands([x], op.number), out)
    if op.opcode is OpCode.UNARY and arguments:
        return lambda x, out: kernel.forward(x, out, *arguments)
    function: Function = kernel.forward
    return function


def _partial(op: Op) -> Function:
    """dy ⊙ ∂f/∂x of one operand, from dy and what the derivative reads."""
    source = op.source
    assert source is not None
    kernel, arguments = source.kernel, source.arguments
    if source.opcode is OpCode.WHERE:
        return lambda dy, mask, out: binary.choose_backward(dy, mask, out, op.position - 1)
    if source.opcode is OpCode.UNARY:  # where it reads nothing, dy stands in
        return lambda dy, *rest: kernel.backward(dy, *[dy, *rest][-2:], *arguments)

    is_beside = source.opcode is OpCode.WITH_NUMBER
    backward = kernel.backward_with_number if is_beside else kernel.backward

    def run(dy: Array, *arrays: Any) -> None:
        *read, out = arrays
        side, operands = op.derivative(read, out.dtype.type(source.number), None)
        backward[side](dy, *operands, out)

    return run


def _contraction(nest: Nest) -> Function:
    """Σ Π of operands, each a view with a stride for every axis, of all rows at once."""
    axes = [*range(1, len(nest.sizes) + 1)]
    kept = [axis for axis, step in zip(axes, nest.strides[-1], strict=True) if step]
    sizes = tuple([nest.sizes[axis - 1] for axis in kept])
    steps = tuple([nest.strides[-1][axis - 1] for axis in kept])

    def run(*arrays: Array) -> None:
        *xs, out = arrays
        operands: list[Any] = []
        for x, strides in zip(xs, nest.strides, strict=False):
            operands += [_view(x, nest.sizes, strides), [0, *axes]]
        np.einsum(*operands, [0, *kept], out=_view(out, sizes, steps))

    return run


def _view(rows: Array, sizes: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    size = rows.itemsize
    strides = (rows.strides[0], *[step * size for step in steps])
    return as_strided(rows, (len(rows), *sizes), strides)


def name_of(op: Op) -> str:
    name = op.opcode.name.lower() if op.kernel is None else str(op.kernel.name)
    return f"{name}[{name_of(op.source)}]" if op.source else name
