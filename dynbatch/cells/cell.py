"""`cell` and `scan`: write one step of one sentence, run it along all sentences."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from dynbatch.cells.compiled import CompiledCell
from dynbatch.cells.scan import Scan
from dynbatch.cells.surroundings import Surroundings
from dynbatch.cells.trace import trace_cell
from dynbatch.errors import ShapeError
from dynbatch.nodes.base import Node, caller
from dynbatch.nodes.structure import Port

CACHED_PROGRAMS = 32


class Cell:
    """One step of one sentence: (token, state, params[, memory]) -> (output, next state).

    Called on nodes it is that function. Given to `scan` it is traced once for each set of widths
    and parameters, split into what can run before and after the loop, and compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "cell")
        self.__doc__ = function.__doc__
        self._compiled: OrderedDict[tuple[Any, ...], tuple[Any, CompiledCell]] = OrderedDict()

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def compiled(
        self, xs: Node, states: tuple[int, ...], single: bool, memories: Sequence[Node], params: Any
    ) -> CompiledCell:
        """The compiled cell for these widths and parameters."""
        dtype = xs.graph.dtype
        widths = tuple([(m.ndim, m.width) for m in memories])
        key = (id(params), xs.width, states, single, widths, dtype.char)
        known = self._compiled.get(key)
        if known is not None and known[1].is_current(params, xs.graph.uid):
            return known[1]
        shapes = [m.shape for m in memories]
        trace = trace_cell(self.function, (xs.width,), states, single, shapes, params, dtype)
        made = CompiledCell(trace)
        self._compiled[key] = (params, made)  # holds params, so that its id stays its own
        if len(self._compiled) > CACHED_PROGRAMS:
            self._compiled.popitem(last=False)
        return made

    def __repr__(self) -> str:
        return f"<cell {self.__name__}>"


def cell(function: Callable[..., Any]) -> Cell:
    """Make a function of one step a cell.

    Args:
        function: (x, state, params) -> (output, next state), with vectors for x, output and each
            part of the state (one node, or a tuple of nodes); with a fourth argument it also gets
            the `memory` that `scan` was given.

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
    cell: Cell | Callable[..., Any],
    xs: Node,
    init: Any,
    params: Any = None,
    memory: Any = None,
    reverse: bool = False,
) -> tuple[Node, Any]:
    """Run a cell along one sentence.

    Args:
        cell:    a `Cell`.
        xs:      the sentence, (T, D).
        init:    the first state: a vector node, or a width for zeros; a tuple for several parts.
        params:  what the cell gets as its third argument: a module, a namespace, a dict.
        memory:  matrix nodes of this sentence that every step may attend to: one, or a tuple.
        reverse: run from the last token to the first; outputs stay in the sentence's order.

    Returns:
        outputs (T, E), and the state after the last step in the form of `init`. A sentence of
        length 0 gives (0, E) and its initial state.

    Raises:
        ShapeError: `xs` is not a matrix, or the cell breaks its rules (see `cell`).
    """
    outputs, node = scan_node(cell, xs, init, params, memory, reverse)
    parts = tuple([Port(node, part=k) for k in range(len(node.port_widths()))])
    return outputs, parts if isinstance(init, tuple) else parts[0]


def scan_node(
    cell: Cell | Callable[..., Any], xs: Node, init: Any, params: Any, memory: Any, reverse: bool
) -> tuple[Node, Scan]:
    """The outputs and the `Scan` itself, without nodes for the last state."""
    if not isinstance(cell, Cell):
        raise TypeError(f"scan: {cell!r} is not a cell; decorate it with @db.cell.")
    if xs.ndim != 2:
        raise ShapeError(
            f"scan: xs has shape {xs.shape}.\n  rule: one sentence is a matrix (T, D)\n"
            f"  fix:  give the sentence's tokens, not one token\n  made at {caller()}"
        )
    single = not isinstance(init, tuple)
    parts = (init,) if single else init
    memories = () if memory is None else memory if isinstance(memory, tuple) else (memory,)
    widths = tuple([p.width if isinstance(p, Node) else int(p) for p in parts])
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
    )
    return around.output(node), node


__all__ = ["Cell", "cell", "scan", "scan_node"]
