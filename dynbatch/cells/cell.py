"""`cell` and `scan`: write one step of one sentence, run it along all sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dynbatch.cells.any_rows import trace_any_rows
from dynbatch.cells.call import Call, Part
from dynbatch.cells.calls import Calls
from dynbatch.cells.compiled import CompiledCell
from dynbatch.cells.given import Total, structure_of
from dynbatch.cells.scan import Scan
from dynbatch.cells.surroundings import Surroundings
from dynbatch.cells.trace import Trace, trace_cell
from dynbatch.cells.traced import Traced
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.nodes.base import Node, caller, not_a_node
from dynbatch.nodes.sources import parameter
from dynbatch.nodes.structure import Port
from dynbatch.parameter import Parameter

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
                one argument may be the cell's parameters.

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
        """
        return self._calls.make(arguments)

    def compiled(
        self, xs: Node, states: tuple[int, ...], single: bool, memories: Sequence[Node], params: Any
    ) -> CompiledCell:
        """The compiled cell for these widths and parameters, looked up once a graph.

        Parameters are the same if the cell read the same from them, whatever object holds them.
        """
        graph = xs.graph
        kinds = tuple([(m.ndim, m.width, m.rows * self._by_rows) for m in memories])
        key = (xs.width, states, single, kinds, graph.dtype.char)
        found = graph.programs.get((self, id(params), *key))
        if found is None:
            made = self._programs.find(key, params)
            if made is None:
                trace = self._trace(xs, states, single, memories, params)
                if trace is None:
                    self._by_rows = True
                    return self.compiled(xs, states, single, memories, params)
                made = self._programs.add(key, params, CompiledCell(trace))
            made.check_parameters(graph)
            # With the parameters, so that their id stays their own.
            found = graph.programs[self, id(params), *key] = (params, made)
        program: CompiledCell = found[1]
        return program

    def _trace(
        self, xs: Node, states: tuple[int, ...], single: bool, memories: Sequence[Node], params: Any
    ) -> Trace | None:
        """What the cell builds for memories of any number of rows; for these, if that differs.

        None if it differs, and this was not known.
        """

        def trace_with(rows: int | None) -> Trace:
            shapes = [m.shape if rows is None or m.ndim < 2 else (rows, m.width) for m in memories]
            return trace_cell(
                self.function, (xs.width,), states, single, shapes, params, xs.graph.dtype
            )

        if any([m.ndim > 1 for m in memories]) and not self._by_rows:
            return trace_any_rows(trace_with)
        trace = trace_with(None)
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
            part of the state (one node, or a tuple of nodes); with a fourth argument it also gets
            the `memory` that `scan` was given. It runs once for many sentences, so all that differs
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
    xs: Node,
    init: Any,
    params: Any = None,
    memory: Any = None,
    reverse: bool = False,
    recompute: int | str | None = None,
) -> tuple[Node, Any]:
    """Run a cell along one sentence.

    Args:
        cell:    a `Cell`.
        xs:      the sentence, (T, D).
        init:    the first state: a vector node or parameter, or a width for zeros; a tuple for
                 several parts.
        params:  what the cell gets as its third argument: a module, a namespace, a dict.
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
        ShapeError: `xs` is not a matrix, a part of `init` neither vector nor width, or the cell
            breaks its rules (see `cell`).
        DtypeError: `cell` is not a cell, or `xs` or `memory` no node.
        GraphError: the cell reads a value, sets a parameter, or uses a node from outside it.
        ValueError: `recompute` is none of these.

    Source: Chen et al. 2016, arXiv:1604.06174, of keeping one state in √T.
    """
    outputs, node = scan_node(cell, xs, init, params, memory, reverse, recompute)
    parts = tuple([Port(node, part=k) for k in range(len(node.port_widths()))])
    return outputs, parts if isinstance(init, tuple) else parts[0]


def scan_node(
    cell: Cell,
    xs: Node,
    init: Any,
    params: Any,
    memory: Any,
    reverse: bool,
    recompute: int | str | None = None,
) -> tuple[Node, Scan]:
    """The outputs and the `Scan` itself, without nodes for the last state."""
    _check(cell, xs)
    steps = _steps(recompute)
    if isinstance(init, Call | Part | Total):
        init = structure_of(init)
    single = not isinstance(init, tuple)
    parts = tuple([_part(xs, p) for p in ((init,) if single else init)])
    memories = () if memory is None else memory if isinstance(memory, tuple) else (memory,)
    for node in memories:
        if not isinstance(node, Node):
            raise not_a_node("scan: memory", node)
    widths = tuple([_width(p) for p in parts])
    compiled = cell.compiled(xs, widths, single, memories, params)
    around = Surroundings(compiled, xs, memories)
    streams = [around.rows(node) for node in compiled.program.stream_nodes]
    given = [p for p in parts if isinstance(p, Node)]
    kept = [around.whole(node) for node in compiled.program.memory_nodes]
    node = Scan(
        *streams,
        *given,
        *kept,
        graph=xs.graph,
        cell=compiled,
        uid=compiled.uid,
        reverse=bool(reverse),
        given_states=tuple([isinstance(p, Node) for p in parts]),
        length=xs.rows,
        recompute=steps,
    )
    return around.output(node), node


def _check(cell: Any, xs: Any) -> None:
    if not isinstance(cell, Cell):
        raise DtypeError(
            f"scan: {cell!r} is not a cell.\n  fix:  decorate the function with @db.cell\n"
            f"  made at {caller()}"
        )
    if not isinstance(xs, Node):
        raise not_a_node("scan: xs", xs)
    if xs.ndim != 2:
        raise ShapeError(
            f"scan: xs has shape {xs.shape}.\n  rule: one sentence is a matrix (T, D)\n"
            f"  fix:  give the sentence's tokens, not one token\n  made at {caller()}"
        )


def _part(xs: Node, part: Any) -> Any:
    return parameter(xs.graph, part) if isinstance(part, Parameter) else part


def _steps(recompute: Any) -> int | str:
    """Steps of a segment, "sqrt", or 0 to keep everything."""
    if recompute is None or recompute == "sqrt":
        return recompute or 0
    is_number = isinstance(recompute, int | np.integer) and not isinstance(recompute, bool)
    if is_number and recompute >= 0:
        return int(recompute)
    raise ValueError(
        f"scan: recompute={recompute!r}.\n"
        '  rule: a number of steps, 1 or more; "sqrt"; or None to keep everything\n'
        f"  made at {caller()}"
    )


def _width(part: Any) -> int:
    """Width of a part of the initial state: of a vector, or the number given for zeros."""
    if isinstance(part, Node) and part.ndim == 1:
        return part.width
    if isinstance(part, int | np.integer) and part > 0:
        return int(part)
    raise ShapeError(
        f"scan: {part!r} is no initial state.\n"
        "  rule: a vector (D,), node or parameter, or a width for zeros; a tuple of them for\n"
        "        several parts\n"
        "  fix:  take one row of a matrix, F.unsqueeze a scalar, make a list a tuple\n"
        f"  made at {caller()}"
    )


__all__ = ["Cell", "cell", "scan", "scan_node"]
