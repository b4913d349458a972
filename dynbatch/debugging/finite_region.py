"""`RegionGuard`: finds the first call whose result or gradient is not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.table import ValueHandle
from dynbatch.debugging.finite_step import MOST_VALUES, StepGuard, described, ranges
from dynbatch.debugging.region_calls import (
    argument_name,
    calls_of,
    calls_text,
    gradients_of_calls,
    region_node,
    result_names,
)
from dynbatch.kernels.arrays import split
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import Node, Shape


class RegionGuard(StepGuard):
    """Inspects a region call by call: forward from the first, backward from the last."""

    def __init__(self, step: StepRun, places: Mapping[int, str]) -> None:
        super().__init__(step, places)
        self.node = region_node(step)

    def _refuse(
        self, when: str, what: str, flat: Array, nodes: Sequence[Node], shapes: Sequence[Shape]
    ) -> None:
        """Raise NumericError for the first call, if the region's own value is wrong."""
        if when == "forward" and nodes[0] is self.node:
            region = self.node.region
            for number, row, call in calls_of(region):
                results = flat[region.groups[number].results.of_call(row)]
                self._look_at_results(when, "its {}", results, number, row, call)
        super()._refuse(when, what, flat, nodes, shapes)

    def backward(self, arena: Array, when: str = "backward") -> None:
        """Inspect the gradients inside the region, the last call first, then those it passes on."""
        for number, row, call, results, arguments in gradients_of_calls(self.step):
            what = "the sum of the gradients of its {}"
            self._look_at_results(when, what, results, number, row, call)
            for k, dx in arguments.items():
                if not np.isfinite(dx).all():
                    what = f"its gradient for {argument_name(call, k)}"
                    self._refuse_call(when, what, dx, number, row, call)
        super().backward(arena, when)

    def _look_at_results(
        self, when: str, what: str, flat: Array, number: int, row: int, call: ValueHandle
    ) -> None:
        results = split(flat, call.shapes)
        for name, result in zip(result_names(call), results, strict=True):
            if not np.isfinite(result).all():
                self._refuse_call(when, what.format(name), result, number, row, call)

    def _refuse_call(
        self, when: str, what: str, numbers: Array, number: int, row: int, call: ValueHandle
    ) -> None:
        group = self.step.batch.memo["run"].groups[number]
        known = [
            f"{argument_name(call, k)} {described(to_host(group.argument(k)[row]))}"
            for k in range(group.cell.program.num_given)[:MOST_VALUES]
        ]
        if when != "forward":
            dy = to_host(group.results[row])
            known.append(f"the gradient of what it returned {described(dy)}")
        known += ranges(group.cell.parameters)
        text = calls_text(self.node)
        self._raise(call, f"{what} {described(numbers)}", known, when, text)
