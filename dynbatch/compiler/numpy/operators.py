"""The functions of NumPy that compute operators on arrays: (operands …, out)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynbatch.backend import Array
from dynbatch.compiler.ir import Op, OpCode
from dynbatch.kernels import binary

Function = Callable[..., object]


def elementwise(op: Op) -> Function:
    """The function of an elementwise operator, of forward or backward."""
    kernel, arguments = op.kernel, op.arguments
    if op.opcode is OpCode.PARTIAL:
        return _partial(op)
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


def name_of(op: Op) -> str:
    name = op.opcode.name.lower() if op.kernel is None else str(op.kernel.name)
    return f"{name}[{name_of(op.source)}]" if op.source else name
