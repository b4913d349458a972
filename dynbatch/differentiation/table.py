"""The table of rules: what each type of node makes of the gradient of its value, as nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from dynbatch.arguments import refused, shown
from dynbatch.nodes.node import Node

T = TypeVar("T", bound=Callable[..., Any])

Made: TypeAlias = "Callable[[], Node] | None"
"""Makes a gradient where it is wanted; None is a gradient of 0."""

Rule: TypeAlias = Callable[[Any, Node], tuple[Made, ...]]
"""(node y, gradient dy) -> for each input x of y what makes dx, of x's shape."""

ParameterRule: TypeAlias = Callable[[Any, Node], Mapping[str, Callable[[], Node]]]
"""(node y, gradient dy) -> for the name of each parameter what makes its gradient."""

RULES: dict[type[Node], Rule] = {}
PARAMETER_RULES: dict[type[Node], ParameterRule] = {}


def rule(*node_types: type[Node]) -> Callable[[Rule], Rule]:
    """Enter how `grad` writes the gradient of nodes of these types with functions of `F`.

    The decorated function takes a node y and the gradient dy of its value, a node of its shape. It
    returns for each input of y a function that makes dx, a node of the shape of that input; or
    None, where dx is 0. Only gradients that are asked for are made.

    Args:
        node_types: an `Operation` of yours, or several; a subclass needs an entry of its own.

    Raises:
        ArgumentError: one is not a type of nodes.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> from dynbatch.differentiation import rule
        >>> class Half(db.Operation):
        ...     __slots__ = ()
        ...     shape_rule = "x (…) -> (…)"
        ...     any_shape = True
        ...     @classmethod
        ...     def forward_batch(cls, batch, y, x):
        ...         batch.xp.multiply(x.flat, 0.5, out=y.flat)
        ...     @classmethod
        ...     def backward_batch(cls, batch, dy, dx):
        ...         batch.xp.multiply(dy.flat, 0.5, out=dx.flat)
        >>> @rule(Half)
        ... def gradient_of_half(y, dy):
        ...     return (lambda: 0.5 * dy,)
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [3.0, 1.0])
        ...     db.grad(lambda x: F.sum(Half(x) * x))(x).value.tolist()
        [3.0, 1.0]
    """
    return _entry("rule", RULES, node_types)


def parameter_rule(*node_types: type[Node]) -> Callable[[ParameterRule], ParameterRule]:
    """Enter how `grad` writes the gradients of the parameters that nodes of these types read.

    The decorated function takes a node y and the gradient dy of its value. It returns, by the name
    of each attribute that holds a parameter, a function that makes its gradient: a node of the
    parameter's shape.

    Args:
        node_types: as for `rule`.

    Raises:
        ArgumentError: one is not a type of nodes.
    """
    return _entry("parameter_rule", PARAMETER_RULES, node_types)


def _entry(
    what: str, table: dict[type[Node], T], node_types: Sequence[type[Node]]
) -> Callable[[T], T]:
    for node_type in node_types:
        if not (isinstance(node_type, type) and issubclass(node_type, Node)):
            raise refused(
                what, f"called with {shown(node_type)}", "a rule is entered for types of nodes",
                f"@{what}(YourOperation), above the function",
            )  # fmt: skip

    def enter(function: T) -> T:
        table.update(dict.fromkeys(node_types, function))
        return function

    return enter
