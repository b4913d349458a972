"""`Graph(guard=True)`: the first NaN or infinity is an error that names the node it came from.

Looked at after each batch step, in the order in which steps run: the values that forward wrote, the
gradients that backward wrote for each input and for each parameter, and sums of gradients. Whatever
ran before is finite, so the first number that is not was made by the node named, or was given: an
array of `F.input`, or a parameter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.step import StepRun
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.debugging.guarded_region import GuardedRegion
from dynbatch.debugging.guarded_step import GuardedStep, described
from dynbatch.debugging.reference import dense_on_host
from dynbatch.errors import NumericError
from dynbatch.nodes.base import Node

INSIDE = __file__.rsplit("debugging", 1)[0]


def place_of_creation() -> str:
    """File, line and function of the innermost frame outside dynbatch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


class PlacedNodes(list[Node]):
    """The nodes of a graph, and where each was made, by index."""

    def __init__(self, places: dict[int, str]) -> None:
        super().__init__()
        self._places = places

    def append(self, node: Node) -> None:
        self._places[len(self)] = place_of_creation()
        super().append(node)


class GuardedExecutor(Executor):
    """An `Executor` that looks at every number it makes.

    Attributes:
        places: where each node was made, by index.
    """

    writes_in_place = False  # what a kernel has read is told if what it wrote is not finite

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.places: dict[int, str] = {}

    def _step(self, nodes: Sequence[Node]) -> StepRun:
        kind = GuardedRegion if isinstance(nodes[0], RegionNode) else GuardedStep
        return kind(nodes, self._dtype, self._device.xp, self)

    def _run_on_device(self, steps: Sequence[StepRun], tasks: Sequence[Any]) -> None:
        """One after the other, so that the first is the first."""
        for step, task in zip(steps, tasks, strict=True):
            self._on_device(step, task)

    def _commit(self, gradients: Sequence[StepGradients]) -> None:
        with np.errstate(all="ignore"):
            super()._commit(gradients)
        self.flush()
        for parameter in {p.uid: p for step in gradients for p in step.parameters()}.values():
            grad = dense_on_host(parameter.grad)
            if not np.isfinite(grad).all():
                raise NumericError(
                    f"the gradient of parameter {parameter.name!r}, after this graph's was added, "
                    f"{described(grad)}.\n  rule: what all batches left for it was finite\n"
                    "  fix:  zero_grad() before it, if it was not finite then; otherwise the sum "
                    "overflows:\n        scale the loss down"
                )
