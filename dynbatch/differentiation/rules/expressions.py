"""Prints expressions of numbers as calls on nodes: derivatives that can be differentiated again."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dynbatch import nodes as F
from dynbatch.differentiation.table import Made
from dynbatch.kernels.scalar.expressions import (
    Expression,
    conditions,
    decide,
    substitute,
    variable,
)
from dynbatch.kernels.scalar.function import Argument, Function
from dynbatch.kernels.scalar.pair import Pair
from dynbatch.kernels.unary import FUNCTIONS
from dynbatch.nodes.node import Node
from dynbatch.nodes.unary.node_types import NODE_TYPES

FAR = 2.0**30
"""Beyond it √(x² + 1) is |x| in float64 too; x² is still finite in float32."""

IN_THE_TAIL = -0.5


def _hypot1(x: Node) -> Node:
    near = F.clip(x, -FAR, FAR)
    return F.sqrt(near * near + 1.0) * (F.maximum(F.abs(x), FAR) / FAR)


def _normal_below(x: Node) -> Node:
    """Φ(x), in the lower tail as gelu(x) / x, which keeps its small values."""
    is_far = F.less(x, IN_THE_TAIL)
    far = F.where(is_far, x, 1.0)
    return F.where(is_far, F.gelu(far) / far, 0.5 * F.erf(x / math.sqrt(2)) + 0.5)


def _where(mask: Any, a: Any, b: Any) -> Any:
    if isinstance(a, Node) or isinstance(b, Node):
        return F.where(mask, a, b)
    return mask if (a, b) == (1, 0) else mask * (a - b) + b


CALLS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "negative": operator.neg, "power": F.pow, "pow": F.pow,
    "clip": F.clip,
    "less": F.less, "less_equal": F.less_equal, "greater": F.greater,
    "greater_equal": F.greater_equal, "equal": F.equal, "not_equal": F.not_equal,
    "both": operator.mul, "where": _where,
    "maximum": lambda x, number: F.clip(x, low=number),
    "minimum": lambda x, number: F.clip(x, high=number),
    "reciprocal": lambda x: 1.0 / x, "hypot1": _hypot1, "gauss": lambda x: F.exp(-(x * x)),
    "normal_below": _normal_below, "normal_density": lambda x: F.exp(x * x * -0.5),
    "sigmoid_below": F.sigmoid, "sigmoid_above": lambda x: F.sigmoid(-x),
}  # fmt: skip
"""Primitives on nodes; others are functions of their name."""


def _calls_of(f: Function) -> dict[Function, Callable[..., Node]]:
    """A function and its forms on nodes, without the arguments that are numbers."""
    kind: Callable[..., Node] = NODE_TYPES[f]
    forms = {form: partial(kind, **{f.arguments[0]: word}) for word, form in f.forms.items()}
    return {f: partial(kind, **{f.arguments[0]: "none"}) if forms else kind, **forms}


NODES = {form: call for f in FUNCTIONS.values() for form, call in _calls_of(f).items()}


def on_nodes(root: Expression, variables: Mapping[str, Any]) -> Any:
    """An expression's value: a node, or a number where it reads none.

    Args:
        variables: nodes, and the numbers that arguments are, by name.
    """
    made: dict[Expression, Any] = {}

    def value_of(part: Expression) -> Any:
        if part not in made:
            made[part] = _made(part, variables, value_of)
        return made[part]

    with np.errstate(all="ignore"):
        return value_of(root)


def _made(
    part: Expression, variables: Mapping[str, Any], value_of: Callable[[Expression], Any]
) -> Any:
    if not part.operands:
        return part.value if part.op == "number" else variables[part.value]
    first, rest = value_of(part.operands[0]), part.operands[1:]
    if not isinstance(first, Node):  # what a number decides needs no other nodes
        if part.op == "where":
            return value_of(rest[0] if first else rest[1])
        if part.op == "both":
            return value_of(rest[0]) if first else 0.0
    xs = [first, *map(value_of, rest)]
    if any([isinstance(x, Node) for x in xs]):
        return _function(part)(*xs)
    return float(getattr(np, part.op)(*map(np.float64, xs)))


def _function(part: Expression) -> Callable[..., Any]:
    if part.op in CALLS:
        return CALLS[part.op]
    f = part.value if part.op == "call" else FUNCTIONS[part.op]
    node, names = NODES[f], f.names_of_arguments
    return lambda x, *numbers: node(x, **dict(zip(names, numbers, strict=True)))


Gradient = Callable[[Node, Node, Node], Node]


def gradient_of(function: Function, arguments: tuple[Argument, ...]) -> Gradient | None:
    """(y, x, dy) -> dy ⊙ f'(x) of y = f(x; arguments); None where f passes no gradient."""
    chosen, numbers = function.chosen(arguments)
    named = dict(zip(chosen.names_of_arguments, numbers, strict=True))
    root = chosen.derivative
    if root is not None:
        truth = {test: bool(on_nodes(test, named)) for test in conditions(root)}
        root = decide(root, truth)
    if root is None or root.is_uniform:
        return None
    return lambda y, x, dy: on_nodes(root, {"x": x, "y": y, "dy": dy, **named})


def gradients_of_pair(
    pair: Pair, values: Sequence[Node | float], dy: Node, y: Node | None = None
) -> tuple[Made, ...]:
    """Makers of the gradient of each value that is a node, of f(a, b), which is y where that is."""
    known = dict(zip(pair.names, values, strict=True)) | {"y": y, "dy": dy}
    is_beside_number = not all([isinstance(value, Node) for value in values])

    def made(side: int) -> Made:
        root, body = pair.gradient(side, is_beside_number)
        root = root if y is None else substitute(root, body, variable("y"))
        return lambda: on_nodes(root, known)

    return tuple([made(side) for side in (0, 1) if isinstance(values[side], Node)])
