"""`cell` and `scan`: write one step of one sentence, run it along all sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dynbatch.cells.calls.arguments import structure_of
from dynbatch.cells.calls.calls import Calls
from dynbatch.cells.scan.arguments import ScanForm, as_memories, as_sentences, as_state, as_steps
from dynbatch.cells.scan.initial_state import with_right_init
from dynbatch.cells.scan.scan import Scan
from dynbatch.cells.traced import Traced
from dynbatch.compiler.any_rows import trace_any_rows
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.prologue import Surroundings
from dynbatch.compiler.trace import Trace, trace_cell
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.nodes.base import Node, Owner
from dynbatch.nodes.shape.structure import Port

CACHED_PROGRAMS = 64


class Cell:
    """One step of one sentence, or one node of a tree.

    Called on nodes it is one node. Given to `scan`, as (token, state, params[, memory]) -> (output,
    next state), it runs along a sentence. Either way it is traced once for each set of widths and
    parameters, split into what can run before and after the loop, and compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "cell")
        self.__doc__ = function.__doc__
        self._programs: Traced[CompiledCell] = Traced(CACHED_PROGRAMS)
        self._by_rows = False  # whether it has built other operators for memories of other rows
        self._calls = Calls(self)

    def __call__(self, *arguments: Any) -> Any:
        """One step, as one node: what the function returns, of the values that nodes stand for.

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
        return self._calls.make(arguments)

    def compiled(
        self, graph: Owner, form: ScanForm, memories: Sequence[Node], params: Any
    ) -> CompiledCell:
        """The compiled cell for these widths and parameters, looked up once a graph.

        Parameters are the same if the cell read the same from them, whatever object holds them.
        """
        by_rows = self._by_rows
        kinds = tuple([(m.ndim, m.width, m.rows * by_rows) for m in memories])
        key = (*form, kinds, graph.dtype.char)
        found = graph.programs.get((self, id(params), *key))
        if found is None:
            made = self._programs.find(key, params)
            if made is None:
                trace = self._trace(graph, form, memories, params, by_rows)
                if trace is None:
                    self._trace(graph, form, memories, params, by_rows=True)  # or its own error
                    self._by_rows = True
                    return self.compiled(graph, form, memories, params)
                made = self._programs.add(key, params, CompiledCell(trace))
            made.check_parameters(graph)
            # With the parameters, so that their id stays their own.
            found = graph.programs[self, id(params), *key] = (params, made)
        program: CompiledCell = found[1]
        return program

    def _trace(
        self, graph: Owner, form: ScanForm, memories: Sequence[Node], params: Any, by_rows: bool
    ) -> Trace | None:
        """What the cell builds for memories of any number of rows, or None if that differs.

        Args:
            by_rows: for memories of just these rows, since it is known to differ.
        """

        def trace_with(rows: int | None, form: ScanForm = form) -> Trace:
            shapes = [m.shape if rows is None or m.ndim < 2 else (rows, m.width) for m in memories]
            return trace_cell(self.function, *form, shapes, params, graph.dtype)

        if any([m.ndim > 1 for m in memories]) and not by_rows:
            return trace_any_rows(trace_with)
        try:
            trace = trace_with(None)
        except (ShapeError, DtypeError) as error:
            raise with_right_init(error, form, params, partial(trace_with, None)) from None
        trace.fixed_rows = True
        return trace

    @property
    def programs(self) -> list[CompiledCell]:
        """What has been compiled and is still kept, the last used at the end."""
        return self._programs.all()

    def __repr__(self) -> str:
        return f"<cell {self.__name__}>"


def cell(function: Callable[..., Any]) -> Cell:
    """Make a function of one step a cell.

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


def scan(
    cell: Cell,
    xs: Any,
    init: Any,
    params: Any = None,
    memory: Any = None,
    reverse: bool = False,
    recompute: int | str | None = None,
) -> tuple[Node, Any]:
    """Run a cell along one sentence.

    Args:
        cell:    a `Cell`.
        xs:      the sentence, (T, D); or a tuple of several with equally many rows, whatever their
                 widths: the cell's first argument is then a tuple of a token of each.
        init:    the first state: a vector node or parameter, or a width for zeros; a tuple for
                 several parts.
        params:  what the cell gets as its third argument: a module, a namespace, a dict, a list,
                 a single parameter.
        memory:  what every step of this sentence reads: a matrix node to attend to, or a vector;
                 a tuple for several.
        reverse: run from the last token to the first; outputs stay in the sentence's order.
        recompute: what backward makes again rather than find it kept. None keeps everything that it
                 reads, for an LSTM about seven vectors a token. A number of steps S keeps the state
                 once in S steps of the longest sentences, and runs forward again S steps at a time;
                 1 keeps little else than states, "sqrt" takes √T for T tokens a sentence in the
                 mean. Gradients are the same but for rounding. On a GPU everything is kept.

    Returns:
        outputs (T, E), and the state after the last step in the form of `init`. A sentence of
        length 0 gives (0, E) and its initial state.

    Raises:
        ShapeError: `xs` is not a matrix, or several of different lengths; a part of `init` neither
            vector nor width, or the cell breaks its rules (see `cell`).
        DtypeError: `cell` is not a cell, or `xs` or `memory` no node.
        GraphError: the cell reads a value, sets a parameter, or uses a node from outside it.
        ValueError: `recompute` is none of these.

    Source: Chen et al. 2016, arXiv:1604.06174, of keeping one state in √T.
    """
    init = structure_of(init)
    outputs, node = scan_node(cell, xs, init, params, memory, reverse, recompute)
    parts = tuple([Port(node, part=k) for k in range(len(node.port_widths()))])
    return outputs, parts if isinstance(init, tuple) else parts[0]


def scan_node(
    cell: Cell,
    xs: Any,
    init: Any,
    params: Any,
    memory: Any,
    reverse: bool,
    recompute: int | str | None = None,
) -> tuple[Node, Scan]:
    """The outputs and the `Scan` itself, without nodes for the last state."""
    if not isinstance(cell, Cell):
        raise DtypeError.at_caller(
            f"scan: {cell!r} is not a cell.\n  fix:  decorate the function with @db.cell"
        )
    sentences = as_sentences(xs)
    graph = sentences[0].graph
    steps = as_steps(recompute)
    parts, single = as_state(init, graph)
    memories = as_memories(memory)
    widths = tuple([x.width for x in sentences])
    states = tuple([p.width if isinstance(p, Node) else p for p in parts])
    form = ScanForm(widths if isinstance(xs, tuple) else widths[0], states, single)
    compiled = cell.compiled(graph, form, memories, params)
    around = Surroundings(compiled, sentences, memories)
    streams = [around.rows(node) for node in compiled.program.stream_nodes]
    given = [p for p in parts if isinstance(p, Node)]
    kept = [around.whole(node) for node in compiled.program.memory_nodes]
    node = Scan(
        *streams,
        *given,
        *kept,
        graph=graph,
        cell=compiled,
        uid=compiled.uid,
        reverse=bool(reverse),
        given_states=tuple([isinstance(p, Node) for p in parts]),
        length=sentences[0].rows,
        recompute=steps,
    )
    return around.output(node), node


__all__ = ["Cell", "cell", "scan", "scan_node"]
