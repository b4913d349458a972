"""`InlinedRegion`: a region's calls, one after the other, each operator of a cell as a plain node.

`Graph(check=True)` compares a region with it. Nothing is taken over from the region's plan, nor
from the code that was generated for the cell: what a call was given is read off the table of calls,
and what the cell does are the operators that it built when it was traced, run as `ReferenceRun`
runs any other node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import DType
from dynbatch.cells.calls.arguments import TupleArgument
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.step import split_step
from dynbatch.cells.calls.table import CallTable, ValueHandle
from dynbatch.compiler.trace import Placeholder, Section, TraceGraph
from dynbatch.debugging.reference import ReferenceRun, elements, totals
from dynbatch.debugging.region_calls import calls_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural
from dynbatch.parameter import Array, Parameter

Values = dict[int, Array]
"""Values or gradients of traced nodes, flat, by index."""

ParameterSums = dict[int, tuple[Parameter, Array]]


class InlinedRegion:
    """The calls of one region, run on the host from the values of the region's inputs.

    Args:
        keeps: whether a backward may follow.

    Attributes:
        results:   by call what it returned, side by side.
        gradients: after backward, the gradients of the inputs and of what each call returned.
        arguments: after backward, by call the gradients of its traced arguments.
        parameters: after backward, the gradients of parameters by uid.
    """

    def __init__(
        self, node: RegionNode, inputs: Sequence[Array], dtype: DType, keeps: bool
    ) -> None:
        self._keeps = keeps
        self._inputs = dict(zip(node.inputs, inputs, strict=True))
        self._dtype = dtype
        self._calls = [call for _, _, call in calls_of(node.region)]
        self._members = set(self._calls)
        self._cells: dict[CallTable, InlinedCell] = {}
        self._done: dict[ValueHandle, list[OperatorRun]] = {}
        self.results: dict[Node, Array] = {}
        self.gradients: dict[Node, Array] = {}
        self.arguments: dict[ValueHandle, Values] = {}
        self.parameters: ParameterSums = {}

    def forward(self) -> None:
        """Run every call."""
        for call in self._calls:
            cell = self._cell(call.origin)
            values = self._given(call, cell)
            rows = [node.rows for x, node in self._hoisted(call, cell) if x.ndim == 2]
            runs = [OperatorRun(op, values, self._dtype) for op in cell.operators(rows)]
            if self._keeps:
                self._done[call] = runs
            outputs = [values[x.index] for x in cell.trace.outputs]
            self.results[call] = np.concatenate(outputs)

    def backward(self, dys: Mapping[ValueHandle, Array]) -> None:
        """Run every call backward, the last one first.

        Args:
            dys: of each call the gradient of what it returned, without that of its readers here.
        """
        self.gradients = {x: np.zeros_like(value) for x, value in self._inputs.items()}
        self.gradients.update({call: dy.copy() for call, dy in dys.items()})
        self.parameters = {}
        for call in reversed(self._calls):
            cell = self._cell(call.origin)
            gradients: Values = {}
            start = 0
            for x in cell.trace.outputs:
                end = start + x.rows * x.width
                _add(gradients, x, self.gradients[call][start:end])
                start = end
            for run in reversed(self._done[call]):
                self._add_parameters(run.backward(gradients))
            self.arguments[call] = gradients
            self._give_back(call, cell, gradients)

    def _add_parameters(self, sums: ParameterSums) -> None:
        for uid, (parameter, array) in sums.items():
            known = self.parameters.get(uid)
            self.parameters[uid] = (parameter, array if known is None else known[1] + array)

    def _cell(self, table: CallTable) -> InlinedCell:
        if table not in self._cells:
            self._cells[table] = InlinedCell(table, self._dtype)
        return self._cells[table]

    # What a call is given -------------------------------------------------------------------------

    def _given(self, call: ValueHandle, cell: InlinedCell) -> Values:
        """The values of a call's arguments, and of what was hoisted out of it."""
        values = {x.index: self._inputs[node] for x, node in self._hoisted(call, cell)}
        for x, terms in zip(cell.trace.arguments, _vectors(call), strict=True):
            value = values[x.index] = np.zeros(x.width, self._dtype)
            for node, place in self._places(terms, x.width):
                from_call = node in self._members
                value += (self.results if from_call else self._inputs)[node][place]
        return values

    def _give_back(self, call: ValueHandle, cell: InlinedCell, gradients: Values) -> None:
        """Add the gradients of a call's arguments to those of the nodes and calls they are."""
        for x, node in self._hoisted(call, cell):
            if x.index in gradients:
                self.gradients[node] += gradients[x.index]
        for x, terms in zip(cell.trace.arguments, _vectors(call), strict=True):
            if x.index in gradients:
                for node, place in self._places(terms, x.width):
                    self.gradients[node][place] += gradients[x.index]

    def _hoisted(self, call: ValueHandle, cell: InlinedCell) -> Iterator[tuple[Node, Node]]:
        """The traced nodes that are not computed by the call, and the region's input for each."""
        hoisted = call.origin.hoisted
        memories = tuple([terms[0][0] for terms in _matrices(call)])
        for x in cell.hoisted:
            of_memory = x.index in cell.trace.of_memory
            nodes = hoisted.of_memories[memories] if of_memory else hoisted.constants
            yield x, hoisted.node_among(self._inputs, nodes, x)

    def _places(self, terms: Sequence[Term], width: int) -> Iterator[tuple[Node, slice]]:
        """The calls and inputs whose values are summed, and where these lie in them."""
        for origin, row, leaf in terms:
            if origin is None:
                continue
            node, start = origin, row * width
            if isinstance(origin, CallTable):
                node = origin.calls[row]
                if node in self._members:
                    start = sum([width or 1 for width in origin.widths[:leaf]])
                else:
                    run = origin.runs[int(origin.run_of[row])]
                    node, start = run.node, run.element(int(origin.position[row]), leaf)
            yield node, slice(start, start + width)


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
        self._matrices = [x.index for x in self.hoisted if x.ndim == 2]
        self._operators: dict[tuple[int, ...], list[Operator]] = {}

    def operators(self, rows: Sequence[int]) -> list[Operator]:
        """The operators where the hoisted matrices have so many rows."""
        key = tuple(rows)
        if key not in self._operators:
            self._operators[key] = self._make(dict(zip(self._matrices, rows, strict=True)))
        return self._operators[key]

    def _make(self, rows: Mapping[int, int]) -> list[Operator]:
        """The traced operators; those that read a memory anew, for its number of rows."""
        graph = TraceGraph(self._dtype)
        differentiable = {x.index for x in [*self.trace.arguments, *self.hoisted]}
        operators = []
        for node in self._loop:
            passes = node.differentiable and (
                bool(node.parameters()) or any([x.index in differentiable for x in node.inputs])
            )
            made: Node = node
            if any([x.index in rows for x in node.inputs]):
                shapes = [(rows[x.index], x.width) if x.index in rows else x.shape
                          for x in node.inputs]  # fmt: skip
                made = node.rebuild(*[
                    Placeholder(graph=graph, role=Section.ARGUMENT, number=k, traced=shape)
                    for k, shape in enumerate(shapes)
                ])  # fmt: skip
            assert isinstance(made, Operation)
            operators.append(Operator(made, node, passes, frozenset(differentiable)))
            if passes:
                differentiable.add(node.index)
        return operators


class Operator(NamedTuple):
    """One operator of a cell.

    node:   runs, a batch by itself; `traced` is the node of the trace that it stands for.
    passes: whether a gradient passes through it; `differentiable`: indices of nodes that have one.
    """

    node: Operation
    traced: Operation
    passes: bool
    differentiable: frozenset[int]

    def reads(self) -> list[list[Node]]:
        """The traced nodes that each packed input is made of."""
        traced = dict(zip(self.node.inputs, self.traced.inputs, strict=True))
        return [[traced[x] for x in xs] for xs in type(self.node).sources([self.node])]

    def rectangles(self, dtype: DType) -> Iterator[tuple[Node, Array, Array]]:
        """For a structural operator: a traced node it reads, elements there, and elements here."""
        assert isinstance(self.node, Structural)
        traced = dict(zip(self.node.inputs, self.traced.inputs, strict=True))
        for r in self.node.rectangles(Batch([self.node], dtype)):
            yield traced[r.source], *elements(r)


class OperatorRun:
    """An operator that has run forward for one call, and what its backward reads."""

    def __init__(self, operator: Operator, values: Values, dtype: DType) -> None:
        self.operator = operator
        self._dtype = dtype
        node = operator.node
        self._sizes = {x.index: values[x.index].size for x in operator.traced.inputs}
        if isinstance(node, Structural):
            self._y = np.full(node.rows * node.width, np.nan, dtype)
            for x, there, here in operator.rectangles(dtype):
                self._y[here] = values[x.index][there]
        else:
            self._reads = operator.reads()
            self._xs = [np.concatenate([values[x.index] for x in xs]) for xs in self._reads]
            self._run = ReferenceRun([[node]], dtype, keeps=True)
            (self._y,) = self._run.forward(self._xs)
        values[operator.traced.index] = self._y

    def backward(self, gradients: Values) -> ParameterSums:
        """Add to the gradients of what it read; those that it leaves for parameters."""
        dy = gradients.get(self.operator.traced.index)
        if dy is None or not self.operator.passes:
            return {}
        node = self.operator.node
        if isinstance(node, Structural):
            for x, there, here in self.operator.rectangles(self._dtype):
                dx = np.zeros(self._sizes[x.index], self._dtype)
                dx[there] = dy[here]
                _add(gradients, x, dx)
            return {}
        retains = node.retains
        inputs = [x if retains.input(k) else None for k, x in enumerate(self._xs)]
        differentiable = self.operator.differentiable
        wanted = [any([x.index in differentiable for x in xs]) for xs in self._reads]
        output = self._y if retains.output else None
        dxs, sink = self._run.backward(inputs, output, dy, [], wanted)
        for xs, dx_of_all in zip(self._reads, dxs, strict=True):
            if dx_of_all is not None:
                ends = np.cumsum([self._sizes[x.index] for x in xs])
                for x, dx in zip(xs, np.split(dx_of_all, ends[:-1]), strict=True):
                    _add(gradients, x, dx)
        return totals(sink)


def _add(gradients: Values, x: Node, dx: Array) -> None:
    known = gradients.get(x.index)
    gradients[x.index] = dx.copy() if known is None else known + dx


Term = tuple[Any, int, int]
"""Where a value comes from (a table of calls, a node, or None for zeros), row, and number there."""


def _vectors(call: ValueHandle) -> list[list[Term]]:
    """The terms that each vector or scalar given to a call is the sum of."""
    return [terms for terms, is_matrix in _leaves(call) if not is_matrix]


def _matrices(call: ValueHandle) -> list[list[Term]]:
    return [terms for terms, is_matrix in _leaves(call) if is_matrix]


def _leaves(call: ValueHandle) -> Iterator[tuple[list[Term], bool]]:
    table = call.origin
    matrices = iter(table.matrices)
    for column, count in zip(table.columns, table.forms, strict=True):
        for leaf in range(count):
            yield list(_terms(column[call.row], leaf)), next(matrices)


def _terms(given: Any, leaf: int) -> Iterator[Term]:
    if isinstance(given, TupleArgument):
        yield from _terms(given.values[leaf], 0)
    elif isinstance(given, SumArgument):
        for member in given.members:
            yield from _terms(member, leaf)
    else:
        yield given.origin, given.row, given.first + leaf
