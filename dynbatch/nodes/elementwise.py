"""Functions of one value, element by element: activations, powers, logarithms."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dynbatch.kernels import elementwise as kernels
from dynbatch.nodes.base import OPERATIONS, Node, Retain, Shape
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class Unary(Node):
    """y = f(x) for every element. Subclasses name the kernel, and static arguments if it has any.

    Batches with:  every other node of its type and arguments, whatever the shapes.
    """

    __slots__ = ()
    any_shape = True
    rowwise = True
    inplace_forward = True
    inplace_backward = True
    kernel: ClassVar[kernels.UnaryFunction]

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        kernel = cls.__dict__.get("kernel")
        if kernel is not None:
            cls.retains = Retain(inputs=kernel.reads == "input", output=kernel.reads == "output")

    def infer_shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def arguments(self) -> tuple[Any, ...]:
        """Static arguments of the kernel, in order."""
        return tuple([getattr(self, name) for name in self.static])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        kernels.apply(cls.kernel, xs[0].flat, y.flat, *batch.first.arguments())

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            saved = batch.output if cls.retains.output else batch.inputs[0]
            flat = dy.flat if saved is None else saved.flat
            arguments = batch.first.arguments()
            kernels.apply_backward(cls.kernel, dy.flat, flat, dx.flat, *arguments)


class Sigmoid(Unary):
    """σ(x) = 1 / (1 + exp(-x))."""

    __slots__ = ()
    kernel = kernels.sigmoid


class Tanh(Unary):
    """tanh(x)."""

    __slots__ = ()
    kernel = kernels.tanh


class Relu(Unary):
    """max(x, 0); the derivative at 0 is 0."""

    __slots__ = ()
    kernel = kernels.relu


class Negative(Unary):
    """-x."""

    __slots__ = ()
    kernel = kernels.negative


class Detach(Unary):
    """y = x, and no gradient passes.

    Its value is that of x, where it lies: nothing is launched, and no place in memory is taken. If
    it is kept it has a value of its own, and its gradient is that of its readers.
    """

    __slots__ = ()
    kernel = kernels.detached
    differentiable = False
    is_alias = True


class Exp(Unary):
    """exp(x)."""

    __slots__ = ()
    kernel = kernels.exp


class Log(Unary):
    """Natural logarithm."""

    __slots__ = ()
    kernel = kernels.log


class Sqrt(Unary):
    """√x."""

    __slots__ = ()
    kernel = kernels.sqrt


class Abs(Unary):
    """|x|; the derivative at 0 is 0."""

    __slots__ = ()
    kernel = kernels.absolute


class Power(Unary):
    """x^exponent for a constant exponent."""

    __slots__ = ("exponent",)
    static = ("exponent",)
    kernel = kernels.power


class Clip(Unary):
    """min(max(x, low), high); the derivative is 1 on the borders, as in PyTorch."""

    __slots__ = ("high", "low")
    static = ("low", "high")
    kernel = kernels.clip


class LeakyRelu(Unary):
    """x where x > 0, else slope · x."""

    __slots__ = ("slope",)
    static = ("slope",)
    kernel = kernels.leaky_relu


class Elu(Unary):
    """x where x > 0, else alpha · (exp(x) - 1)."""

    __slots__ = ("alpha",)
    static = ("alpha",)
    kernel = kernels.elu


class Gelu(Unary):
    """x Φ(x), exact (`approximate="none"`) or by tanh.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """

    __slots__ = ("approximate",)
    static = ("approximate",)
    kernel = kernels.gelu


class Silu(Unary):
    """x σ(x)."""

    __slots__ = ()
    kernel = kernels.silu


class Softplus(Unary):
    """log(1 + exp(x))."""

    __slots__ = ()
    kernel = kernels.softplus


class LogSigmoid(Unary):
    """log σ(x) = -log(1 + exp(-x))."""

    __slots__ = ()
    kernel = kernels.log_sigmoid


class Sign(Unary):
    """1 where x > 0, -1 where x < 0, else x; no gradient passes."""

    __slots__ = ()
    differentiable = False
    kernel = kernels.sign


def negative(x: Node) -> Node:
    """-x."""
    return Negative(x)


def sqrt(x: Node) -> Node:
    """Square root."""
    return Sqrt(x)


def detach(x: Node) -> Node:
    """x without its gradient, as `torch.Tensor.detach`: what is made of it does not train x.

    No copy is made, in cells and outside, but in the loop of a cell, where it costs what a negation
    does. A kept one is a value of its own, whose gradient can be read.

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
    return Exp(x)


def log(x: Node) -> Node:
    """Natural logarithm."""
    return Log(x)


def abs(x: Node) -> Node:
    """Absolute value."""
    return Abs(x)


def clip(x: Node, low: float | None = None, high: float | None = None) -> Node:
    """x cut off below `low` and above `high`; None leaves a side open."""
    return Clip(
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
    return Tanh(x)


def sigmoid(x: Node) -> Node:
    """Logistic function."""
    return Sigmoid(x)


def relu(x: Node) -> Node:
    """max(x, 0)."""
    return Relu(x)


def leaky_relu(x: Node, negative_slope: float = 0.01) -> Node:
    """x where positive, else `negative_slope` · x."""
    return LeakyRelu(x, slope=float(negative_slope))


def elu(x: Node, alpha: float = 1.0) -> Node:
    """x where positive, else alpha · (exp(x) - 1)."""
    return Elu(x, alpha=float(alpha))


def gelu(x: Node, approximate: str = "none") -> Node:
    """x Φ(x); `approximate="tanh"` for the tanh form."""
    return Gelu(x, approximate=approximate)


def silu(x: Node) -> Node:
    """x σ(x)."""
    return Silu(x)


def softplus(x: Node) -> Node:
    """log(1 + exp(x))."""
    return Softplus(x)


def logsigmoid(x: Node) -> Node:
    """log σ(x) = -log(1 + exp(-x)), as `torch.nn.functional.logsigmoid`.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.logsigmoid(F.input(graph, [-1000.0, 1000.0])).value.tolist()
        [-1000.0, -0.0]
    """
    return LogSigmoid(x)


OPERATIONS.update(negative=negative)
