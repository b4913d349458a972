"""Checks calls: a region against its inlined cells, `stack` against plain indexing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.cells.calls.table import ValueHandle
from dynbatch.debugging.difference import Checker, scale_of
from dynbatch.debugging.inlined import InlinedRegion
from dynbatch.debugging.reference import on_host
from dynbatch.debugging.region_calls import (
    argument_name,
    calls_of,
    calls_text,
    gradients_of_calls,
    region_node,
    result_names,
)
from dynbatch.debugging.step_check import ComparedArray, StepCheck
from dynbatch.kernels.arrays import split
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import Node


class RegionCheck(StepCheck):
    """Compares a region, call by call, with its inlined cells."""

    inlined: InlinedRegion

    def __init__(self, step: StepRun, checker: Checker) -> None:
        super().__init__(step, checker)
        self.node = region_node(step)
        self.calls = calls_of(self.node.region)

    def forward(self, arena: Array, run: Callable[[], None]) -> None:
        run()
        self.launched = self.checker.kernels()
        self._inputs(arena, self.step.placement.packings)
        # Copies: when backward comes, their memory may hold other values.
        xs = [to_host(x._block.node_values(x)).ravel().copy() for x in self.node.inputs]
        self.inlined = InlinedRegion(self.node, xs, self.step.batch.dtype, self.step.batch.keeps)
        with on_host(self.node.all_parameters(), self.checker.copies):
            self.inlined.forward()
        values, scale = to_host(self.step.block.values().flat), scale_of(xs)
        for number, row, call in self.calls:
            result = values[self.node.region.groups[number].results.of_call(row)]
            pieces = values_of(call, "{}", scale)
            self._compare("forward", pieces, result, self.inlined.values[call])

    def backward(self, arena: Array, run: Callable[[], None]) -> None:
        dy = to_host(self.step.block.gradients().flat).copy()  # the run adds to it, call by call
        run()
        self.launched = self.checker.kernels()
        inputs = self._inputs(arena, self.step.backward_placement.packings)
        with on_host(self.node.all_parameters(), self.checker.copies):
            groups = self.node.region.groups
            self.inlined.backward(
                {call: dy[groups[k].results.of_call(row)] for k, row, call in self.calls}
            )
        gradients = self.inlined.gradients
        dys = [dy, *[gradients[call] for _, _, call in self.calls]]
        scale = scale_of(dys)
        self._compare_calls(scale)
        for x, dx, is_wanted in zip(
            self.node.inputs, self._gradients_of_nodes(arena), self._wanted_nodes(), strict=True
        ):
            if dx is not None and is_wanted:
                what = f"gradient of {x.label()}"
                piece = ComparedArray(self.node, what, x.shape, scale)
                self._compare("backward", [piece], dx, gradients[x])
        self._compare_parameters(self.inlined.parameters, dys, inputs)

    def _compare_calls(self, scale: Callable[[], float]) -> None:
        """Compare gradients of results and of arguments, the last call first."""
        for number, _, call, results, arguments in gradients_of_calls(self.step):
            pieces = values_of(call, "gradient of {}, the sum over its readers,", scale)
            expected = self.inlined.gradients[call]
            self._compare("backward", pieces, results, expected)
            summaries = self.node.region.groups[number].cell.program.summaries
            streams = [*call.origin.trace.arguments, *summaries]
            for k, dx in arguments.items():
                expected = self.inlined.arguments[call].get(streams[k].index, np.zeros_like(dx))
                what = f"gradient for {argument_name(call, k)}"
                piece = ComparedArray(call, what, dx.shape, scale)
                self._compare("backward", [piece], dx, expected)

    # Each input node once, where the region has it in several sources -----------------------------

    def _wanted_nodes(self) -> list[bool]:
        """Whether all sources that hold an input get a gradient, as they do if it requires one."""
        unwanted = {
            x
            for source, wanted in zip(self.step.sources, self._wanted(), strict=True)
            if not wanted
            for x in source.nodes
        }
        return [x not in unwanted for x in self.node.inputs]

    def _gradients_of_nodes(self, arena: Array) -> list[Array | None]:
        """The gradients of the inputs, summed over the region's sources."""
        gradients: dict[Node, Array] = {}
        for source, view in zip(self.step.sources, self.step.target_views(arena), strict=True):
            if view is None:
                continue
            dxs = split(to_host(view.flat), [(x.rows * x.width,) for x in source.nodes])
            for x, dx in zip(source.nodes, dxs, strict=True):
                gradients[x] = gradients[x] + dx if x in gradients else dx
        return [gradients.get(x) for x in self.node.inputs]

    def _batch_text(self) -> str:
        return calls_text(self.node)


class StackCheck(StepCheck):
    """Compares stacked rows of calls with plain indexing."""

    def forward(self, arena: Array, run: Callable[[], None]) -> None:
        run()
        self.launched = self.checker.kernels()
        values = {
            source.nodes[0]: to_host(source.nodes[0]._block.values().flat)
            for source in self.step.sources
        }
        expected = [values[region][elements] for region, elements in self._rows()]
        pieces = [ComparedArray(node, "value", node.shape, float) for node in self.step.nodes]
        self._compare(
            "forward", pieces, to_host(self.step.block.values().flat), np.concatenate(expected)
        )

    def backward(self, arena: Array, run: Callable[[], None]) -> None:
        run()
        self.launched = self.checker.kernels()
        dy = to_host(self.step.block.gradients().flat)
        sums = {source.nodes[0]: np.zeros(source.size, dy.dtype) for source in self.step.sources}
        start = 0
        for region, elements in self._rows():
            sums[region][elements] += dy[start : start + elements.size]
            start += elements.size
        for source, view in zip(self.step.sources, self.step.target_views(arena), strict=True):
            if view is not None:
                (region,) = source.nodes
                what, scale = f"gradient of {region.label()}", scale_of([dy])
                pieces = [ComparedArray(self.step.nodes[0], what, region.shape, scale)]
                self._compare("backward", pieces, to_host(view.flat), sums[region])

    def _rows(self) -> Iterator[tuple[Node, Array]]:
        for stacked in self.step.nodes:
            assert isinstance(stacked, StackCalls)
            for result in stacked.results:
                table, value = result.origin, result.first + stacked.leaf
                node, results = table.run(result.row)
                first = results.element(int(table.position[result.row]), value)
                yield node, first + np.arange(table.widths[value] or 1)


def values_of(call: ValueHandle, what: str, scale: Callable[[], float]) -> list[ComparedArray]:
    names = result_names(call)
    return [
        ComparedArray(call, what.format(name), shape, scale)
        for name, shape in zip(names, call.shapes, strict=True)
    ]
