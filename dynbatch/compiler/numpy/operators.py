"""The functions of NumPy that compute operators on arrays: (operands …, out)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dynbatch.compiler.differentiate import partial_reads
from dynbatch.compiler.ir import Op, OpCode
from dynbatch.kernels import binary
from dynbatch.parameter import Array

Function = Callable[..., object]


def elementwise(op: Op) -> Function:
    """The function of an elementwise operator, of forward or backward."""
    kernel, number, arguments = op.kernel, op.number, op.arguments
    if op.opcode is OpCode.PARTIAL:
        return _partial(op)
    if op.opcode is OpCode.WHERE:
        return binary.choose
    if op.opcode is OpCode.SCALE:
        return lambda x, out: np.multiply(x, number, out)
    if op.opcode is OpCode.SHIFT:
        return lambda x, out: np.add(x, number, out)
    if op.opcode is OpCode.WITH_NUMBER:
        return lambda x, out: kernel.forward(*_beside_number(op, x), out)
    if op.opcode is OpCode.UNARY and arguments:
        return lambda x, out: kernel.forward(x, out, *arguments)
    assert op.opcode in (OpCode.UNARY, OpCode.BINARY)
    function: Function = kernel.forward
    return function


def _partial(op: Op) -> Function:
    """dy ⊙ ∂f/∂x of one operand, from dy and what the derivative reads."""
    source, side = op.source, op.position
    assert source is not None
    kernel, arguments = source.kernel, source.arguments
    if source.opcode is OpCode.WHERE:
        return lambda dy, mask, out: binary.choose_backward(dy, mask, out, side - 1)
    if source.opcode is OpCode.UNARY:  # where it reads nothing, dy stands in
        return lambda dy, *rest: kernel.backward(dy, *[dy, *rest][-2:], *arguments)
    read = [any([x is y for y in partial_reads(source)]) for x in source.inputs]
    is_beside = source.opcode is OpCode.WITH_NUMBER
    way = (kernel.backward_a, kernel.backward_b)[source.side if is_beside else side]

    def backward(dy: Array, *arrays: Array) -> None:
        *given, out = arrays
        known = iter(given)
        operands: list[Any] = [next(known) if is_read else None for is_read in read]
        way(dy, *(_beside_number(source, operands[0]) if is_beside else operands), out)

    return backward


def _beside_number(op: Op, x: Any) -> tuple[Any, Any]:
    """The two operands of a function of a value and a number, in order."""
    return (op.number, x) if op.side else (x, op.number)


def name_of(op: Op) -> str:
    """The name of what an operator computes."""
    name = op.opcode.name.lower() if op.kernel is None else str(op.kernel.name)
    return f"{name}[{name_of(op.source)}]" if op.source else name
