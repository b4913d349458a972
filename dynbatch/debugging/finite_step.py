"""`StepGuard`: checks that the numbers of a batch step are finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.table import ValueHandle
from dynbatch.debugging.difference import DUMP
from dynbatch.debugging.reference import totals
from dynbatch.debugging.step_arrays import (
    NodePart,
    RegionArrays,
    StepArray,
    argument_name,
    arrays_of,
)
from dynbatch.errors import NumericError
from dynbatch.kernels.runtime.precision import widened
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import Node, heading
from dynbatch.parameter import Parameter

MOST_VALUES = 6  # inputs and parameters whose range a message gives


class StepGuard:
    """Checks that the numbers of one batch step are finite; of a region, call by call.

    Args:
        places: the line that made each node, by index.
    """

    def __init__(self, step: StepRun, places: Mapping[int, str]) -> None:
        self.step = step
        self._places = places
        self._arrays = arrays_of(step)

    def forward(self, arena: Array) -> None:
        self.values()
        if self.step.fused:
            self.backward(arena, "forward and backward")

    def values(self, after: str = "") -> None:
        """Inspect values and last states, after something was done to them."""
        for array in self._arrays.values():
            self._inspect("forward", array, after)

    def added_gradients(self) -> None:
        pairs = self.step.gradient_targets()
        read = [block for x, target in pairs if target is not None for block in x.gradient_blocks]
        for block in [block for block in dict.fromkeys(read) if block.gradient is not None]:
            self._inspect("backward", self._arrays.total(block))

    def backward(self, arena: Array, when: str = "backward") -> None:
        """Inspect the gradients of the inputs, then those of the parameters."""
        for array in self._arrays.gradients(arena):
            self._inspect(when, array)
        if self.step.gradients is not None:
            for parameter, gradient in totals(self.step.gradients).values():
                self._inspect(when, self._arrays.of_parameter(parameter, gradient))

    def _inspect(self, when: str, array: StepArray, after: str = "") -> None:
        """Raise NumericError for the first part of an array whose numbers are not all finite."""
        if np.isfinite(array.flat).all():
            return
        for part in array.parts:
            numbers = array.flat[part.elements].reshape(part.shape)
            is_read = part.source is None or part.source._block.gradient is not None
            if is_read and not np.isfinite(numbers).all():
                part = part._replace(what=part.what + after)
                self._refuse(when, part, numbers)

    def _refuse(self, when: str, part: NodePart, numbers: Array) -> NoReturn:
        node = part.node
        known = self._known(node, when)
        made_at = self._places.get(node.index)
        is_given = not node.inputs
        fix = (
            "correct the array or the parameter; a mask of -inf is a boolean mask here"
            if is_given
            else "look for log(0), 0/0, exp of large numbers, sqrt or pow at 0; clip or shift\n"
            "        what it reads, or lower the learning rate"
        )
        raise NumericError(
            heading(node, f"its {part.what} {described(numbers)}")
            + "".join([f"\n  {line}" for line in known])
            + f"\n  in {when} of {self._batch_text(node)}"
            + f"\n  rule: {'a given array is finite' if is_given else 'all before it was finite'}"
            f"\n  fix:  {fix};\n        {DUMP}" + (f"\n  made at {made_at}" if made_at else "")
        )

    def _batch_text(self, node: Node) -> str:
        """The step, and the node's type, or its region, where that ran in another one."""
        if isinstance(node, ValueHandle):
            assert node.home is not None
            node = node.home
        name = node.label() if isinstance(node, RegionNode) else type(node).__name__
        text = self._arrays.batch_text()
        return text if text.endswith(f" {name}") else f"{text}, {name} before it"

    def _known(self, node: Node, when: str) -> list[str]:
        """The ranges of the values that a node reads, of those that have not been freed."""
        arrays = self._arrays
        if isinstance(arrays, RegionArrays) and isinstance(node, ValueHandle):
            places = [(number, row) for number, row, call in arrays.calls if call is node]
            if places:
                return self._known_to_call(node, *places[0], when)
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

    def _known_to_call(self, call: ValueHandle, number: int, row: int, when: str) -> list[str]:
        """The ranges of the arguments of a call in this region."""
        group = self.step.batch.memo["run"].groups[number]
        lines = [
            f"{argument_name(call, k)} {described(to_host(group.argument(k)[row]))}"
            for k in range(group.cell.program.num_given)[:MOST_VALUES]
        ]
        if when != "forward":
            dy = to_host(group.results[row])
            lines.append(f"the gradient of what it returned {described(dy)}")
        return lines + ranges(group.cell.parameters)


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
