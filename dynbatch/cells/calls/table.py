"""`CallTable`: all calls of one cell, with one set of forms and parameters, in one graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dynbatch.cells.calls.arguments import NodeArgument, SumArgument, TupleArgument
from dynbatch.cells.calls.call import Call, TuplePart, ValueHandle, places_of
from dynbatch.cells.calls.step import CompiledStep, Form, MatrixForm, StepTrace, leaves
from dynbatch.compiler.prologue import copy_of_source, once
from dynbatch.errors import GraphError
from dynbatch.nodes.base import Node
from dynbatch.nodes.shape.indexing import Row
from dynbatch.parameter import Array

if TYPE_CHECKING:
    from dynbatch.cells.calls.region_node import RegionNode
    from dynbatch.cells.cell import Cell

_kinds = itertools.count(1)
NOT_RUN = -1


class Kinds:
    """Integers for the forms of one graph: equal ones are equal forms, and no other graph's."""

    def __init__(self) -> None:
        self._known: dict[Form, int] = {}

    def of(self, form: Form) -> int:
        """The integer of a form."""
        found = self._known.get(form)
        if found is None:
            found = self._known[form] = next(_kinds)
        return found


class CallTable:
    """Calls as columns: what each was given, and once it has run, where its values are.

    Attributes:
        forms:   leaves of each argument of the cell; `matrices`: which of all leaves are matrices.
        columns: for each argument, what each call was given.
        calls:   the calls; a call's row is its place here.
        kinds, parts: integers of the leaves' forms; where the parts of the returned tuple are.
        adds:    what appends to each column, and to the calls; and the nodes of the graph.
        form, widths: of what a call returns, and of its leaves (0 for a scalar).
        ready, depth: phase of each call (see `call.ValueHandle`), and how many calls of this
                 table it waits for, one after the other; as far as `update` has been called.
        held:    the keys by which the cell finds the table, and the parameters whose identity is
                 part of them, so that it stays their own.
        known:   identities of arguments that hold matrices, whose light values the cell knows.
        constants, of_memories: nodes in place of traced ones, by the index of these: for all calls,
                 and for those that are given the same matrices.
        replaced: of each such node that was made because the one before was freed, that one.
        runs, run_of, position: regions that have run calls; of each call which, and its row there.
        marked:  which calls the run that is being planned needs (see `batcher.schedule.ancestors`).
    """

    def __init__(
        self,
        cell: Cell,
        trace: StepTrace,
        forms: Sequence[Form],
        graph: Any,
        forget: Callable[[CallTable], None],
    ) -> None:
        self.cell = cell
        self.trace = trace
        self.graph = graph
        self.form = trace.form
        self.widths = leaves(trace.form)
        self.kind: int = graph.kinds.of(trace.form)
        self.kinds = [graph.kinds.of(width) for width in self.widths]
        is_tuple = isinstance(self.form, tuple)
        self.parts = places_of(self.form, 0, graph.kinds) if is_tuple else []
        self.nodes: list[Node] = graph.nodes
        self.forms = [len(leaves(form)) for form in forms]
        self.matrices = [isinstance(leaf, MatrixForm) for form in forms for leaf in leaves(form)]
        self.columns: list[list[Any]] = [[] for _ in forms]
        self.calls: list[Call] = []
        self.adds = (*[column.append for column in self.columns], self.calls.append, graph.nodes)
        self.constants: dict[int, Node] = {}
        self.of_memories: dict[tuple[Node, ...], dict[int, Node]] = {}
        self.replaced: dict[Node, Node] = {}
        self.runs: list[RegionNode] = []
        self.ready: Array = np.empty(0, np.int64)
        self.depth: Array = np.empty(0, np.int64)
        self.run_of: Array = np.empty(0, np.int64)
        self.position: Array = np.empty(0, np.int64)
        self.marked: Array = np.empty(0, bool)
        self.held: list[tuple[tuple[int, ...], Any]] = []
        self.known: list[int] = []
        self._forget = forget

    def update(self) -> None:
        """Bring the arrays up to the calls recorded so far."""
        while self.runs and self.runs[-1]._block is None:  # that run failed
            self.runs.pop()
            self.run_of[self.run_of == len(self.runs)] = NOT_RUN
        known, count = self.ready.size, len(self.calls)
        if known == count:
            return
        fresh = self.calls[known:]
        ready = np.array([call.ready for call in fresh], np.int64)
        depth = np.array([call.depth for call in fresh], np.int64)
        nothing = np.full(count - known, NOT_RUN, np.int64)
        self.ready = np.concatenate([self.ready, ready])
        self.depth = np.concatenate([self.depth, depth])
        self.run_of = np.concatenate([self.run_of, nothing])
        self.position = np.concatenate([self.position, nothing])

    def waiting(self) -> list[Call]:
        """The calls that have not run."""
        self.update()
        return [self.calls[row] for row in np.flatnonzero(self.run_of == NOT_RUN)]

    def waiting_by_phase(self) -> Iterator[tuple[int, Array]]:
        """The rows of the calls that have not run, phase by phase, as far as `update` went."""
        rows = np.flatnonzero(self.run_of == NOT_RUN)
        rows = rows[np.argsort(self.ready[rows], kind="stable")]
        phases, starts = np.unique(self.ready[rows], return_index=True)
        return zip(phases.tolist(), np.split(rows, starts[1:]), strict=False)

    def home(self, row: int) -> RegionNode | None:
        """The region that has run a call, or None."""
        run = self.run_of[row] if row < self.run_of.size else NOT_RUN
        if run == NOT_RUN:
            return None
        home = self.runs[run]
        return home if home._block is not None else None

    def given(self, value: Any) -> list[Call]:
        """The calls that were given this very value, alone or as part of a tuple."""
        rows = {
            row
            for column in self.columns
            for row, one in enumerate(column)
            if one is value
            or (type(one) is TupleArgument and any([x is value for x in one.values]))
        }
        return [self.calls[row] for row in sorted(rows)]

    def forget_run(self, row: int) -> None:
        """Have a call run again, as if it had not."""
        self.update()
        self.run_of[row] = NOT_RUN

    def settle(self, rows: Array, home: RegionNode) -> None:
        """These calls, in this order, are the rows of a region."""
        self.run_of[rows] = len(self.runs)
        self.position[rows] = np.arange(rows.size)
        self.runs.append(home)

    def inputs_of(self, row: int) -> tuple[Node, ...]:
        """The nodes that a call was given."""
        found: list[Node] = []
        for column in self.columns:
            _collect(column[row], found)
        return tuple(found)

    def constant_nodes(self, cell: CompiledStep) -> list[Node]:
        """Nodes of this graph in place of a compiled cell's constants, each made once."""
        self._make(cell, self.constants, of_memory=False)
        return [self.constants[node.index] for node in cell.program.constants]

    def memory_nodes(
        self, cell: CompiledStep, memories: Sequence[tuple[Node, ...]]
    ) -> list[list[Node]]:
        """The same in place of what follows from memories: for each such value, nodes of all.

        Matrices that the loop reads, then summaries (see `StepProgram`).

        Args:
            memories: of each sentence, one for each matrix that the cell is given.
        """
        self._make(cell, self.constants, of_memory=False)
        found = []
        for given in memories:
            made = self.of_memories.get(given)
            if made is None:
                placeholders = [node.index for node in self.trace.memories]
                made = self.of_memories[given] = dict(zip(placeholders, given, strict=True))
            self._make(cell, made, of_memory=True)
            found.append(made)
        wanted = [*cell.program.memory_nodes, *cell.program.summaries]
        return [[made[node.index] for made in found] for node in wanted]

    def _make(self, cell: CompiledStep, made: dict[int, Node], of_memory: bool) -> None:
        for node in cell.parts.before:
            follows = node.index in self.trace.of_memory
            if cell.parts.kinds[node.index] != "memory" or follows is not of_memory:
                continue
            before = made.get(node.index)
            if before is not None and not _is_freed(before):
                continue
            if node.inputs:
                known = self.constants | made
                fresh = once(node, [known[x.index] for x in node.inputs])
            else:
                fresh = copy_of_source(node, self.graph)
            if before is not None:
                self.replaced[fresh] = before
            made[node.index] = fresh

    def node_among(self, inputs: Container[Node], made: dict[int, Node], traced: Node) -> Node:
        """The node in place of a traced one that is among a region's inputs, perhaps long freed.

        Args:
            made: `constants`, or what was made of the same matrices.
        """
        node = made[traced.index]
        while node not in inputs:
            node = self.replaced[node]
        return node

    def compiled(self, tokens: frozenset[int]) -> CompiledStep:
        """The cell, compiled for these tokens."""
        found = self.trace.compiled.get(tokens)
        if found is None:
            # Another thread may have been first: of equal programs all use one.
            found = self.trace.compiled.setdefault(tokens, CompiledStep(self.trace, tokens))
        return found

    def close(self) -> None:
        """Forget all calls; the cell forgets the table."""
        self._forget(self)
        self.held = []
        self.known = []
        self.columns = []
        self.adds = ()
        self.constants = {}
        self.of_memories = {}
        self.replaced = {}
        self.calls = []
        self.runs = []
        self.nodes = _Ended()


class _Ended(list[Node]):
    """The nodes of a closed graph: no part of a call can be added to them."""

    def __len__(self) -> int:
        raise GraphError.at_caller(
            "part of a call: the graph is closed; its nodes ended with the `with` block.\n"
            "  fix:  h, c = cell(...) inside the block, and keep() what is to be read after it"
        )


def _is_freed(node: Node) -> bool:
    return node._block is not None and node._block.array is None


def _collect(value: Any, found: list[Node]) -> None:
    if isinstance(value, ValueHandle | Row):
        found.append(value)
    elif isinstance(value, TuplePart):
        found.append(value.call)
    elif isinstance(value, NodeArgument):
        if value.origin is not None:
            found.append(value.origin)
    elif isinstance(value, TupleArgument | SumArgument):
        for one in value.values if isinstance(value, TupleArgument) else value.members:
            _collect(one, found)
