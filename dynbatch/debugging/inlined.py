"""`InlinedRegion`: runs a region's calls one by one, with the cell's operators as plain nodes.

`Graph(check=True)` compares a region with it. It uses neither the region's plan nor the cell's
generated code: what a call was given is read off the table of calls, and what the cell does are the
operators that it built when it was traced, run as `ReferenceRun` runs any other node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cells.calls.arguments import TupleArgument
from dynbatch.cells.calls.compiled_step import split_step
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.cells.calls.table import CallTable, ValueHandle
from dynbatch.compiler.trace import Placeholder, Section, TraceGraph
from dynbatch.debugging.reference import (
    FlatGradients,
    Flats,
    Move,
    Moves,
    Readable,
    Reference,
    ReferenceRun,
    Totals,
    add_to,
)
from dynbatch.debugging.step_arrays import calls_of, place_of
from dynbatch.kernels.arrays import split
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural

Values = dict[Node, Array]
"""Values or gradients, flat."""

Terms = list[tuple[Node, slice]]
"""The inputs of a region, or itself, whose values are summed, and which of their elements."""


class InlinedRegion(Reference):
    """The calls of one region, run on the host from the values of the region's inputs.

    Args:
        groups: the region alone.
        keeps:  whether a backward may follow.
    """

    def __init__(self, groups: Sequence[Sequence[Any]], dtype: DType, keeps: bool) -> None:
        ((self._node,),) = groups
        self._region: CallRegion = self._node.region
        self._dtype = dtype
        self._keeps = keeps
        self._inputs = {x: x.rows * x.width for nodes in self._region.sources for x in nodes}
        self._calls = calls_of(self._region)
        self._loops = {g.table: split_step(g.table.trace, frozenset()) for g in self._region.groups}
        self._runs: dict[Node, InlinedCall] = {}

    def forward(self, xs: Flats) -> list[Array]:
        """The region's value: the results of call after call."""
        y = np.full(self._region.size, np.nan, self._dtype)
        values: Values = {self._node: y}
        for nodes, x in zip(self._region.sources, xs, strict=True):
            assert x is not None
            values.update(zip(nodes, split(x, [(self._inputs[n],) for n in nodes]), strict=True))
        for number, row, call in self._calls:
            run = InlinedCall(self._read(call), self._loops[call.origin].loop, values, self._dtype)
            results = [run.values[run.nodes[x.index]] for x in call.origin.trace.outputs]
            y[self._region.groups[number].results.of_call(row)] = np.concatenate(results)
            if self._keeps:
                self._runs[call] = run
        return [y]

    def backward(self, readable: Readable) -> FlatGradients:
        """Run every call backward, the last one first."""
        dxs: dict[Any, Array] = {x: np.zeros(n, self._dtype) for x, n in self._inputs.items()}
        results = dxs[self._node] = readable.dy.copy()
        totals: Totals = {}
        for number, row, call in reversed(self._calls):
            group, trace = self._region.groups[number], call.origin.trace
            # The call's gradient is complete: all calls that read it are later and have run back.
            dys = dxs[call] = results[group.results.of_call(row)]
            run = self._runs[call]
            run.backward(split(dys, [(x.width,) for x in trace.outputs]), trace.outputs, totals)
            for x, terms in run.read:
                dx = run.gradients.get(run.nodes[x.index])
                for node, elements_there in terms if dx is not None else ():
                    dxs[node][elements_there] += dx
            for k, x in enumerate([*trace.arguments, *group.cell.program.summaries]):
                if run.nodes[x.index] in run.gradients:
                    dxs[call, k] = run.gradients[run.nodes[x.index]]
        return FlatGradients(dxs, totals, [results])

    def _read(self, call: ValueHandle) -> Iterator[tuple[Node, Terms]]:
        """The traced values that a call's operators read, and where each comes from."""
        table, trace, parts = call.origin, call.origin.trace, self._loops[call.origin]
        leaves = [*_leaves(call)]
        memories = tuple([origins[0][0] for origins, is_matrix in leaves if is_matrix])
        read = [x for node in parts.loop for x in node.inputs] + list(trace.outputs)
        for x in {x: None for x in read if parts.sections[x.index] is Section.MEMORY}:
            hoisted = table.hoisted
            of_memory = x.index in trace.of_memory
            nodes = hoisted.of_memories[memories] if of_memory else hoisted.constants
            yield x, [(hoisted.node_among(self._inputs, nodes, x), slice(None))]
        vectors = [origins for origins, is_matrix in leaves if not is_matrix]
        for x, origins in zip(trace.arguments, vectors, strict=True):
            starts = [
                place_of(origin, row, leaf)
                if isinstance(origin, CallTable)
                else (origin, row * x.width)
                for origin, row, leaf in origins
                if origin is not None
            ]
            yield x, [(node, slice(start, start + x.width)) for node, start in starts]


class InlinedCall:
    """One call's operators as plain nodes, which have run forward.

    Attributes:
        read:      what they read besides each other: traced values, and the terms of each.
        nodes:     in place of traced ones, by their index.
        values:    of the nodes, and `gradients`: after backward.
    """

    def __init__(
        self,
        read: Iterator[tuple[Node, Terms]],
        loop: Sequence[Operation],
        values_there: Values,
        dtype: DType,
    ) -> None:
        graph = TraceGraph(dtype)
        self.read = [*read]
        self.nodes: dict[int, Operation] = {}
        self.values: Values = {}
        self.gradients: Values = {}
        for number, (x, terms) in enumerate(self.read):
            rows = terms[0][0].rows if x.ndim == 2 else None
            shape = x.shape if rows is None else (rows, x.width)
            leaf = Placeholder(graph=graph, role=Section.ARGUMENT, number=number, traced=shape)
            parts = [values_there[origin][there] for origin, there in terms]
            self.nodes[x.index] = leaf
            self.values[leaf] = sum(parts[1:], parts[0]) if parts else np.zeros(x.width, dtype)
        self._runs: list[tuple[Operation, list[list[Any]], Flats, Reference]] = []
        for traced in loop:
            node = traced.rebuild(*[self.nodes[x.index] for x in traced.inputs])
            assert isinstance(node, Operation)
            run: Reference = ReferenceRun([[node]], dtype, keeps=True)
            sources = type(node).sources([node])
            if isinstance(node, Structural):
                run, sources = moves_of(node), [[x] for x in node.inputs]
            xs = [np.concatenate([self.values[x] for x in nodes]) for nodes in sources]
            self.nodes[traced.index] = node
            (self.values[node],) = run.forward(xs)
            self._runs.append((node, sources, xs, run))

    def backward(self, dys: Sequence[Array], outputs: Sequence[Node], totals: Totals) -> None:
        """Find the gradients of all nodes, and add those of parameters to `totals`."""
        for x, dy in zip(outputs, dys, strict=True):
            self._add(self.nodes[x.index], dy)
        for node, sources, xs, run in reversed(self._runs):
            if node not in self.gradients or not node.differentiable:
                continue
            retains = node.retains
            inputs = [x if retains.input(k) else None for k, x in enumerate(xs)]
            output = self.values[node] if retains.output else None
            wanted = [any([x.differentiable for x in nodes]) for nodes in sources]
            gradients = run.backward(Readable(inputs, output, self.gradients[node], [], wanted))
            for position, packed in gradients.of_inputs.items():
                parts = split(packed, [(x.rows * x.width,) for x in sources[position]])
                for x, dx in zip(sources[position], parts, strict=True):
                    self._add(x, dx)
            for parameter, gradient in gradients.of_parameters.values():
                add_to(totals, parameter, gradient)

    def _add(self, node: Node, dx: Array) -> None:
        known = self.gradients.get(node)
        self.gradients[node] = dx.copy() if known is None else known + dx


def moves_of(node: Structural) -> Moves:
    """A structural operator on values of its inputs, one by one."""
    number = {x: k for k, x in enumerate(node.inputs)}
    moves = [(number[r.source], *r.elements()) for r in node.rectangles_of(node)]
    sizes = [x.rows * x.width for x in node.inputs]
    return Moves(moves, sizes, node.rows * node.width, node.graph.dtype)


def stacked_rows(groups: Sequence[Sequence[StackCalls]], dtype: DType, keeps: bool) -> Moves:
    """Results of calls as rows of matrices, read from the regions that have run them."""
    (nodes,) = groups
    regions = [region for (region,) in StackCalls.sources(nodes)]
    moves: list[Move] = []
    size = 0
    for stacked in nodes:
        for result in stacked.results:
            table, leaf = result.origin, result.first + stacked.leaf
            region, start = place_of(table, result.row, leaf)
            here = size + np.arange(table.widths[leaf] or 1)
            moves.append((regions.index(region), start - size + here, here))
            size += here.size
    return Moves(moves, [region.width for region in regions], size, dtype)


Origin = tuple[Any, int, int]
"""Where a value comes from (a table of calls, a node, or None for zeros), row, and number there."""


def _leaves(call: ValueHandle) -> Iterator[tuple[list[Origin], bool]]:
    table = call.origin
    matrices = iter(table.matrices)
    for column, count in enumerate(table.forms):
        (argument,) = table.arguments(column, [call.row])
        for leaf in range(count):
            yield list(_origins(argument, leaf)), next(matrices)


def _origins(argument: Any, leaf: int) -> Iterator[Origin]:
    if isinstance(argument, TupleArgument):
        yield from _origins(argument.members[leaf], 0)
    elif isinstance(argument, SumArgument):
        for member in argument.members:
            yield from _origins(member, leaf)
    else:
        yield argument.origin, argument.row, argument.first + leaf
