"""Prints an elementwise operator, and each of its gradients, as a line of Python."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.compiler.ir import Op, OpCode
from dynbatch.compiler.numpy.views import Code, Views, copy_of

# Binary functions that are one call of NumPy: no wrapper stands between.
UFUNCS = ("add", "subtract", "multiply", "divide")


def forward_line(op: Op, xs: Sequence[str], out: str) -> str:
    """The line that computes `out` from the operands."""
    if op.opcode is OpCode.UNARY:
        arguments = "".join(f", {value!r}" for value in op.node.arguments())
        return f"{kernel_name(op)}.forward({xs[0]}, {out}{arguments})"
    if op.opcode is OpCode.BINARY:
        name = op.node.kernel.name
        function = name if name in UFUNCS else f"{kernel_name(op)}.forward"
        return f"{function}({xs[0]}, {xs[1]}, {out})"
    if op.opcode is OpCode.WHERE:
        return f"choose({', '.join(xs)}, {out})"
    if op.opcode is OpCode.WITH_NUMBER:
        a, b = with_number(op, xs[0])
        return f"{kernel_name(op)}.forward({a}, {b}, {out})"
    function = "multiply" if op.opcode is OpCode.SCALE else "add"
    return f"{function}({xs[0]}, {op.node.number!r}, {out})"


def gradient_codes(op: Op, dy: str, views: Views, plane: int) -> Sequence[Code | None]:
    """The code of each input's gradient; None for an input without one."""
    if op.opcode is OpCode.UNARY:
        kernel = op.node.kernel
        saved = {"input": op.inputs[0], "output": op.output}.get(kernel.reads)
        held = dy if saved is None else views.of(saved, plane)
        arguments = "".join(f", {value!r}" for value in op.node.arguments())
        return [lambda out: f"{kernel_name(op)}.backward({dy}, {held}, {out}{arguments})"]
    if op.opcode is OpCode.SCALE:
        return [lambda out: f"multiply({dy}, {op.node.number!r}, {out})"]
    if op.opcode is OpCode.SHIFT:
        return [copy_of(dy)]
    if op.opcode is OpCode.WHERE:
        mask = views.of(op.inputs[0], plane)
        return [
            None,  # the mask has no gradient
            lambda out: f"choose_backward({dy}, {mask}, {out}, 0)",
            lambda out: f"choose_backward({dy}, {mask}, {out}, 1)",
        ]
    if op.opcode is OpCode.WITH_NUMBER:
        a, b = with_number(op, views.of(op.inputs[0], plane))
        way = f"{kernel_name(op)}.backward_{'ab'[op.node.side]}"
        return [lambda out: f"{way}({dy}, {a}, {b}, {out})"]
    kernel = op.node.kernel
    a = views.of(op.inputs[0], plane) if kernel.reads_a else "None"
    b = views.of(op.inputs[1], plane) if kernel.reads_b else "None"
    if op.is_multiply:
        return [
            lambda out: f"multiply({dy}, {b}, {out})",
            lambda out: f"multiply({dy}, {a}, {out})",
        ]
    if op.is_add:
        return [copy_of(dy)] * 2
    return [
        lambda out: f"{kernel_name(op)}.backward_a({dy}, {a}, {b}, {out})",
        lambda out: f"{kernel_name(op)}.backward_b({dy}, {a}, {b}, {out})",
    ]


def with_number(op: Op, x: str) -> tuple[str, str]:
    """The two operands of a function of a value and a number, in order."""
    number = repr(op.node.number)
    return (number, x) if op.node.side else (x, number)


def kernel_name(op: Op) -> str:
    """The name of an elementwise operator's kernel in generated code."""
    return f"kernel_{type(op.node).__name__}"
