"""The table of rules: what each type of node makes of the gradient of its value, as nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dynbatch.nodes.node import Node

Made: TypeAlias = "Callable[[], Node] | None"
"""Makes a gradient where it is wanted; None is a gradient of 0."""

Rule: TypeAlias = Callable[[Any, Node], tuple[Made, ...]]
"""(node y, gradient dy) -> for each input x of y what makes dx, of x's shape."""

ParameterRule: TypeAlias = Callable[[Any, Node], Mapping[str, Callable[[], Node]]]
"""(node y, gradient dy) -> for the name of each parameter what makes its gradient."""

RULES: dict[type[Node], Rule] = {}
PARAMETER_RULES: dict[type[Node], ParameterRule] = {}


def rule(*node_types: Any) -> Callable[[Rule], Rule]:
    """Enter a rule for the inputs of these types; a subclass needs an entry of its own."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(node_types, function))
        return function

    return enter


def parameter_rule(*node_types: Any) -> Callable[[ParameterRule], ParameterRule]:
    """Enter a rule for the parameters of these types."""

    def enter(function: ParameterRule) -> ParameterRule:
        PARAMETER_RULES.update(dict.fromkeys(node_types, function))
        return function

    return enter
