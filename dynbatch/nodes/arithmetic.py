"""Sums, differences, products, quotients and powers of two values, or of a value and a number."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DtypeError
from dynbatch.kernels import arrays
from dynbatch.kernels import binary as kernels
from dynbatch.kernels.scalar.pair import Pair
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Elementwise, Retain
from dynbatch.nodes.shape.expand import matched
from dynbatch.nodes.sources import parameter
from dynbatch.nodes.unary.node_types import Negative, Power
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class Scalar(Elementwise):
    """Base of functions of x and a number, which is not part of the signature.

    Batches with:  every other node of its type, whatever the shapes and numbers.
    """

    __slots__ = ("number",)
    shape_rule = "x (…) -> (…)"
    number: float
    kernel: ClassVar[Pair]
    side: ClassVar[int] = 0

    @classmethod
    def numbers(cls, batch: Batch, x: Ragged) -> tuple[Array, Array]:
        return batch.array("number", batch.dtype), x.starts


class Scale(Scalar):
    """number · x."""

    __slots__ = ()
    kernel = kernels.multiply

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        arrays.scale_segments(xs[0].flat, *cls.numbers(batch, y), y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            arrays.scale_segments(dy.flat, *cls.numbers(batch, dy), dxs[0].flat)


class Shift(Scalar):
    """x + number."""

    __slots__ = ()
    kernel = kernels.add

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        arrays.shift_segments(xs[0].flat, *cls.numbers(batch, y), y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            arrays.copy(dy.flat, dxs[0].flat)


class WithNumber(Scalar):
    """Base of functions of x and a number: f(x, number), or f(number, x) if `side` is 1."""

    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        numbers = cls.numbers(batch, y)
        kernels.combine_number(cls.kernel, xs[0].flat, *numbers, y.flat, cls.side)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            x = None if batch.inputs[0] is None else batch.inputs[0].flat
            numbers = cls.numbers(batch, dy)
            kernels.combine_number_backward(cls.kernel, dy.flat, x, *numbers, dxs[0].flat, cls.side)


class DivideByNumber(WithNumber):
    """x / number; the reciprocal of the number might overflow where the quotient does not."""

    __slots__ = ()
    kernel = kernels.divide


class DivideNumber(WithNumber):
    """number / x."""

    __slots__ = ()
    retains = Retain(inputs=True)
    kernel = kernels.divide
    side = 1


class RaiseNumber(WithNumber):
    """number^x."""

    __slots__ = ()
    retains = Retain(inputs=True)
    kernel = kernels.raise_to
    side = 1


class Binary(Elementwise):
    """Base of y = f(a, b), elementwise. `expand` brings other shapes together first.

    Batches with:  every other node of its type, whatever the shapes.
    """

    __slots__ = ()
    shape_rule = "a (…), b (…) -> (…)"
    shape_fix = "use F.expand, or the operators, which repeat a vector over the tokens"
    is_one_kernel = True
    kernel: ClassVar[Pair]

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        kernel = cls.__dict__.get("kernel")
        if kernel is not None:
            cls.retains = Retain(inputs=tuple([k for k in (0, 1) if kernel.reads[k]]))

    @classmethod
    def comes_again(cls, batch: Batch) -> bool:
        return cls.is_built_in

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        kernels.combine(cls.kernel, xs[0].flat, xs[1].flat, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        a, b = [None if x is None else x.flat for x in batch.inputs]
        if dxs[0] is not None:
            kernels.combine_backward(cls.kernel, dy.flat, a, b, dxs[0].flat, 0)
        if dxs[1] is not None:
            kernels.combine_backward(cls.kernel, dy.flat, a, b, dxs[1].flat, 1)


class Add(Binary):
    """a + b."""

    __slots__ = ()
    passes = (0, 1)
    kernel = kernels.add


class Subtract(Binary):
    """a - b."""

    __slots__ = ()
    kernel = kernels.subtract


class Multiply(Binary):
    """a ⊙ b."""

    __slots__ = ()
    kernel = kernels.multiply


class Divide(Binary):
    """a ⊘ b."""

    __slots__ = ()
    kernel = kernels.divide


class RaiseTo(Binary):
    """a^b; the gradient of b is 0 where a is 0 and b is not negative, as in PyTorch."""

    __slots__ = ()
    kernel = kernels.raise_to


def combined(node_type: type[Binary], a: Node, b: Node) -> Node:
    """Apply a node type to two nodes, repeated to one shape."""
    alike = a.ndim == b.ndim and a.rows == b.rows and a.width == b.width
    if alike and a.ndim > 2:
        alike = a.shape == b.shape
    return node_type(a, b) if alike else node_type(*matched([a, b]))


def beside(node: Any, value: Any) -> Any:
    """The other operand: a parameter becomes a node of the graph; all else stays as it is.

    Inside a cell or a block it does so beside a number, or another parameter.
    """
    if isinstance(value, Parameter):
        made = parameter(node.graph, value) if isinstance(node, Node) else value._as_node()
        return value if made is None else made
    return value


def node_first(a: Any, b: Any) -> tuple[Any, Any]:
    """The operands, the first of which is no node, in an order in which it is, if one is."""
    return (b, a) if isinstance(b, Node) else (beside(b, a), b)


def number_of(value: Any) -> float:
    if isinstance(value, (int, float, np.number)) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):
        return float(value)
    if isinstance(value, Parameter):
        raise value._refused("stands alone")
    raise DtypeError.at_caller(
        f"a node or a number expected, got {type(value).__name__}.\n"
        "  fix:  turn arrays into nodes with F.input(graph, array)"
    )


def add(a: Any, b: Any) -> Node:
    """a + b of two nodes, or a node and a parameter or number."""
    if not isinstance(a, Node):
        a, b = node_first(a, b)
    if not isinstance(b, Node):
        b = beside(a, b)
    if not isinstance(a, Node):
        a, b = b, a
    return combined(Add, a, b) if isinstance(b, Node) else Shift(a, number=number_of(b))


def subtract(a: Any, b: Any) -> Node:
    """a - b of two nodes, or a node and a parameter or number."""
    a, b = beside(b, a), beside(a, b)
    if not isinstance(b, Node):
        return Shift(a, number=-number_of(b))
    if not isinstance(a, Node):
        return Shift(Negative(b), number=number_of(a))
    return combined(Subtract, a, b)


def multiply(a: Any, b: Any) -> Node:
    """a ⊙ b of two nodes, or a node and a parameter or number."""
    if not isinstance(a, Node):
        a, b = node_first(a, b)
    b = beside(a, b)
    if not isinstance(a, Node):
        a, b = b, a
    return combined(Multiply, a, b) if isinstance(b, Node) else Scale(a, number=number_of(b))


def divide(a: Any, b: Any) -> Node:
    """a ⊘ b of two nodes, or a node and a parameter or number."""
    a, b = beside(b, a), beside(a, b)
    if not isinstance(b, Node):
        return DivideByNumber(a, number=number_of(b))
    if not isinstance(a, Node):
        return DivideNumber(b, number=number_of(a))
    return combined(Divide, a, b)


def pow(x: Any, exponent: Any) -> Node:
    """x to a power, elementwise; one of the two may be a number, or a parameter.

    As in PyTorch, a fractional power of a negative x is NaN.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [1.0, 2.0, 3.0])
        ...     (x**2).value.tolist(), (2**x).value.tolist(), (x**x).value.tolist()
        ([1.0, 4.0, 9.0], [2.0, 4.0, 8.0], [1.0, 4.0, 27.0])
    """
    x, exponent = beside(exponent, x), beside(x, exponent)
    if not isinstance(exponent, Node):
        return Power(x, exponent=number_of(exponent))
    if not isinstance(x, Node):
        return RaiseNumber(exponent, number=number_of(x))
    return combined(RaiseTo, x, exponent)
