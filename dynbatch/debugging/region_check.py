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
from dynbatch.debugging.one_by_one import calls_of, singly
from dynbatch.debugging.reference import Flats, ReferenceRun, on_host, totals
from dynbatch.debugging.step_check import ComparedArray, StepCheck
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.base import Node
from dynbatch.parameter import Array


class RegionCheck(StepCheck):
    """A region whose calls are run again by NumPy, one by one, and compared call by call."""

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
        reference = ReferenceRun(
            [[singly(self.node)]], self.step.batch.dtype, self.step.batch.keeps
        )
        with on_host(self.node.all_parameters(), self.checker.copies):
            (expected,) = reference.forward(xs)
        self.reference = reference if self.step.batch.keeps else None
        found, scale = to_host(self.step.block.values().flat), partial(largest, _present(xs))
        region = self.node.region
        for number, row, call in calls_of(region):
            group = region.groups[number]
            first = group.offset + row * group.cell.width
            own = slice(first, first + group.cell.width)
            self._compare("forward", values_of(call, "{}", scale), found[own], expected[own])

    def backward(self, arena: Array, run: Callable[[], None]) -> None:
        dy = to_host(self.step.block.gradients().flat).copy()  # the run adds to it, call by call
        run()
        self.launched = self.checker.kernels()
        assert self.reference is not None
        inputs = self._inputs(arena, self.step.repacked)
        xs = self._of_nodes(inputs)
        with on_host(self.node.all_parameters(), self.checker.copies):
            dxs, sink = self.reference.backward(xs, None, dy.copy(), [], self._wanted_nodes())
            given = totals(sink)
        oracle: RegionRun = self.reference.batches[0].memo["run"]
        dys = [dy, *[rows for rows, _ in oracle.gradients()]]
        self._compare_calls(self.step.batch.memo["run"], oracle, partial(largest, dys))
        found = self._given_to_nodes(arena)
        for x, own, wanted in zip(self.node.inputs, found, dxs, strict=True):
            if own is not None and wanted is not None:
                what = f"gradient of {x.label()}"
                piece = ComparedArray(self.node, what, x.shape, partial(largest, dys))
                self._compare("backward", [piece], own, wanted)
        self._compare_parameters(given, dys, inputs)

    def _compare_calls(self, run: RegionRun, twin: RegionRun, scale: Callable[[], float]) -> None:
        """Gradients of what calls returned and of what they were given, the last call first."""
        pairs = list(zip(run.gradients(), twin.gradients(), strict=True))
        for number, row, call in reversed(calls_of(self.node.region)):
            (own, reached), (wanted, others) = pairs[number]
            pieces = values_of(call, "gradient of {}, the sum over its readers,", scale)
            self._compare("backward", pieces, to_host(own[row]), wanted[row])
            for k in sorted(reached.keys() & others.keys()):
                found, expected = to_host(reached[k][row]), others[k][row]
                what = f"gradient for {argument_name(call, k)}"
                piece = ComparedArray(call, what, found.shape, scale)
                self._compare("backward", [piece], found, expected)

    # Each input node once, where the region has it in several sources -----------------------------

    def _of_nodes(self, flats: Flats) -> list[Array | None]:
        found: dict[Node, Array] = {}
        for source, flat in zip(self.step.sources, flats, strict=True):
            assert flat is not None
            start = 0
            for x in source.nodes:
                found.setdefault(x, flat[start : start + x.rows * x.width])
                start += x.rows * x.width
        return [found[x] for x in self.node.inputs]

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


def _present(flats: Flats) -> list[Array]:
    return [flat for flat in flats if flat is not None]
