"""Rules of parameters as values, of tables, and of inner products with arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dynbatch import nodes as F
from dynbatch.differentiation.table import Made, parameter_rule, rule
from dynbatch.nodes.inner_product import InnerProduct, LossSum, Seed
from dynbatch.nodes.node import Node
from dynbatch.nodes.positions.absolute import PositionRows
from dynbatch.nodes.positions.rotary import Rotary
from dynbatch.nodes.shape.scatter import scattered
from dynbatch.nodes.sources import Lookup, ParameterNode


@parameter_rule(ParameterNode)
def _of_parameter(y: ParameterNode, dy: Node) -> Mapping[str, Callable[[], Node]]:
    return {"parameter": lambda: dy}


@parameter_rule(Lookup)
def _of_lookup(y: Lookup, dy: Node) -> Mapping[str, Callable[[], Node]]:
    return {"table": lambda: scattered(dy, y.ids, y.table.shape[0])}


@parameter_rule(PositionRows)
def _of_positions(y: PositionRows, dy: Node) -> Mapping[str, Callable[[], Node]]:
    ids = np.arange(y.offset, y.offset + y.rows)
    return {"table": lambda: scattered(dy, ids, y.table.shape[0])}


@rule(PositionRows)
def _positions(y: PositionRows, dy: Node) -> tuple[Made, ...]:
    return (None,)  # it reads the length alone


@rule(Rotary)
def _rotary(y: Rotary, dy: Node) -> tuple[Made, ...]:
    def turned_back() -> Node:
        """A turn by -θ is one by θ between two reflections (a, b) -> (a, -b)."""
        width, pairs = y.angles.width, y.angles.width // 2
        signs = np.ones((y.heads, y.width // y.heads))
        if y.layout == "interleaved":
            signs[:, 1:width:2] = -1
        else:
            signs[:, pairs:width] = -1
        reflection = F.input(y.graph, signs.reshape(-1))
        return y.rebuild(dy * reflection) * reflection

    return (turned_back,)


@rule(InnerProduct, LossSum, Seed)
def _inner_product(y: InnerProduct, dy: Node) -> tuple[Made, ...]:
    ends = np.cumsum([x.rows * x.width for x in y.inputs])
    weights = np.split(y.weights, ends[:-1])
    pairs = zip(y.inputs, weights, strict=True)
    return tuple([lambda x=x, w=w: dy * F.input(y.graph, w.reshape(x.shape)) for x, w in pairs])
