"""`CallTable`: all calls of one cell, with one set of forms and parameters, in one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from dynbatch.backend import Array, Device
from dynbatch.cells.calls.column import Column
from dynbatch.cells.calls.compiled_step import CompiledStep, StepTrace
from dynbatch.cells.calls.forms import (
    CellFunction,
    Form,
    FormIds,
    MatrixForm,
    ResultForm,
    leaves,
    part_slots,
)
from dynbatch.cells.calls.hoisted import HoistedNodes
from dynbatch.errors import DtypeError, GraphError
from dynbatch.kernels.runtime.compiling import compiling
from dynbatch.nodes.node import ROWS, Node, Owner

NOT_RUN = -1


class CalledCell(Protocol):
    """The part of a cell that its calls use."""

    __name__: str

    @property
    def function(self) -> CellFunction: ...


ROW_BITS = 32
ROW = (1 << ROW_BITS) - 1
"""The bits of a value's number that tell its row, and how many these are."""


def first_uses(numbers: Array) -> list[int]:
    """The distinct ones of some numbers, many of which equal the one before, by first use."""
    begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    return [*dict.fromkeys(numbers[begins].tolist())]


class CallGraph(Owner, Protocol):
    """The part of a graph that only calls use.

    A value is told by a number, `number << ROW_BITS | row`, if it is the call in a row of a table,
    a row of a matrix, or one of a tree's sums. Tables, such matrices and `sums.TreeSums` are the
    `origins`, by number.
    """

    tables: list[CallTable]
    origins: list[Any]
    device: Device
    totals: dict[int, Any]
    inlined: dict[Any, object]  # calls that are not nodes of their own, and their parameters

    @property
    def form_ids(self) -> FormIds: ...

    @property
    def nodes(self) -> list[Node]: ...

    def add_table(self, table: CallTable) -> None: ...

    def number_of(self, origin: Any) -> int: ...

    def value_at(self, number: int) -> Any: ...

    def index_of(self, number: int) -> int: ...


class ResultRows(NamedTuple):
    """Places of the results of one table's calls in a region's value: a row for each call.

    offset: first element; `calls` rows of `step.width` elements follow.
    """

    offset: int
    calls: int
    step: CompiledStep

    def element(self, position: int, leaf: int) -> int:
        return self.offset + position * self.step.width + self.step.columns[leaf]

    def of_call(self, position: int) -> slice:
        """The elements of one call's results."""
        first = self.element(position, 0)
        return slice(first, first + self.step.width)

    def of(self, flat: Array) -> Array:
        """(calls, width) rows of the region's value, or of its gradient."""
        width = self.step.width
        return flat[self.offset : self.offset + self.calls * width].reshape(self.calls, width)

    def values(self, flat: Array, leaf: int) -> Array:
        """(calls, ·) value number `leaf` of each call, or its gradient."""
        first = self.step.columns[leaf]
        return self.of(flat)[:, first : first + self.step.program.exports[leaf].width]


def number_of(value: Any, graph: CallGraph) -> int:
    """The number of a call, of a row, or of an argument that is one; a number itself."""
    return value if type(value) is int else graph.number_of(value.origin) << ROW_BITS | value.row


class CallRun(NamedTuple):
    """The region that ran some calls of one table, and where their results are."""

    node: Node
    results: ResultRows


class ValueHandle(Node):
    """A node without a kernel: some columns of a row of a region's value.

    A call is given what has these attributes:

    origin: where its value comes from: a table of calls, an ordinary node, or None for zeros.
    row:    of the call in its table, or of the origin's matrix.
    first:  the first of the call's values that this stands for.
    form_id: an integer; equal ones are equal forms in one graph.
    ready:  the first phase whose calls may read it: for the value of a call, the phase of that
            call; for an ordinary node, one more than the node's phase.
    depth:  of the value of a call, the length of the chain of calls, in its table, that the call
            waits for.
    """

    stream_name = "Light"
    __slots__ = ()
    origin: CallTable
    form: ResultForm
    row: int
    first: int
    form_id: int
    ready: int
    depth: int
    ragged = ROWS
    rows = 1
    sig = -1

    @property
    def graph(self) -> CallGraph:  # type: ignore[override]
        return self.origin.graph

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return 1 if self.form else 0

    @property
    def width(self) -> int:  # type: ignore[override]
        form = self.form
        if isinstance(form, tuple):
            raise DtypeError.at_caller(
                f"{self.label()} stands for {len(form)} values, not one.\n"
                "  rule: a cell that returns a tuple gives a tuple\n"
                "  fix:  h, c = cell(...), or cell(...)[0]"
            )
        return form or 1

    @property
    def home(self) -> Node | None:
        """The node that has run the call; None if it has not run."""
        return self.origin.home(self.row)

    def producer(self) -> Node:
        return self.origin.run(self.row).node

    @property
    def phase(self) -> int:  # type: ignore[override]
        return self.ready

    @property
    def _block(self) -> Any:
        home = self.home
        return None if home is None else home._block

    @property
    def _start(self) -> int:  # type: ignore[override]
        run = self.origin.run(self.row)
        position = int(self.origin.position[self.row])
        return run.node._start + run.results.element(position, self.first)

    _position = None  # type: ignore[assignment]


class CallTable:
    """Calls as columns: what each was given, and once it has run, where its values are.

    Attributes:
        forms:   leaves of each argument of the cell; `matrices`: which of all leaves are matrices.
        columns: for each argument, what each call was given. params_at: the argument without a
                 column, if any.
        calls:   the calls; a call's row is its place here. `phases` and `depths`: of each, `ready`
                 and `depth`, once more: when a run is planned, the calls have left the cache.
        is_late: whether some of the calls may not be nodes yet: see `late.LateCalls`.
        leaf_form_ids, parts: integers of the leaves' forms; where the parts of the tuple are.
        nodes, number: all of the graph; its number there: see `CallGraph`.
        form, widths: of what a call returns, and of its leaves (0 for a scalar).
        ready, depth: phase of each call (see `ValueHandle`), and how many calls of this
                 table it waits for, one after the other; as far as `update` has been called.
        held:    the keys by which the cell finds the table, and the parameters whose identity is
                 part of them, so that it stays their own.
        known:   identities of arguments that hold matrices, whose `NodeArgument`s the cell knows.
        hoisted: what calls share, as ordinary nodes.
        sums:    sums of consecutive calls that others are given, the graph's `sums.TreeSums`.
        runs, run_of, position: where calls have run; of each call in which run, and its row there.
    """

    def __init__(
        self,
        cell: CalledCell,
        trace: StepTrace,
        forms: Sequence[Form],
        graph: CallGraph,
        forget: Callable[[CallTable], None],
    ) -> None:
        self.cell = cell
        self.trace = trace
        self.graph = graph
        self.form = trace.form
        self.widths = [width for width in leaves(trace.form) if isinstance(width, int)]
        self.form_id: int = graph.form_ids[trace.form]
        self.leaf_form_ids = [graph.form_ids[width] for width in self.widths]
        form = trace.form
        self.parts = part_slots(form, 0, graph.form_ids) if isinstance(form, tuple) else []
        self.nodes: list[Any] = []  # these are the graph's
        self.number = -1
        self.forms = [len(leaves(form)) for form in forms]
        self.matrices = [isinstance(leaf, MatrixForm) for form in forms for leaf in leaves(form)]
        self.columns: list[Column] = [Column() for _ in forms]
        self.params_at: int | None = None
        self.calls: list[Any] = []
        self.is_late = False
        self.phases: list[int] = []
        self.depths: list[int] = []
        self.hoisted = HoistedNodes(trace, graph)
        self.sums: Any = None
        self.runs: list[CallRun] = []
        self._arrays: Array = np.empty((4, 0), np.int64)
        self.ready, self.depth, self.run_of, self.position = self._arrays
        self.held: list[tuple[tuple[int, ...], object]] = []
        self.known: list[int] = []
        self._forget = forget

    def update(self) -> None:
        """Bring the arrays up to date with the calls recorded so far.

        Raises:
            GraphError: an interrupt came while a call was recorded.
        """
        while self.runs and self.runs[-1].node._block is None:  # that run failed
            self.runs.pop()
            self.run_of[self.run_of == len(self.runs)] = NOT_RUN
        self.require_whole()
        known, count = self.ready.size, len(self.calls)
        if known == count:
            return
        fresh = np.full((4, count - known), NOT_RUN)
        fresh[0] = np.fromiter(self.phases[known:count], np.int64)
        fresh[1] = np.fromiter(self.depths[known:count], np.int64)
        self._arrays = np.concatenate([self._arrays, fresh], axis=1)
        self.ready, self.depth, self.run_of, self.position = self._arrays

    def require_whole(self) -> None:
        """Refuse a table one of whose calls was not recorded to the end: see `update`."""
        if {len(self.calls)} != {*map(len, self.columns), len(self.phases), len(self.depths)}:
            raise GraphError(
                f"cell {self.cell.__name__!r}: an interrupt came in the middle of a call, whose"
                " arguments stay among those of later ones.\n"
                "  rule: a graph whose building was interrupted in a call cannot run\n"
                "  fix:  close it, and build the mini-batch in another graph"
            )

    def waiting(self) -> list[ValueHandle]:
        self.update()
        return [self.call(row) for row in np.flatnonzero(self.run_of == NOT_RUN).tolist()]

    def waiting_by_phase(self) -> Iterator[tuple[int, Array]]:
        """The rows of the calls that have not run, phase by phase, as far as `update` went."""
        rows = np.flatnonzero(self.run_of == NOT_RUN)
        rows = rows[np.argsort(self.ready[rows], kind="stable")]
        phases, starts = np.unique(self.ready[rows], return_index=True)
        return zip(phases.tolist(), np.split(rows, starts[1:]), strict=False)

    def run(self, row: int) -> CallRun:
        return self.runs[int(self.run_of[row])]

    def home(self, row: int) -> Node | None:
        """The region that has run a call, or None."""
        run = self.run_of[row] if row < self.run_of.size else NOT_RUN
        if run == NOT_RUN:
            return None
        home = self.runs[run].node
        return home if home._block is not None else None

    def forget_run(self, row: int) -> None:
        self.update()
        self.run_of[row] = NOT_RUN

    def settle(self, rows: Array, run: CallRun) -> None:
        """Note that a run computes these calls, as rows in this order."""
        self.run_of[rows] = len(self.runs)
        self.position[rows] = np.arange(rows.size)
        self.runs.append(run)

    def call(self, row: int) -> ValueHandle:
        """The call in a row, which is a node from now on."""
        call = self.calls[row]
        return call if isinstance(call, ValueHandle) else call.make(row)

    def indices_of(self, row: int) -> list[int]:
        """The indices of the nodes that a number of this row stands for: see `CallGraph`."""
        return [self.index_of(row)]

    def index_of(self, row: int) -> int:
        """The number of the node that the call in a row is, or will be."""
        call = self.calls[row]
        index: int = call.index if isinstance(call, ValueHandle) else call.index(row)
        return index

    def make_calls(self) -> None:
        """Make all calls nodes, each with arguments of its own."""
        if self.is_late:
            for column in range(len(self.columns)):
                self.columns[column].replace(self.arguments(column, range(len(self.calls))))
            self.is_late = False

    def arguments(self, column: int, rows: Sequence[int]) -> list[Any]:
        """One argument of the calls in some rows, as nodes or as what a call was given."""
        for row in rows if self.is_late else ():
            self.call(row)  # which takes nodes of its own for rows of matrices
        values, graph = self.columns[column], self.graph
        chosen = [values.at(row) for row in rows]
        return [graph.value_at(x) if type(x) is int else x for x in chosen]

    def indices_read(self, row: int) -> list[int]:
        """The indices of what a call reads, none of which becomes a node for that."""
        arguments = [column.at(row) for column in self.columns]
        return [index for x in arguments for index in indices_in(x, self.graph)]

    def inputs_of(self, row: int) -> tuple[Node, ...]:
        arguments = [self.arguments(column, [row]) for column in range(len(self.columns))]
        return tuple(nodes_among(chain.from_iterable(arguments)))

    def compiled(self, tokens: frozenset[int]) -> CompiledStep:
        step = self.trace.compiled.get(tokens)
        if step is None:
            with compiling():
                made = CompiledStep(self.trace, tokens)
            # Another thread may have been first: of equal programs all use one.
            step = self.trace.compiled.setdefault(tokens, made)
        return step

    def close(self) -> None:
        """Forget all calls; the cell forgets the table."""
        self._forget(self)
        self.held = []
        self.known = []
        self.columns = []
        self.hoisted = HoistedNodes(self.trace, self.graph)
        self.sums = None
        self.calls = []
        self.phases = []
        self.depths = []
        self.runs = []
        self.nodes = _Ended()


class Several:
    """Values that are one argument of a call, with the attributes of a `ValueHandle`.

    depths: of each table of calls among them, the greatest depth.
    """

    __slots__ = ("depths", "form_id", "members", "ready")
    origin = None

    def __init__(self, members: Sequence[Any], form_id: int) -> None:
        self.members = members
        self.form_id = form_id
        self.ready: int = max([member.ready for member in members])
        self.depths = depths = dict[CallTable, int]()
        for member in members:
            table = member.origin
            if isinstance(table, CallTable):
                depths[table] = max(depths.get(table, -1), member.depth)
            elif table is None:
                for inner, depth in (member.depths or {}).items():
                    depths[inner] = max(depths.get(inner, -1), depth)

    def given_nodes(self) -> list[Node]:
        """The nodes among them."""
        return nodes_among(self.members)


def nodes_among(arguments: Iterable[Any]) -> list[Node]:
    return [
        node
        for value in arguments
        for node in ([value] if isinstance(value, Node) else value.given_nodes())
    ]


def indices_in(argument: Any, graph: CallGraph) -> list[int]:
    """The indices of the nodes in an argument, or in a number of a call or of a sum."""
    if type(argument) is int:
        indices: list[int] = graph.origins[argument >> ROW_BITS].indices_of(argument & ROW)
        return indices
    if isinstance(argument, Node):
        return [argument.index]
    if isinstance(argument, Several):
        return [index for member in argument.members for index in indices_in(member, graph)]
    return [node.index for node in argument.given_nodes()]


class _Ended(list[Node]):
    """Replaces the nodes of a closed graph, and refuses new parts of calls."""

    def __len__(self) -> int:
        raise GraphError.at_caller(
            "part of a call: the graph is closed; its nodes ended with the `with` block.\n"
            "  fix:  h, c = cell(...) inside the block, and keep() what is to be read after it"
        )
