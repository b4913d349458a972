"""Checked steps of calls: a region against its calls one by one, `stack` against plain indexing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.region_run import RegionRun
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.cells.calls.table import ValueHandle
from dynbatch.debugging.difference import largest
from dynbatch.debugging.inlined import InlinedRegion, calls_of
from dynbatch.debugging.reference import Flats, on_host
from dynbatch.debugging.step_check import ComparedArray, StepCheck
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import Node
from dynbatch.parameter import Array


class RegionCheck(StepCheck):
    """A region whose cells are inlined, one call after the other, and compared call by call."""

    inlined: InlinedRegion

    @property
    def node(self) -> RegionNode:
        """The step's one node."""
        (node,) = self.step.nodes
        assert isinstance(node, RegionNode)
        return node

    def forward(self, arena: Array, run: Callable[[], None]) -> None:
        run()
        self.launched = self.checker.kernels()
        xs = self._of_nodes(self._inputs(arena, [source.packing for source in self.step.sources]))
        self.inlined = InlinedRegion(self.node, xs, self.step.batch.dtype, self.step.batch.keeps)
        with on_host(self.node.all_parameters(), self.checker.copies):
            self.inlined.forward()
        values, scale = to_host(self.step.block.values().flat), partial(largest, xs)
        for number, row, call in calls_of(self.node.region):
            result = values[self._slice(number, row)]
            pieces = values_of(call, "{}", scale)
            self._compare("forward", pieces, result, self.inlined.results[call])

    def backward(self, arena: Array, run: Callable[[], None]) -> None:
        dy = to_host(self.step.block.gradients().flat).copy()  # the run adds to it, call by call
        run()
        self.launched = self.checker.kernels()
        inputs = self._inputs(arena, self.step.repacked)
        calls = calls_of(self.node.region)
        with on_host(self.node.all_parameters(), self.checker.copies):
            self.inlined.backward({call: dy[self._slice(k, row)] for k, row, call in calls})
        gradients = self.inlined.gradients
        dys = [dy, *[gradients[call] for _, _, call in calls]]
        self._compare_calls(partial(largest, dys))
        for x, found, is_wanted in zip(
            self.node.inputs, self._given_to_nodes(arena), self._wanted_nodes(), strict=True
        ):
            if found is not None and is_wanted:
                what = f"gradient of {x.label()}"
                piece = ComparedArray(self.node, what, x.shape, partial(largest, dys))
                self._compare("backward", [piece], found, gradients[x])
        self._compare_parameters(self.inlined.parameters, dys, inputs)

    def _slice(self, number: int, row: int) -> slice:
        """Where the region's value has what the call in a row of a group returned."""
        group = self.node.region.groups[number]
        first = group.offset + row * group.cell.width
        return slice(first, first + group.cell.width)

    def _compare_calls(self, scale: Callable[[], float]) -> None:
        """Gradients of what calls returned and of what they were given, the last call first."""
        run: RegionRun = self.step.batch.memo["run"]
        of_groups = run.gradients()
        for number, row, call in reversed(calls_of(self.node.region)):
            results, arguments = of_groups[number]
            pieces = values_of(call, "gradient of {}, the sum over its readers,", scale)
            expected = self.inlined.gradients[call]
            self._compare("backward", pieces, to_host(results[row]), expected)
            summaries = self.node.region.groups[number].cell.program.summaries
            streams = [*call.origin.trace.arguments, *summaries]
            for k in sorted(arguments):
                found = to_host(arguments[k][row])
                expected = self.inlined.arguments[call].get(streams[k].index, np.zeros_like(found))
                what = f"gradient for {argument_name(call, k)}"
                piece = ComparedArray(call, what, found.shape, scale)
                self._compare("backward", [piece], found, expected)

    # Each input node once, where the region has it in several sources -----------------------------

    def _of_nodes(self, flats: Flats) -> list[Array]:
        """Copies, since the memory may have other values when backward comes."""
        found: dict[Node, Array] = {}
        for source, flat in zip(self.step.sources, flats, strict=True):
            assert flat is not None
            start = 0
            for x in source.nodes:
                found.setdefault(x, flat[start : start + x.rows * x.width])
                start += x.rows * x.width
        return [found[x].copy() for x in self.node.inputs]

    def _wanted_nodes(self) -> list[bool]:
        """Whether all sources that a node is in get a gradient: if it carries one, they do."""
        nowhere = {
            x
            for source, wanted in zip(self.step.sources, self._wanted(), strict=True)
            if not wanted
            for x in source.nodes
        }
        return [x not in nowhere for x in self.node.inputs]

    def _given_to_nodes(self, arena: Array) -> list[Array | None]:
        """The gradients that the region gives to its inputs, summed over its sources."""
        found: dict[Node, Array] = {}
        for source, view in zip(self.step.sources, self.step.target_views(arena), strict=True):
            if view is None:
                continue
            flat, start = to_host(view.flat), 0
            for x in source.nodes:
                own = flat[start : start + x.rows * x.width]
                found[x] = found[x] + own if x in found else own
                start += own.size
        return [found.get(x) for x in self.node.inputs]

    def _batch_text(self) -> str:
        return calls_text(self.node)


class StackCheck(StepCheck):
    """Rows of calls, against plain indexing."""

    def forward(self, arena: Array, run: Callable[[], None]) -> None:
        run()
        self.launched = self.checker.kernels()
        values = {
            source.nodes[0]: to_host(source.nodes[0]._block.values().flat)
            for source in self.step.sources
        }
        expected = [values[home][places] for _, home, places in self._rows()]
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
        for _, home, places in self._rows():
            sums[home][places] += dy[start : start + places.size]
            start += places.size
        for source, view in zip(self.step.sources, self.step.target_views(arena), strict=True):
            if view is not None:
                (home,) = source.nodes
                what, scale = f"gradient of {home.label()}", partial(largest, [dy])
                pieces = [ComparedArray(self.step.nodes[0], what, home.shape, scale)]
                self._compare("backward", pieces, to_host(view.flat), sums[home])

    def _rows(self) -> Any:
        """Of each row: its node, the region it comes from, and the elements there."""
        for node in self.step.nodes:
            assert isinstance(node, StackCalls)
            for result in node.results:
                table, value = result.origin, result.first + node.leaf
                run = table.runs[table.run_of[result.row]]
                first = run.element(int(table.position[result.row]), value)
                yield node, run.node, first + np.arange(table.widths[value] or 1)


def values_of(call: ValueHandle, what: str, scale: Callable[[], float]) -> list[ComparedArray]:
    """A piece for each of the values that a call returned; `what` is told of each."""
    names = result_names(call)
    return [
        ComparedArray(call, what.format(name), shape, scale)
        for name, shape in zip(names, call.shapes, strict=True)
    ]


def result_names(call: ValueHandle) -> list[str]:
    """What messages call the values that a call returned."""
    count = len(call.shapes)
    return ["result"] if count == 1 else [f"result {k}" for k in range(count)]


def calls_text(node: RegionNode) -> str:
    """How many calls in how many batches, and of which cells."""
    batches = len(node.region.batches)
    return f"{batches} batch{'es' * (batches > 1)} of {node.region.count} {node.label()}"


def argument_name(call: ValueHandle, stream: int) -> str:
    """Which argument a stream of a call's table is, and which of its values."""
    names = [
        f"argument {place}" + (f"[{leaf}]" if count > 1 else "")
        for place, count in enumerate(call.origin.forms)
        for leaf in range(count)
    ]
    matrices = call.origin.matrices
    vectors = [name for name, is_matrix in zip(names, matrices, strict=True) if not is_matrix]
    return vectors[stream] if stream < len(vectors) else "what follows from its memory"
