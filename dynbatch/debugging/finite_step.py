"""`StepGuard`: checks that the numbers of a batch step are finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.debugging.difference import DUMP
from dynbatch.debugging.reference import totals
from dynbatch.debugging.region_calls import calls_of
from dynbatch.errors import NumericError
from dynbatch.kernels.arrays import split
from dynbatch.kernels.runtime.precision import widened
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import Node, Shape, heading
from dynbatch.parameter import Parameter

MOST_VALUES = 6  # inputs and parameters whose range a message gives


class StepGuard:
    """Checks that the numbers of one batch step are finite.

    Args:
        places: the line that made each node, by index.
    """

    def __init__(self, step: StepRun, places: Mapping[int, str]) -> None:
        self.step = step
        self._places = places

    def forward(self, arena: Array) -> None:
        self.values("its {}")
        if self.step.fused:
            self.backward(arena, "forward and backward")

    def values(self, what: str) -> None:
        """Inspect values and last states; the text says which of them, `{}`, is not finite."""
        nodes = self.step.nodes
        for number, block in enumerate(self.step.blocks):
            flat = to_host(block.values().flat)
            if not np.isfinite(flat).all():
                name = f"last state {number - 1}" if number else "value"
                shapes = [(block.width,) if number else node.shape for node in nodes]
                self._refuse("forward", what.format(name), flat, nodes, shapes)

    def added_gradients(self) -> None:
        pairs = self.step.gradient_targets()
        read = [block for x, target in pairs if target is not None for block in x.gradient_blocks]
        for block in [block for block in dict.fromkeys(read) if block.gradient is not None]:
            flat = to_host(block.gradients().flat)
            if not np.isfinite(flat).all():
                owns = block.nodes[0]._block is block  # else it holds last states
                shapes = [node.shape if owns else (block.width,) for node in block.nodes]
                what = f"the sum of its gradients, after {self.step.nodes[0].label()} added to it,"
                self._refuse("backward", what, flat, block.nodes, shapes)

    def backward(self, arena: Array, when: str = "backward") -> None:
        """Inspect the gradients of the inputs, then those of the parameters."""
        views = self.step.target_views(arena)
        for position, view in enumerate(views):
            if view is None:
                continue
            flat = to_host(view.values).reshape(-1)
            if np.isfinite(flat).all():
                continue
            readers = self.step.readers(position)
            dxs = split(flat, [(x.rows * x.width,) for _, x in readers])
            for (node, x), dx in zip(readers, dxs, strict=True):
                if x._block.gradient is not None and not np.isfinite(dx).all():
                    self._refuse(when, f"its gradient for {x.label()}", dx, [node], [x.shape])
        if self.step.gradients is not None:
            for parameter, array in totals(self.step.gradients).values():
                if not np.isfinite(array).all():
                    what = f"its gradient for parameter {parameter.name!r}"
                    self._refuse(when, what, array.ravel(), self.step.nodes[:1], [parameter.shape])

    def _refuse(
        self, when: str, what: str, flat: Array, nodes: Sequence[Node], shapes: Sequence[Shape]
    ) -> None:
        """Raise NumericError for the first of the nodes whose numbers are not all finite."""
        for node, numbers in zip(nodes, split(flat, shapes), strict=True):
            if np.isfinite(numbers).all():
                continue
            name = type(node).__name__
            if isinstance(node, RegionNode):
                name = node.label()
                node, numbers = first_call(node, numbers)
            batch = f"a batch of {len(self.step.nodes)} {self.step.node_type.__name__}"
            batch += "" if self.step.node_type.__name__ == name else f", {name} before it"
            self._raise(node, f"{what} {described(numbers)}", self._known(node, when), when, batch)

    def _raise(
        self, node: Node, problem: str, known: Sequence[str], when: str, batch: str
    ) -> NoReturn:
        made_at = self._places.get(node.index)
        is_given = not node.inputs
        fix = (
            "correct the array or the parameter; a mask of -inf is a boolean mask here"
            if is_given
            else "look for log(0), 0/0, exp of large numbers, sqrt or pow at 0; clip or shift\n"
            "        what it reads, or lower the learning rate"
        )
        raise NumericError(
            heading(node, problem)
            + "".join([f"\n  {line}" for line in known])
            + f"\n  in {when} of {batch}"
            + f"\n  rule: {'a given array is finite' if is_given else 'all before it was finite'}"
            f"\n  fix:  {fix};\n        {DUMP}" + (f"\n  made at {made_at}" if made_at else "")
        )

    def _known(self, node: Node, when: str) -> list[str]:
        """The ranges of the values that a node reads, of those that have not been freed."""
        lines = []
        retains = self.step.retains
        for position, x in enumerate(node.inputs[:MOST_VALUES]):
            if len(x.shapes) > 1:
                continue
            if (when == "forward" or retains.input(position)) and x._block.array is not None:
                lines.append(f"{x.label()} {described(to_host(x._block.node_values(x)))}")
        if when != "forward" and node._block is self.step.block:
            gradient = to_host(node._block.node_gradient(node))
            lines.append(f"the gradient of {node.label()} {described(gradient)}")
        return lines + ranges(node.all_parameters())


def first_call(node: RegionNode, flat: Array) -> tuple[Node, Array]:
    """The first call of a region whose part of `flat`, its values or gradients, is not finite."""
    for number, row, call in calls_of(node.region):
        results = flat[node.region.groups[number].results.of_call(row)]
        if not np.isfinite(results).all():
            return call, results
    return node, flat


def ranges(parameters: Sequence[Parameter]) -> list[str]:
    """A line with the range of each of the first parameters."""
    lines = []
    for parameter in parameters[:MOST_VALUES]:
        value = to_host(widened(parameter.value))
        lines.append(f"parameter {parameter.name!r} {value.shape} {described(value)}")
    return lines


def described(array: Array) -> str:
    """An array's range; or the number of non-finite elements, and the first one."""
    wrong = ~np.isfinite(array)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f" at {index}" if index else ""
        return (
            f"has {int(wrong.sum())} of {array.size} numbers that are not finite, "
            f"the first {array[index]}{where}"
        )
    if not array.size:
        return "is empty"
    return f"is from {array.min():.4g} to {array.max():.4g}"
