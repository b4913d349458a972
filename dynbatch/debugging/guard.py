"""`Graph(guard=True)`: the first NaN or infinity is an error that names the node it came from.

Looked at after each batch step, in the order in which steps run: the values that forward wrote, and
again once they are rounded to bfloat16; the gradients that backward wrote for each input and for
each parameter, and sums of gradients. Whatever ran before is finite, so the first number that is
not was made by the node named, or was given: an array of `F.input`, or a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.execution.observer import Observer
from dynbatch.batcher.execution.stage_runner import StepActions
from dynbatch.batcher.steps.alias import AliasStep
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.caller import caller
from dynbatch.debugging.finite_step import StepGuard, described
from dynbatch.debugging.reference import dense_on_host
from dynbatch.errors import NumericError
from dynbatch.nodes.node import Node


class PlacedNodes(list[Node]):
    """The nodes of a graph, and the line that made each, by index."""

    def __init__(self, places: dict[int, str]) -> None:
        super().__init__()
        self._places = places

    def append(self, node: Node) -> None:
        self._places[len(self)] = caller()
        super().append(node)

    def extend(self, nodes: Iterable[Node]) -> None:
        start = len(self)
        super().extend(nodes)
        self._places.update(dict.fromkeys(range(start, len(self)), caller()))


class Guard(Observer):
    """Checks that every number of a graph is finite.

    Args:
        places: the line that made each node, by index.

    Raises:
        NumericError: at the first number that is not finite.
    """

    def __init__(self, upstream: StepActions, places: Mapping[int, str]) -> None:
        super().__init__(upstream)
        self._places = places

    def forward(self, step: StepRun, arena: Array) -> None:
        super().forward(step, arena)
        if not isinstance(step, AliasStep):  # it computes nothing
            self.start()
            StepGuard(step, self._places).forward(arena)

    def rounded(self, step: StepRun) -> None:
        super().rounded(step)
        if not isinstance(step, AliasStep):
            self.start()
            StepGuard(step, self._places).values(", rounded to bfloat16,")

    def backward(self, step: StepRun, arena: Array) -> None:
        super().backward(step, arena)
        self.start()
        StepGuard(step, self._places).backward(arena)

    def add_gradients(self, step: StepRun, arena: Array) -> None:
        super().add_gradients(step, arena)
        self.start()
        StepGuard(step, self._places).added_gradients()

    def commit(self, gradients: Sequence[StepGradients]) -> None:
        with np.errstate(all="ignore"):
            super().commit(gradients)
        self.start()
        for parameter in {p.uid: p for step in gradients for p in step.parameters()}.values():
            grad = dense_on_host(parameter.grad)
            if not np.isfinite(grad).all():
                raise NumericError(
                    f"the gradient of parameter {parameter.name!r}, after this graph's was added, "
                    f"{described(grad)}.\n  rule: the gradients of all batches were finite\n"
                    "  fix:  zero_grad() before it, if it was not finite then; otherwise the sum "
                    "overflows:\n        scale the loss down"
                )
