"""Node types of the elementwise functions of one value, each made from its kernel."""

from __future__ import annotations

from typing import ClassVar

from dynbatch.kernels import elementwise, unary
from dynbatch.kernels.unary import arithmetic
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.operation import Elementwise, Retain
from dynbatch.ragged import Ragged


class Unary(Elementwise):
    """Base of y = f(x) for every element. Types name the kernel, and its static arguments.

    Batches with:  every other node of its type and arguments, whatever the shapes.
    """

    __slots__ = ()
    shape_rule = "x (…) -> (…)"
    is_one_kernel = True
    kernel: ClassVar[unary.Function]

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        kernel = cls.__dict__.get("kernel")
        if kernel is not None:
            cls.retains = Retain(inputs=kernel.reads == "input", output=kernel.reads == "output")

    @classmethod
    def comes_again(cls, batch: Batch) -> bool:
        return cls.is_built_in

    @classmethod
    def reads_narrow_input(cls, batch: Batch, backward: bool) -> bool:
        return backward and cls.is_built_in and not batch.device.is_cuda

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


def _node_type(kernel: unary.Function) -> type[Unary]:
    """Make the node type of an elementwise function: `LeakyRelu` of `leaky_relu`."""
    name = "".join([word.capitalize() for word in kernel.name.split("_")])
    body = {"__slots__": kernel.arguments, "static": kernel.arguments, "kernel": kernel}
    return type(name, (Unary,), {**body, "__doc__": kernel.__doc__, "__module__": __name__})


NODE_TYPES: dict[unary.Function, type[Unary]] = {
    node_type.kernel: node_type for node_type in (Negative, Detach, Abs, Power, Sign)
}
for _kernel in unary.FUNCTIONS.values():
    if _kernel not in NODE_TYPES:
        NODE_TYPES[_kernel] = _node_type(_kernel)
globals().update({node_type.__name__: node_type for node_type in NODE_TYPES.values()})
