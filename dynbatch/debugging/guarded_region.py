"""`GuardedRegion`: the first call, or gradient of one, that is not finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.cells.calls.call import Call
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.region_run import RegionRun
from dynbatch.debugging.checked_region import argument_name, calls_text, result_names
from dynbatch.debugging.guarded_step import MOST_VALUES, GuardedStep, described, ranges
from dynbatch.debugging.one_by_one import calls_of
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.base import Node, Shape
from dynbatch.parameter import Array


class GuardedRegion(GuardedStep):
    """A region that is looked at call by call: forward from the first, backward from the last."""

    __slots__ = ()
    nodes: Sequence[RegionNode]

    @property
    def _run(self) -> RegionRun:
        run: RegionRun = self.batch.memo["run"]
        return run

    def _refuse(
        self, when: str, what: str, flat: Array, nodes: Sequence[Node], shapes: Sequence[Shape]
    ) -> None:
        """As for every step; of its own value, name the call."""
        if when == "forward" and nodes[0] is self.nodes[0]:
            region = self.nodes[0].region
            for number, row, call in calls_of(region):
                group = region.groups[number]
                first = group.offset + row * group.cell.width
                self._look_at_results(when, "its {}", flat[first:], number, row, call)
        super()._refuse(when, what, flat, nodes, shapes)

    def _look_at_gradients(self, arena: Array, when: str) -> None:
        """Those inside the region, the last call first; then those it gives."""
        self.executor.flush()
        gradients = self._run.gradients()
        for number, row, call in reversed(calls_of(self.nodes[0].region)):
            own, given = gradients[number]
            what = "the sum of the gradients of its {}"
            self._look_at_results(when, what, to_host(own[row]), number, row, call)
            for k in sorted(given):
                found = to_host(given[k][row])
                if not np.isfinite(found).all():
                    what = f"its gradient for {argument_name(call, k)}"
                    self._refuse_call(when, what, found, number, row, call)
        super()._look_at_gradients(arena, when)

    def _look_at_results(
        self, when: str, what: str, flat: Array, number: int, row: int, call: Call
    ) -> None:
        start = 0
        for name, shape in zip(result_names(call), call.shapes, strict=True):
            own = flat[start : start + int(np.prod(shape))].reshape(shape)
            start += own.size
            if not np.isfinite(own).all():
                self._refuse_call(when, what.format(name), own, number, row, call)

    def _refuse_call(
        self, when: str, what: str, own: Array, number: int, row: int, call: Call
    ) -> None:
        group, arrays = self.nodes[0].region.groups[number], self._run.arrays[number]
        known = [
            f"{argument_name(call, k)} {described(to_host(arrays[f'X{k}'][row]))}"
            for k in range(len(group.arguments))[:MOST_VALUES]
        ]
        if when != "forward":
            dy, _ = self._run.gradients()[number]
            known.append(f"the gradient of what it returned {described(to_host(dy[row]))}")
        known += ranges(group.cell.all_parameters())
        text = calls_text(self.nodes[0])
        self._raise(call, f"{what} {described(own)}", known, when, text)
