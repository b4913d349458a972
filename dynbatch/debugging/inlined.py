"""`InlinedRegion`: runs a region's calls one by one, with the cell's operators as plain nodes.

`Graph(check=True)` compares a region with it. It uses neither the region's plan nor the cell's
generated code: what a call was given is read off the table of calls, and what the cell does are the
operators that it built when it was traced, run as `ReferenceRun` runs any other node.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cells.calls.arguments import TupleArgument
from dynbatch.cells.calls.compiled_step import split_step
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.table import CallTable, ValueHandle
from dynbatch.compiler.trace import Placeholder, Section, TraceGraph
from dynbatch.debugging.reference import ReferenceRun, elements, totals
from dynbatch.debugging.region_calls import calls_of
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural
from dynbatch.parameter import Parameter

Values = dict[int, Array]
"""Values or gradients of traced nodes, flat, by index."""

Terms = list[tuple[Node, slice]]
"""The inputs and calls whose values are summed, and which of their elements."""


class InlinedRegion:
    """The calls of one region, run on the host from the values of the region's inputs.

    Args:
        keeps: whether a backward may follow.

    Attributes:
        values:     of each input, and what each call returned, side by side.
        gradients:  after backward, of the inputs and of what each call returned.
        arguments:  after backward, by call the gradients of its traced arguments.
        parameters: after backward, the gradients of parameters by uid.
    """

    def __init__(
        self, node: RegionNode, inputs: Sequence[Array], dtype: DType, keeps: bool
    ) -> None:
        self._inputs = node.inputs
        self._dtype = dtype
        self._keeps = keeps
        self._calls = [call for _, _, call in calls_of(node.region)]
        self._cells = {g.table: InlinedCell(g.table, dtype) for g in node.region.groups}
        self._given: dict[ValueHandle, list[tuple[Node, Terms]]] = {}
        self._runs: dict[ValueHandle, list[OperatorRun]] = {}
        self.values: dict[Node, Array] = dict(zip(node.inputs, inputs, strict=True))
        self.gradients: dict[Node, Array] = {}
        self.arguments: dict[ValueHandle, Values] = {}
        self.parameters: dict[int, tuple[Parameter, Array]] = {}

    def forward(self) -> None:
        members = set(self._calls)
        for call in self._calls:
            cell = self._cells[call.origin]
            inputs = [*self._hoisted(call, cell), *self._arguments(call, cell, members)]
            values = {x.index: self._sum(terms, x) for x, terms in inputs}
            rows = [terms[0][0].rows for x, terms in inputs if x.ndim == 2]
            runs = [OperatorRun(operator, values) for operator in cell.operators(rows)]
            self.values[call] = np.concatenate([values[x.index] for x in cell.trace.outputs])
            if self._keeps:
                self._given[call], self._runs[call] = inputs, runs

    def backward(self, dys: Mapping[ValueHandle, Array]) -> None:
        """Run every call backward, the last one first.

        Args:
            dys: by call the gradient of what it returned, without that of its readers here.
        """
        self.gradients = {x: np.zeros_like(self.values[x]) for x in self._inputs}
        self.gradients.update({call: dy.copy() for call, dy in dys.items()})
        self.parameters = {}
        for call in reversed(self._calls):
            gradients = self.arguments[call] = {}
            outputs = self._cells[call.origin].trace.outputs
            ends = np.cumsum([x.width for x in outputs])
            for x, dy in zip(outputs, np.split(self.gradients[call], ends[:-1]), strict=True):
                _add(gradients, x.index, dy)
            # The call's gradient is complete: all calls that read it are later and have run back.
            for run in reversed(self._runs[call]):
                for uid, (parameter, array) in run.backward(gradients).items():
                    known = self.parameters.get(uid)
                    array = array if known is None else known[1] + array
                    self.parameters[uid] = (parameter, array)
            for x, terms in self._given[call]:
                if x.index in gradients:
                    for node, elements in terms:
                        self.gradients[node][elements] += gradients[x.index]

    def _sum(self, terms: Terms, x: Node) -> Array:
        values = [self.values[node][elements] for node, elements in terms]
        return sum(values[1:], values[0]) if values else np.zeros(x.width, self._dtype)

    def _hoisted(self, call: ValueHandle, cell: InlinedCell) -> Iterator[tuple[Node, Terms]]:
        """Values that a call reads besides its arguments, and the region's input for each."""
        hoisted = call.origin.hoisted
        memories = tuple([terms[0][0] for terms, is_matrix in _leaves(call) if is_matrix])
        for x in cell.hoisted:
            of_memory = x.index in cell.trace.of_memory
            nodes = hoisted.of_memories[memories] if of_memory else hoisted.constants
            yield x, [(hoisted.node_among(self.values, nodes, x), slice(None))]

    def _arguments(
        self, call: ValueHandle, cell: InlinedCell, members: Container[Node]
    ) -> Iterator[tuple[Node, Terms]]:
        vectors = [terms for terms, is_matrix in _leaves(call) if not is_matrix]
        for x, terms in zip(cell.trace.arguments, vectors, strict=True):
            places: Terms = []
            for origin, row, leaf in terms:
                node, start = origin, row * x.width
                if isinstance(origin, CallTable):
                    node = origin.call(row)
                    start = sum([width or 1 for width in origin.widths[:leaf]])
                    if node not in members:  # a region ran it before
                        node, results = origin.run(row)
                        start = results.element(int(origin.position[row]), leaf)
                if origin is not None:
                    places.append((node, slice(start, start + x.width)))
            yield x, places


class InlinedCell:
    """The operators that a call of one table runs.

    Attributes:
        hoisted: what they read besides the arguments: constants, and what follows from memories.
    """

    def __init__(self, table: CallTable, dtype: DType) -> None:
        self.trace = table.trace
        self._dtype = dtype
        parts = split_step(table.trace, frozenset())
        self._loop = parts.loop
        read = [x for node in parts.loop for x in node.inputs] + list(table.trace.outputs)
        hoisted = {x.index: x for x in read if parts.sections[x.index] is Section.MEMORY}
        self.hoisted = list(hoisted.values())
        self._operators: dict[tuple[int, ...], list[Operator]] = {}

    def operators(self, rows: Sequence[int]) -> list[Operator]:
        key = tuple(rows)
        if key not in self._operators:
            matrices = [x.index for x in self.hoisted if x.ndim == 2]
            self._operators[key] = self._make(dict(zip(matrices, rows, strict=True)))
        return self._operators[key]

    def _make(self, rows: Mapping[int, int]) -> list[Operator]:
        """The traced operators. One that reads a memory is made anew, for its number of rows."""
        graph = TraceGraph(self._dtype)
        requires_grad = {x.index for x in [*self.trace.arguments, *self.hoisted]}
        operators = []
        for traced in self._loop:
            node: Node = traced
            if any([x.index in rows for x in traced.inputs]):
                shapes = [(rows[x.index], x.width) if x.index in rows else x.shape
                          for x in traced.inputs]  # fmt: skip
                node = traced.rebuild(*[
                    Placeholder(graph=graph, role=Section.ARGUMENT, number=k, traced=shape)
                    for k, shape in enumerate(shapes)
                ])  # fmt: skip
            assert isinstance(node, Operation)
            operator = Operator(node, traced, requires_grad, self._dtype)
            operators.append(operator)
            if operator.differentiates:
                requires_grad.add(traced.index)
        return operators


class Operator:
    """One operator of a cell: a node that runs, in place of the node `number` of the trace.

    Attributes:
        moves:  of a structural operator: a traced node, elements there, and elements here.
        reads:  of another one the traced nodes that each packed input is made of, by index.
        wanted: for each packed input whether it gets a gradient.
    """

    def __init__(
        self, node: Operation, traced: Operation, requires_grad: Container[int], dtype: DType
    ) -> None:
        index = {x: y.index for x, y in zip(node.inputs, traced.inputs, strict=True)}
        self.node = node
        self.number = traced.index
        self.dtype = dtype
        self.moves: list[tuple[int, Array, Array]] = []
        self.reads: list[list[int]] = []
        if isinstance(node, Structural):
            rectangles = node.rectangles_of(node)
            self.moves = [(index[r.source], *elements(r)) for r in rectangles]
        else:
            self.reads = [[index[x] for x in xs] for xs in type(node).sources([node])]
        self.wanted = [any([k in requires_grad for k in xs]) for xs in self.reads]
        reaches = any([k in requires_grad for k in index.values()])
        self.differentiates = node.differentiable and (reaches or bool(node.parameters()))


class OperatorRun:
    """An operator that has run forward for one call, and what its backward reads."""

    def __init__(self, operator: Operator, values: Values) -> None:
        self._operator = operator
        node, dtype = operator.node, operator.dtype
        if isinstance(node, Structural):
            self._y = np.full(node.rows * node.width, np.nan, dtype)
            for k, there, here in operator.moves:
                self._y[here] = values[k][there]
        else:
            self._xs = [np.concatenate([values[k] for k in xs]) for xs in operator.reads]
            self._run = ReferenceRun([[node]], dtype, keeps=True)
            (self._y,) = self._run.forward(self._xs)
        values[operator.number] = self._y
        self._sizes = {k: values[k].size for xs in operator.reads for k in xs}
        self._sizes.update({k: values[k].size for k, _, _ in operator.moves})

    def backward(self, gradients: Values) -> dict[int, tuple[Parameter, Array]]:
        """Add to the gradients of what it read; the gradients of its parameters."""
        operator = self._operator
        dy = gradients.get(operator.number)
        if dy is None or not operator.differentiates:
            return {}
        for k, there, here in operator.moves:
            dx = np.zeros(self._sizes[k], operator.dtype)
            dx[there] = dy[here]
            _add(gradients, k, dx)
        if isinstance(operator.node, Structural):
            return {}
        retains = operator.node.retains
        inputs = [x if retains.input(k) else None for k, x in enumerate(self._xs)]
        output = self._y if retains.output else None
        dxs, sink = self._run.backward(inputs, output, dy, [], operator.wanted)
        for xs, packed in zip(operator.reads, dxs, strict=True):
            if packed is not None:
                ends = np.cumsum([self._sizes[k] for k in xs])
                for k, dx in zip(xs, np.split(packed, ends[:-1]), strict=True):
                    _add(gradients, k, dx)
        return totals(sink)


def _add(gradients: Values, index: int, dx: Array) -> None:
    known = gradients.get(index)
    gradients[index] = dx.copy() if known is None else known + dx


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
