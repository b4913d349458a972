"""Gated linear units: one half of the features, through a function, is a gate for the other."""

from __future__ import annotations

from typing import Never

from dynbatch.kernels import gated as kernels
from dynbatch.kernels.unary import FUNCTIONS, Argument, Function, activations
from dynbatch.nodes.arguments import node_of, nodes_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Elementwise, Operation, Retain
from dynbatch.nodes.shape.axes import FEATURES, axis
from dynbatch.nodes.unary.activations import require_approximation
from dynbatch.ragged import Ragged


class Gated(Operation):
    """Base of both: y = f(gate) ⊙ value, with `function` and `arguments` naming f."""

    __slots__ = ("arguments", "function")
    rowwise = True
    retains = Retain(inputs=True)
    function: str
    arguments: tuple[Argument, ...]

    @classmethod
    def gate(cls, batch: Batch) -> tuple[Function, tuple[Argument, ...]]:
        """The function of the gate, and its arguments."""
        return FUNCTIONS[batch.first.function], batch.first.arguments


class GatedUnit(Gated, Elementwise):
    """y = f(gate) ⊙ value, elementwise over equal shapes.

    Batches with:  every other one of its function, whatever the shapes.
    """

    __slots__ = ()
    static = ("function", "arguments")
    shape_rule = "gate (…), value (…) -> (…)"
    shape_fix = "make both by linear maps of one input to the same number of features"
    is_one_kernel = True

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        kernels.gated(*cls.gate(batch), (xs[0].flat, xs[1].flat), False, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        xs = batch.input(0).flat, batch.input(1).flat
        wanted = tuple([None if dx is None else dx.flat for dx in dxs])
        kernels.gated_backward(*cls.gate(batch), dy.flat, xs, False, wanted)


class GatedHalves(Gated):
    """y = f(gate) ⊙ value, which are the halves of the features of x.

    Batches with:  every other one of its width, function and order of the halves.
    """

    __slots__ = ("value_first",)
    static = ("function", "arguments", "value_first")
    shape_rule = "x (…, 2 · D) -> (…, D)"
    shape_fix = "give an even number of features, or gate and value as two nodes"
    is_one_kernel = True
    value_first: bool

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        kernels.gated(*cls.gate(batch), (xs[0].values,), batch.first.value_first, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            x, dx = batch.input(0).values, dxs[0].values
            value_first = batch.first.value_first
            kernels.gated_backward(*cls.gate(batch), dy.values, (x,), value_first, (dx,))


def _gated(what: str, f: Function, gate: Node, value: Node | None, *arguments: str) -> Node:
    if value is None:
        gate = node_of(what, gate)
        return GatedHalves(gate, function=f.name, arguments=arguments, value_first=False)
    gate, value = nodes_of(what, gate, value)
    return GatedUnit(gate, value, function=f.name, arguments=arguments)


def glu(x: Node, dim: int = -1, **habits: Never) -> Node:
    """Gated linear unit, as `torch.nn.functional.glu`: with x = [a, b] it is a ⊙ σ(b).

    The value comes before the gate, unlike in `swiglu` and the others.

    Args:
        x: (T, 2D) or (2D,) -> (T, D) or (D,).

    Raises:
        ShapeError: x has an odd number of features, or dim is not that of features.

    Source: Dauphin et al. 2017, arXiv:1612.08083.
    """
    if axis("glu", x, dim, habits) != FEATURES:
        x.refuse(
            f"glu over dim {dim}",
            "gate and value are halves of the features, dim=-1",
            "F.chunk(x, 2, dim=0) cuts the tokens in two",
        )
    return GatedHalves(x, function=activations.sigmoid.name, arguments=(), value_first=True)


def swiglu(gate: Node, value: Node | None = None) -> Node:
    """silu(gate) ⊙ value, in one kernel that keeps the inputs alone.

    Args:
        gate:  of any shape; without a value, x (T, 2D) or (2D,), of which the first half is the
               gate and the second the value, as where one linear map makes both.
        value: of the gate's shape.

    Raises:
        ShapeError: the shapes differ, or x has an odd number of features.

    Source: Shazeer 2020, arXiv:2002.05202, equation 5 (Swish with β = 1).

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     gate, value = F.input(graph, [0.0, 40.0]), F.input(graph, [5.0, 2.0])
        ...     F.swiglu(gate, value).value.tolist()
        [0.0, 80.0]
    """
    return _gated("swiglu", activations.silu, gate, value)


def geglu(gate: Node, value: Node | None = None, approximate: str = "none") -> Node:
    """gelu(gate) ⊙ value, with arguments as `swiglu`; `approximate="tanh"` is that of T5 1.1.

    Raises:
        ShapeError:    the shapes differ, or x has an odd number of features.
        ArgumentError: `approximate` is neither "none" nor "tanh".

    Source: Shazeer 2020, arXiv:2002.05202, equation 5.
    """
    require_approximation(approximate)
    return _gated("geglu", activations.gelu, gate, value, approximate)


def reglu(gate: Node, value: Node | None = None) -> Node:
    """relu(gate) ⊙ value, with arguments as `swiglu`.

    Raises:
        ShapeError: the shapes differ, or x has an odd number of features.

    Source: Shazeer 2020, arXiv:2002.05202, equation 5.
    """
    return _gated("reglu", activations.relu, gate, value)
