"""`StepArrays`: the arrays that a batch step has written, and whose numbers lie where in them.

`Graph(check=True)` compares them with those of a second run, `Graph(guard=True)` looks for NaN and
infinity in them. A region's are taken call by call, so that both name the call of a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from dynbatch.backend import Array
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.table import CallTable, ValueHandle
from dynbatch.kernels.arrays import split
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import Node, Shape
from dynbatch.parameter import Parameter


class NodePart(NamedTuple):
    """The numbers of a node in an array, from `start` on.

    what:   their name in messages, which say "its …" of the node.
    source: the input whose gradient they are, or None.
    """

    node: Node
    what: str
    shape: Shape
    start: int = 0
    source: Any = None

    @property
    def elements(self) -> slice:
        return slice(self.start, self.start + math.prod(self.shape))


class StepArray(NamedTuple):
    """An array on the host, flat, and its parts. The key tells it from others of the step."""

    key: Any
    flat: Array
    parts: Iterable[NodePart]


class StepArrays:
    """The arrays of a step."""

    def __init__(self, step: StepRun) -> None:
        self.step = step

    def values(self) -> Iterator[StepArray]:
        """Values and last states, after forward."""
        for number, block in enumerate(self.step.blocks):
            what = f"last state {number - 1}" if number else "value"
            yield StepArray(number, to_host(block.values().flat), parts_of(block, what))

    def gradients(self, arena: Array) -> Iterator[StepArray]:
        """Gradients that backward wrote: of each packed input, whose position is the key."""
        for position, view in enumerate(self.step.target_views(arena)):
            if view is not None:
                readers = self.step.readers(position)
                named = [(node, f"gradient for {x.label()}", x.shape, x) for node, x in readers]
                yield StepArray(position, to_host(view.values).reshape(-1), one_by_one(named))

    def total(self, block: Block) -> StepArray:
        """The gradient of a block that the step has added to."""
        what = f"gradient, after {self.step.nodes[0].label()} added to it,"
        return StepArray(block, to_host(block.gradients().flat), parts_of(block, what))

    def of_parameter(self, parameter: Parameter, gradient: Array) -> StepArray:
        what = f"gradient for parameter {parameter.name!r}"
        part = NodePart(self.step.nodes[0], what, parameter.shape)
        return StepArray(parameter.uid, gradient.ravel(), [part])

    def batch_text(self) -> str:
        return f"a batch of {len(self.step.nodes)} {self.step.node_type.__name__}"


class RegionArrays(StepArrays):
    """The arrays of a region, call by call."""

    @property
    def node(self) -> RegionNode:
        (node,) = self.step.nodes
        assert isinstance(node, RegionNode)
        return node

    @cached_property
    def calls(self) -> list[tuple[int, int, ValueHandle]]:
        return calls_of(self.node.region)

    def values(self) -> Iterator[StepArray]:
        """The region's value; its parts are the results of calls."""
        groups = self.node.region.groups
        parts = (
            part
            for number, row, call in self.calls
            for part in results_of(call, "{}", groups[number].results.of_call(row).start)
        )
        yield StepArray(0, to_host(self.step.block.values().flat), parts)

    def gradients(self, arena: Array) -> Iterator[StepArray]:
        """From the last call on those of its results and its arguments; then those of inputs.

        The keys are the call, the call with the number of a stream, and the input.
        """
        groups = [group.gradients() for group in self.step.batch.memo["run"].groups]
        for number, row, call in reversed(self.calls):
            results, arguments = groups[number]
            parts = results_of(call, "gradient of {}, the sum over its readers,")
            yield StepArray(call, to_host(results[row]), parts)
            for k in sorted(arguments):
                dx = to_host(arguments[k][row])
                part = NodePart(call, f"gradient for {argument_name(call, k)}", dx.shape)
                yield StepArray((call, k), dx, [part])
        for x, dx in self._gradients_of_inputs(arena):
            part = NodePart(self.node, f"gradient for {x.label()}", x.shape, 0, x)
            yield StepArray(x, dx, [part])

    def _gradients_of_inputs(self, arena: Array) -> Iterator[tuple[Node, Array]]:
        """Each input that requires a gradient, once where the region has it in several sources."""
        sums: dict[Node, Array] = {}
        unwanted: set[Node] = set()
        for source, view in zip(self.step.sources, self.step.target_views(arena), strict=True):
            if view is None:
                unwanted.update(source.nodes)
                continue
            dxs = split(to_host(view.flat), [(x.rows * x.width,) for x in source.nodes])
            for x, dx in zip(source.nodes, dxs, strict=True):
                sums[x] = sums[x] + dx if x in sums else dx
        return iter([(x, dx) for x, dx in sums.items() if x not in unwanted])

    def batch_text(self) -> str:
        count = len(self.node.region.batches)
        return f"{count} batch{'es' * (count > 1)} of {self.node.region.count} {self.node.label()}"


def arrays_of(step: StepRun) -> StepArrays:
    return (RegionArrays if step.node_type is RegionNode else StepArrays)(step)


def one_by_one(parts: Iterable[tuple[Node, str, Shape, Any]], start: int = 0) -> Iterator[NodePart]:
    """Parts that lie one after the other: node, name, shape and source of each."""
    for node, what, shape, source in parts:
        part = NodePart(node, what, shape, start, source)
        start = part.elements.stop
        yield part


def parts_of(block: Block, what: str) -> Iterator[NodePart]:
    """The nodes of a block, or the calls of a region, with one name for the numbers of all."""
    if isinstance(block.nodes[0], RegionNode):
        region = block.nodes[0].region
        for number, row, call in calls_of(region):
            elements = region.groups[number].results.of_call(row)
            yield NodePart(call, what, (elements.stop - elements.start,), elements.start)
        return
    holds_values = block.nodes[0]._block is block  # else it holds last states
    yield from one_by_one(
        [(x, what, x.shape if holds_values else (block.width,), None) for x in block.nodes]
    )


# Calls of a region --------------------------------------------------------------------------------


def calls_of(region: CallRegion) -> list[tuple[int, int, ValueHandle]]:
    """The calls of a region in order of creation: group, row in the group's order, and the call."""
    calls = [
        (number, row, group.table.call(table_row))
        for number, group in enumerate(region.groups)
        for row, table_row in enumerate(group.rows.tolist())
    ]
    return sorted(calls, key=lambda each: each[2].index)


def results_of(call: ValueHandle, what: str, start: int = 0) -> Iterator[NodePart]:
    """The results of a call, from an element on; `{}` in their name is which one it is."""
    count = len(call.shapes)
    names = ["result"] if count == 1 else [f"result {k}" for k in range(count)]
    shapes = zip(names, call.shapes, strict=True)
    return one_by_one([(call, what.format(name), shape, None) for name, shape in shapes], start)


def argument_name(call: ValueHandle, stream: int) -> str:
    """The name of a call's stream: its argument, and the value's number."""
    names = [
        f"argument {number}" + (f"[{leaf}]" if count > 1 else "")
        for number, count in enumerate(call.origin.forms)
        for leaf in range(count)
    ]
    matrices = call.origin.matrices
    vectors = [name for name, is_matrix in zip(names, matrices, strict=True) if not is_matrix]
    return vectors[stream] if stream < len(vectors) else "a value computed from its memory"


def place_of(table: CallTable, row: int, leaf: int) -> tuple[Node, int]:
    """The region that has run a call, and the first element there of one of its values."""
    node, results = table.run(row)
    return node, results.element(int(table.position[row]), leaf)
