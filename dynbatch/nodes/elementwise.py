"""Elementwise functions of one value: activations, powers, logarithms, sines.

`kernels/unary/` has each function's formula, from which its node type is made; the function that
users call is here. CONTRIBUTING lists what a new one needs.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dynbatch.arguments import refused
from dynbatch.kernels import elementwise, unary
from dynbatch.kernels.unary import activations, arithmetic, trigonometric
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.nodes.syntax.registry import FUNCTIONS
from dynbatch.ragged import Ragged

__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "clamp",
    "clip",
    "cos",
    "cosh",
    "detach",
    "elu",
    "erf",
    "exp",
    "gelu",
    "leaky_relu",
    "log",
    "logsigmoid",
    "negative",
    "relu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
]


class Unary(Operation):
    """Base of y = f(x) for every element. Types name the kernel, and its static arguments.

    Shape:  x of any shape -> y of that shape.
    Batches with:  every other node of its type and arguments, whatever the shapes.
    """

    __slots__ = ()
    any_shape = True
    rowwise = True
    keeps_rows = True
    any_rank = True
    is_one_kernel = True
    inplace_forward = True
    inplace_backward = True
    kernel: ClassVar[type[unary.UnaryFunction]]

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        kernel = cls.__dict__.get("kernel")
        if kernel is not None:
            cls.retains = Retain(inputs=kernel.reads == "input", output=kernel.reads == "output")

    def infer_shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def arguments(self) -> tuple[unary.Argument, ...]:
        """Static arguments of the kernel, in order."""
        return tuple([getattr(self, name) for name in self.static])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        elementwise.apply(cls.kernel, xs[0].flat, y.flat, *batch.first.arguments())

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            saved = batch.output if cls.retains.output else batch.inputs[0]
            flat = dy.flat if saved is None else saved.flat
            arguments = batch.first.arguments()
            elementwise.apply_backward(cls.kernel, dy.flat, flat, dx.flat, *arguments)


class Negative(Unary):
    """-x."""

    __slots__ = ()
    kernel = arithmetic.negative


class Detach(Unary):
    """y = x, and no gradient passes.

    It shares the memory of x, and nothing is launched. If it is kept it has a value of its own, and
    its gradient is that of its readers.
    """

    __slots__ = ()
    only_moves = True
    kernel = arithmetic.detached
    differentiable = False
    is_alias = True


class Abs(Unary):
    """|x|; the derivative at 0 is 0."""

    __slots__ = ()
    kernel = arithmetic.absolute


class Power(Unary):
    """x^exponent for a constant exponent."""

    __slots__ = ("exponent",)
    static = ("exponent",)
    kernel = arithmetic.power


class Sign(Unary):
    """1 where x > 0, -1 where x < 0, else x; no gradient passes."""

    __slots__ = ()
    differentiable = False
    kernel = arithmetic.sign


def _node_type(kernel: type[unary.UnaryFunction]) -> type[Unary]:
    """Make the node type of an elementwise function: `LeakyRelu` of `leaky_relu`."""
    name = "".join([word.capitalize() for word in kernel.name.split("_")])
    body = {"__slots__": kernel.arguments, "static": kernel.arguments, "kernel": kernel}
    return type(name, (Unary,), {**body, "__doc__": kernel.__doc__, "__module__": __name__})


NODE_TYPES: dict[type[unary.UnaryFunction], type[Unary]] = {
    node_type.kernel: node_type for node_type in (Negative, Detach, Abs, Power, Sign)
}
for _kernel in unary.FUNCTIONS.values():
    if _kernel not in NODE_TYPES:
        NODE_TYPES[_kernel] = _node_type(_kernel)
globals().update({node_type.__name__: node_type for node_type in NODE_TYPES.values()})


def negative(x: Node) -> Node:
    """-x."""
    return Negative(x)


def sqrt(x: Node) -> Node:
    """Square root."""
    return NODE_TYPES[arithmetic.sqrt](x)


def detach(x: Node) -> Node:
    """x without its gradient, as `torch.Tensor.detach`: nothing computed from it trains x.

    It makes no copy, except in a cell's loop, where it costs one pass. A kept one is a value of its
    own, whose gradient can be read.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [2.0, 3.0]).keep()
        ...     graph.backward(F.sum(x * F.detach(x)))
        ...     x.gradient.tolist()
        [2.0, 3.0]
    """
    return Detach(x)


def exp(x: Node) -> Node:
    """Exponential."""
    return NODE_TYPES[arithmetic.exp](x)


def log(x: Node) -> Node:
    """Natural logarithm."""
    return NODE_TYPES[arithmetic.log](x)


def abs(x: Node) -> Node:
    """Absolute value."""
    return Abs(x)


def clip(x: Node, low: float | None = None, high: float | None = None) -> Node:
    """x cut off below `low` and above `high`; None leaves a side open."""
    return NODE_TYPES[arithmetic.clip](
        x,
        low=-np.inf if low is None else float(low),
        high=np.inf if high is None else float(high),
    )


def clamp(x: Node, min: float | None = None, max: float | None = None) -> Node:
    """`clip` with the arguments of `torch.clamp`."""
    return clip(x, min, max)


def sign(x: Node) -> Node:
    """1 where x is positive, -1 where it is negative, 0 at 0; its gradient is 0 everywhere."""
    return Sign(x)


def tanh(x: Node) -> Node:
    """Hyperbolic tangent."""
    return NODE_TYPES[activations.tanh](x)


def sigmoid(x: Node) -> Node:
    """Logistic function."""
    return NODE_TYPES[activations.sigmoid](x)


def relu(x: Node) -> Node:
    """max(x, 0)."""
    return NODE_TYPES[activations.relu](x)


def leaky_relu(x: Node, negative_slope: float = 0.01) -> Node:
    """x where positive, else `negative_slope` · x."""
    return NODE_TYPES[activations.leaky_relu](x, slope=float(negative_slope))


def elu(x: Node, alpha: float = 1.0) -> Node:
    """x where positive, else alpha · (exp(x) - 1)."""
    return NODE_TYPES[activations.elu](x, alpha=float(alpha))


def require_approximation(approximate: object) -> None:
    """Raise `ArgumentError` unless a GELU has such a form."""
    if approximate not in ("none", "tanh"):
        raise refused(
            "a GELU", f"approximate is {approximate!r}", 'approximate is "none" or "tanh"',
            '"tanh" is what others call gelu_new or gelu_pytorch_tanh',
        )  # fmt: skip


def gelu(x: Node, approximate: str = "none") -> Node:
    """x Φ(x), as `torch.nn.functional.gelu`; `approximate="tanh"` for the tanh form of GPT-2.

    Raises:
        ArgumentError: `approximate` is neither "none" nor "tanh".

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    require_approximation(approximate)
    return NODE_TYPES[activations.gelu](x, approximate=approximate)


def silu(x: Node) -> Node:
    """x σ(x)."""
    return NODE_TYPES[activations.silu](x)


def softplus(x: Node) -> Node:
    """log(1 + exp(x))."""
    return NODE_TYPES[activations.softplus](x)


def logsigmoid(x: Node) -> Node:
    """log σ(x) = -log(1 + exp(-x)), as `torch.nn.functional.logsigmoid`.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.logsigmoid(F.input(graph, [-1000.0, 1000.0])).value.tolist()
        [-1000.0, -0.0]
    """
    return NODE_TYPES[activations.log_sigmoid](x)


def sin(x: Node) -> Node:
    """Sine of x, in radians."""
    return NODE_TYPES[trigonometric.sin](x)


def cos(x: Node) -> Node:
    """Cosine of x, in radians."""
    return NODE_TYPES[trigonometric.cos](x)


def tan(x: Node) -> Node:
    """Tangent of x, in radians."""
    return NODE_TYPES[trigonometric.tan](x)


def asin(x: Node) -> Node:
    """The angle from -π/2 to π/2 whose sine is x; NaN outside of [-1, 1]."""
    return NODE_TYPES[trigonometric.asin](x)


def acos(x: Node) -> Node:
    """The angle from 0 to π whose cosine is x; NaN outside of [-1, 1]."""
    return NODE_TYPES[trigonometric.acos](x)


def atan(x: Node) -> Node:
    """The angle from -π/2 to π/2 whose tangent is x."""
    return NODE_TYPES[trigonometric.atan](x)


def sinh(x: Node) -> Node:
    """Hyperbolic sine, (exp(x) - exp(-x)) / 2."""
    return NODE_TYPES[trigonometric.sinh](x)


def cosh(x: Node) -> Node:
    """Hyperbolic cosine, (exp(x) + exp(-x)) / 2."""
    return NODE_TYPES[trigonometric.cosh](x)


def asinh(x: Node) -> Node:
    """Inverse hyperbolic sine."""
    return NODE_TYPES[trigonometric.asinh](x)


def acosh(x: Node) -> Node:
    """Inverse hyperbolic cosine; NaN below 1."""
    return NODE_TYPES[trigonometric.acosh](x)


def atanh(x: Node) -> Node:
    """Inverse hyperbolic tangent; NaN outside of [-1, 1]."""
    return NODE_TYPES[trigonometric.atanh](x)


def erf(x: Node) -> Node:
    """The error function, 2/√π times the integral of exp(-t²) for t from 0 to x.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph(dtype="float64") as graph:
        ...     x = F.input(graph, [-1.0, 0.0, 1.0])
        ...     (0.5 + 0.5 * F.erf(x / 2**0.5)).value.round(3).tolist()  # the normal distribution
        [0.159, 0.5, 0.841]
    """
    return NODE_TYPES[trigonometric.erf](x)


FUNCTIONS.update(negative=negative)
