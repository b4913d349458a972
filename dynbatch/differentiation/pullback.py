"""The walk from a scalar back to what it was made of, which writes gradients as nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import dynbatch.differentiation.rules  # noqa: F401  # enters the rules
from dynbatch import nodes as F
from dynbatch.differentiation.table import PARAMETER_RULES, RULES
from dynbatch.differentiation.without import WITHOUT_A_RULE
from dynbatch.errors import GraphError
from dynbatch.nodes.node import Node, ancestors
from dynbatch.parameter import Parameter

Target = Node | Parameter


class Pullback:
    """The gradients of a scalar with respect to nodes and parameters, as nodes.

    Args:
        y:       the scalar.
        targets: with respect to what; nodes made before `start`, or y itself.
        start:   the number of nodes before those that count: earlier ones are constants.
    """

    def __init__(self, y: Node, targets: Sequence[Target], start: int) -> None:
        self._y = y
        self._targets = targets
        self._start = start
        self._ids = {id(target) for target in targets}
        self._gradients: dict[int, list[Node]] = {}

    def run(self) -> list[Node]:
        """A gradient for each target, of its shape; zeros where y does not depend on it."""
        y = self._y
        nodes = sorted(ancestors([y], self._start).values(), key=lambda node: node.index)
        reaching = self._reaching(nodes)
        self._add(y, F.constant(y.graph, 1.0, y.shape))
        for node in reversed(nodes):
            if id(node) in reaching and id(node) in self._gradients:
                self._pull(node, reaching)
        return [self._gradient_of(target) for target in self._targets]

    def _reaching(self, nodes: Sequence[Node]) -> set[int]:
        """The targets, and the nodes among these that pass a gradient on to one."""
        reaching = set(self._ids)
        for node in nodes:
            if getattr(node, "differentiable", True):
                reads = (*node.inputs, *node.all_parameters())
                if any([id(x) in reaching for x in reads]):
                    reaching.add(id(node))
        return reaching

    def _pull(self, node: Node, reaching: set[int]) -> None:
        """Add what a node's gradient makes of the gradients of what it reads."""
        dy: Any = None
        if any([id(x) in reaching for x in node.inputs]):
            rule = RULES.get(type(node))
            if rule is None:
                _refuse(node)
            dy = self._total(node)
            for x, made in zip(node.inputs, rule(node, dy), strict=True):
                if made is not None and id(x) in reaching:
                    self._add(x, made())
        names = list(self._names_of_parameters(node))
        if names:
            of_parameters = PARAMETER_RULES.get(type(node))
            if of_parameters is None:
                _refuse(node)
            makers = of_parameters(node, self._total(node) if dy is None else dy)
            for name in names:
                self._add(getattr(node, name), makers[name]())

    def _names_of_parameters(self, node: Node) -> Iterator[str]:
        for name in getattr(node, "static", ()):
            value = getattr(node, name)
            if isinstance(value, Parameter) and id(value) in self._ids:
                yield name

    def _add(self, target: Target, gradient: Node) -> None:
        self._gradients.setdefault(id(target), []).append(gradient)

    def _gradient_of(self, target: Target) -> Node:
        if id(target) in self._gradients:
            return self._total(target)
        if 0 in target.shape and isinstance(target, Node):
            return target  # it has no elements
        return F.constant(self._y.graph, 0.0, target.shape)

    def _total(self, target: Target) -> Node:
        """The sum of a gradient's parts, which becomes one part."""
        parts = self._gradients[id(target)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        self._gradients[id(target)] = [total]
        return total


def _refuse(node: Node) -> NoReturn:
    name = type(node).__name__
    reason = WITHOUT_A_RULE.get(name)
    fix = (
        "write this step with such functions, or F.detach what needs no gradient; "
        "graph.backward alone goes through every node"
    )
    if not getattr(node, "is_built_in", True):
        fix = (
            f"write one: @dynbatch.differentiation.rule({name}), for its parameters parameter_rule "
            "(docs/guides/extending.md);\n        or F.detach what needs no gradient"
        )
    node.refuse(
        f"no rule makes nodes of its gradient{f', since {reason}' if reason else ''}",
        "grad goes through functions of F that have a rule (docs/guides/differentiation.md)",
        fix,
        GraphError,
    )
