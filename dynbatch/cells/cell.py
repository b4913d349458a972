"""`Cell`: one step of one sentence, which can be called on nodes or run along sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic

from numpy.typing import ArrayLike

from dynbatch.arguments import listed
from dynbatch.cells.calls.calls import Calls
from dynbatch.cells.calls.forms import Returned
from dynbatch.cells.calls.table import CallTable
from dynbatch.cells.calls.together import children_of, together
from dynbatch.cells.scan.arguments import ScanForm, with_right_init
from dynbatch.compiler.any_rows import repeats_beside_rows, trace_any_rows
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.trace import Trace, trace_cell
from dynbatch.compiler.traced import Traced, check_reads
from dynbatch.errors import DtypeError, DynbatchError, ShapeError
from dynbatch.kernels.runtime.compiling import compiling
from dynbatch.nodes.arguments import refuse_dimensions
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.plain import is_plain

CACHED_PROGRAMS = 64

Shapes = tuple[tuple[int, int], ...]
"""The number of dimensions and the width of each memory."""


class Cell(Generic[Returned]):
    """One step of one sentence, or one node of a tree.

    Called on nodes it is one node. Given to `scan`, as (token, state, params[, memory]) -> (output,
    next state), it runs along a sentence. Either way it is traced once for each set of widths and
    parameters, split into what can run before and after the loop, and compiled.
    """

    def __init__(self, function: Callable[..., Returned]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "cell")
        self.__doc__ = function.__doc__
        self._programs: Traced[CompiledCell] = Traced(CACHED_PROGRAMS, function)
        # Forms and memories for which it has built other operators where these have other rows.
        self._by_rows: set[tuple[ScanForm, Shapes]] = set()
        self._calls = Calls(self)

    def __call__(self, *arguments: object) -> Returned:
        """One step as one node: the result of the function.

        Args:
            arguments: what the function takes. Values are vectors or scalars, matrices to attend
                to, what calls returned, tuples of these, widths for zeros, and sums (`db.total`);
                one argument may be the cell's parameters. A parameter of one dimension beside them,
                alone or in a tuple, is a value, as in `init` of `scan`: a first state, say.

        Returns:
            a node; where the function returns a tuple, that tuple: it can be unpacked and indexed,
            and given as a whole to other calls.

        What the parameters hold is read at the first call of a graph: replacing one of them later
        (`params.W = other`) holds from the next graph on. Other parameters are another object.

        Raises:
            ShapeError: the function returns something else than vectors, scalars and tuples.
            GraphError: it reads a value, sets a parameter, uses a node from outside, or builds
                other operators when it runs again; the arguments belong to different graphs.
            DtypeError: two arguments could be the parameters, or there is no node among them.
                Two bare parameters could each be: give the parameters as a module, or make a value
                of the other with F.parameter(graph, p).
        """
        make = self._calls.inlined if is_plain.get() else self._calls.make
        return make(arguments)  # type: ignore[no-any-return]  # what reads and unpacks as it does

    def each(self, *arguments: object) -> Sequence[Returned]:
        """A call for each row of matrices: `[cell(x, p) for x in xs]`, for all rows at once.

        The calls enter the graph as a few lists, however many they are: they are those of the
        loop, in its order, and become nodes as they are read from the result.

        Args:
            arguments: what a call takes. Of matrices (T, D), and of what `each` or `tree`
                returned for T calls, call t is given number t; all else is given to every call.

        Returns:
            what the T calls return, as a sequence. `db.stack` makes rows of it.

        Raises:
            ShapeError: there is nothing to take rows of, or the numbers of rows differ.
            As a call besides.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> @db.cell
            ... def scaled(x, factor):
            ...     return x * factor
            >>> with db.Graph() as graph:
            ...     xs, factor = F.input(graph, [[1.0], [2.0]]), F.input(graph, [3.0])
            ...     db.stack(scaled.each(xs, factor)).value.tolist()
            [[3.0], [6.0]]
        """
        return self._together(f"{self.__name__}.each", arguments)

    def tree(
        self, states: Sequence[Returned], children: ArrayLike, *arguments: object
    ) -> Sequence[Returned]:
        """A call for each inner node of a tree, bottom-up, as one entry in the graph, as `each`.

            state[T + k] = cell(state[children[k, 0]], …, state[children[k, N - 1]], *arguments)

        Args:
            states:    the states of T leaves: what `each` returned, or a list.
            children:  (K, N) integers, the children of each inner node: leaves are numbers
                0 … T - 1, inner node k is number T + k, and its children have smaller numbers. A
                state may be read any number of times, or never.
            arguments: what a call takes besides, as in `each`: matrices have K rows.

        Returns:
            the T + K states, as a sequence.

        Raises:
            ShapeError: `children` is not (K, N) integers, or a number is not of an earlier state;
                the numbers of rows differ.
            As a call besides.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> @db.cell
            ... def pair(left, right):
            ...     return F.tanh(left - right)
            >>> with db.Graph() as graph:
            ...     leaves = [F.input(graph, [x]) for x in (0.0, 1.0, 2.0)]
            ...     root = pair.tree(leaves, [(1, 2), (0, 3)])[-1]  # (0 (1 2))
            ...     print(root.value.round(3))
            [0.642]
        """
        what = f"{self.__name__}.tree"
        if not isinstance(states, Sequence):
            states = listed(what, "states", states, "give what the leaves' calls returned")
        joined = children_of(what, children, len(states))
        return self._together(what, arguments, states, joined) if joined.heights else states

    @property
    def call_tables(self) -> Mapping[tuple[int, ...], CallTable]:
        """The tables of its calls; none with plain arithmetic, where calls are made one by one."""
        return {} if is_plain.get() else self._calls.tables

    def table_of(self, forms: Sequence[Any], params: object, graph: Owner) -> CallTable | None:
        """See `Calls`; None with plain arithmetic, too."""
        return None if is_plain.get() else self._calls.table_of(forms, params, graph)

    def _together(self, *calls: Any) -> Sequence[Returned]:
        """See `together`."""
        return together(self, self.call_tables, *calls)

    def compiled(
        self, graph: Owner, form: ScanForm, memories: Sequence[Node], params: object
    ) -> CompiledCell:
        """The compiled cell for these widths and parameters.

        Parameters are the same if the cell read the same from them, whatever object holds them.
        """
        shapes = tuple([(m.ndim, m.width) for m in memories])
        by_rows = (form, shapes) in self._by_rows
        rows = tuple([m.rows for m in memories]) if by_rows else ()
        key = (*form, shapes, rows, graph.dtype.char)
        compiled = self._programs.find(key, params)
        if compiled is None:
            with compiling():
                trace = self._trace(graph, form, memories, params, by_rows)
                if trace is None:
                    self._trace(graph, form, memories, params, by_rows=True)  # or its own error
                    self._by_rows.add((form, shapes))
                    return self.compiled(graph, form, memories, params)
                compiled = self._programs.add(key, params, CompiledCell(trace))
        check_reads("scan", compiled.reads, graph)
        return compiled

    def memory_forms(self, memories: Sequence[Node]) -> tuple[tuple[int, ...], ...]:
        """Forms of the memories that a program depends on: with rows, if it ever read them."""
        if self._by_rows:
            return tuple([(m.ndim, m.width, m.rows) for m in memories])
        return tuple([(m.ndim, m.width) for m in memories])

    def _trace(
        self, graph: Owner, form: ScanForm, memories: Sequence[Node], params: object, by_rows: bool
    ) -> Trace | None:
        """The cell's trace for memories of any number of rows; None if it depends on it.

        Args:
            by_rows: for memories of just these rows, since it is known to differ.
        """

        for memory in memories:
            if memory.ndim > 2:
                refuse_dimensions("the memory of a scan", memory)
        memory_rows = [memory.rows for memory in memories]

        def trace_with(rows: Sequence[int] = memory_rows, form: ScanForm = form) -> Trace:
            pairs = zip(rows, memories, strict=True)
            shapes = [(count, m.width)[2 - m.ndim :] for count, m in pairs]
            return trace_cell(self.function, *form, shapes, params, graph.dtype)

        if any([m.ndim > 1 for m in memories]) and not by_rows:
            try:
                trace = trace_any_rows(trace_with, len(memories), Trace.returned)
            except DynbatchError:  # the trace with the rows at hand tells what is wrong
                return None
            return trace if trace and repeats_beside_rows(trace.nodes) else None
        try:
            trace = trace_with()
        except (ShapeError, DtypeError) as error:
            raise with_right_init(error, form, partial(trace_with, memory_rows)) from None
        trace.fixed_rows = True
        return trace

    @property
    def programs(self) -> list[CompiledCell]:
        """The compiled programs still kept, the last used at the end."""
        return self._programs.all()

    def __repr__(self) -> str:
        return f"<cell {self.__name__}>"


def cell(function: Callable[..., Returned]) -> Cell[Returned]:
    """Make a cell from a function of one step.

    Args:
        function: (x, state, params) -> (output, next state), with vectors for x, output and each
            part of the state (one node, or a tuple of nodes; x is a tuple if `scan` was given
            several sentences side by side); with a fourth argument it also gets the `memory` that
            `scan` was given. It runs once for many sentences, so all that differs
            between them comes in through its arguments; constants are made with `x.graph`.

    Example:
        >>> import numpy as np, dynbatch as db
        >>> from dynbatch import nodes as F
        >>> @db.cell
        ... def running_sum(x, total, params):
        ...     total = total + x
        ...     return total, total
        >>> with db.Graph() as graph:
        ...     ys, last = db.scan(running_sum, F.input(graph, [[1.0], [2.0], [4.0]]), init=1)
        ...     ys.value.ravel().tolist(), last.value.tolist()
        ([1.0, 3.0, 7.0], [7.0])
    """
    return Cell(function)
