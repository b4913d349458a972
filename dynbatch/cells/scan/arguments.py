"""Checks the arguments of `scan`: sentences, first state, memories and `recompute`.

Where the cell does not take the first state, it says which would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np

from dynbatch.arguments import is_integer
from dynbatch.cells.calls.arguments import Zeros
from dynbatch.cells.calls.results import structure_of
from dynbatch.compiler.trace import Trace
from dynbatch.errors import ArgumentError, DtypeError, DynbatchError, ShapeError
from dynbatch.nodes.arguments import not_a_node, require_graph
from dynbatch.nodes.node import Node, Owner, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.sources import constant, parameter
from dynbatch.parameter import Parameter


def zeros(*shape: int) -> Zeros:
    """Zeros of this shape, as a part of the first state of `scan`: zeros(64) is 64.

    A part may be a vector (D,), a matrix (d, e), or one for each of several heads, (H, d, e).

    Raises:
        ShapeError: there is no size, or one is below 1.

    Example:
        >>> import numpy as np, dynbatch as db
        >>> from dynbatch import nodes as F
        >>> zeros = db.zeros(2, 2)
        >>> @db.cell
        ... def linear_attention(x, state, params):
        ...     q, k, v = F.chunk(x, 3)
        ...     state = state + F.outer(k, v)
        ...     return F.vecmat(q, state), state
        >>> with db.Graph() as graph:
        ...     ys, last = db.scan(linear_attention, F.input(graph, np.ones((3, 6))), zeros)
        ...     ys.value.tolist(), last.shape
        ([[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]], (2, 2))
    """
    sizes = [type(size) is int or isinstance(size, np.integer) for size in shape]
    if not shape or not all(sizes) or min(shape) < 1:
        raise ShapeError.at_caller(
            f"zeros({', '.join(map(repr, shape))}): there is no such state.\n"
            "  rule: sizes of 1 or more\n"
            "  fix:  db.zeros(64), db.zeros(64, 64), db.zeros(4, 64, 64)"
        )
    return Zeros(tuple([int(size) for size in shape]))


Part = Node | int | Shape
"""A part of the first state: a node, or zeros by their width or shape."""


class ScanForm(NamedTuple):
    """Widths that a cell is traced for.

    tokens: of a token; a tuple where there are several sentences side by side.
    states: of the parts of the state, the shapes of matrices; `single` says that it is not a tuple.
    """

    tokens: int | tuple[int, ...]
    states: tuple[int | Shape, ...]
    single: bool


def as_sentences(xs: object) -> tuple[Node, ...]:
    """The sentence, or several side by side, with a token of each at every step.

    Raises:
        DtypeError: one of them is not a node, or they are a list.
        ShapeError: one of them is not a matrix, their lengths differ, or there is none.
    """
    if isinstance(xs, Node) and xs.ndim == 2:  # nearly always
        return (xs,)
    if isinstance(xs, list):
        raise DtypeError.at_caller(
            "scan: xs: a node expected, got a list.\n"
            "  rule: one sentence is a node (T, D); several side by side are a tuple of nodes\n"
            "  fix:  make the list a tuple; F.stack makes a sentence of a list of vectors"
        )
    sentences = xs if isinstance(xs, tuple) else (xs,)
    for k, x in enumerate(sentences):
        name = f"xs[{k}]" if isinstance(xs, tuple) else "xs"
        if not isinstance(x, Node):
            raise not_a_node(f"scan: {name}", x)
        if x.ndim != 2:
            raise ShapeError.at_caller(
                f"scan: {name} has shape {x.shape}.\n  rule: one sentence is a matrix (T, D)\n"
                "  fix:  give the sentence's tokens, not one token"
            )
    if len({x.rows for x in sentences}) != 1:
        lengths = ", ".join([f"xs[{k}] has {x.rows} rows" for k, x in enumerate(sentences)])
        raise ShapeError.at_caller(
            f"scan: {lengths or 'there is no sentence'}.\n"
            "  rule: sentences side by side have equally many rows; a step gets one of each\n"
            "  fix:  cut or shift them to one length; what each step reads whole is `memory`"
        )
    return sentences


def as_state(init: Any, graph: Owner, what: str = "scan") -> tuple[tuple[Part, ...], bool]:
    """The parts of the first state, and whether it is a single value.

    Raises:
        ShapeError: a part is none.
    """
    if type(init) is tuple and init:  # nearly always
        for part in init:
            is_width = type(part) is int and part > 0
            if not (is_width or (isinstance(part, Operation) and part.ndim == 1)):
                break
        else:
            return init, False
    init = structure_of(init)
    single = not isinstance(init, tuple) or isinstance(init, Zeros)
    parts = (init,) if single else init
    if not parts:
        raise _no_state(what, init, init)
    for part in parts:
        if not _is_part(part):
            raise _no_state(what, init, part)
    made = [parameter(graph, p) if isinstance(p, Parameter) else p for p in parts]
    return tuple([_part(p) for p in made]), single


def _part(part: Any) -> Part:
    if isinstance(part, Node):
        return part
    shape = part.shape if isinstance(part, Zeros) else (int(part),)
    return shape[0] if len(shape) == 1 else shape


def form_of(parts: Sequence[Part]) -> tuple[int | Shape, ...]:
    """The width of each part, or the shape of a matrix."""
    shapes = [shape_of(part) for part in parts]
    return tuple([shape[0] if len(shape) == 1 else shape for shape in shapes])


def shape_of(part: Part) -> Shape:
    """The shape of a part of the first state."""
    if isinstance(part, Node):
        return part.shape
    return (part,) if isinstance(part, int) else part


def _is_part(part: object) -> bool:
    if isinstance(part, Node):
        return part.ndim > 0 and bool(part.rows * part.width)
    if isinstance(part, Parameter):
        return len(part.shape) > 0
    if isinstance(part, Zeros):
        return True
    return is_integer(part) and bool(part > 0)


@overload
def initial_state(graph: Owner, init: int | Zeros | Node | Parameter) -> Node: ...


@overload
def initial_state(
    graph: Owner, init: tuple[int | Zeros | Node | Parameter, ...]
) -> tuple[Node, ...]: ...


def initial_state(graph: Owner, init: object) -> Any:
    """The first state of a loop of calls, as nodes: what `scan` takes as `init`.

    A call takes widths and parameters as they are. A loop over a sentence without tokens makes no
    call, though, and what was to be the first state is then the last one: as nodes it can be read.

    Args:
        init: a width or `zeros` for zeros, a node or parameter; a tuple for several parts.

    Returns:
        a vector (D,) or matrix, or a tuple of them.

    Raises:
        ShapeError: a part of `init` is none of these.
        DtypeError: `graph` is not a graph.

    Example:
        >>> import numpy as np, dynbatch as db
        >>> from dynbatch import nodes as F
        >>> @db.cell
        ... def add(x, total):
        ...     return total + x
        >>> with db.Graph() as graph:
        ...     for length in (2, 0):
        ...         xs = F.input(graph, np.ones((length, 3)))
        ...         h, states = db.initial_state(graph, 3), []
        ...         for t in range(length):
        ...             h = add(xs[t], h)
        ...             states.append(h)
        ...         print(h.value.tolist(), db.stack(states, like=h).shape)
        [2.0, 2.0, 2.0] (2, 3)
        [0.0, 0.0, 0.0] (0, 3)
    """
    require_graph("initial_state", graph)
    parts, single = as_state(init, graph, "initial_state")
    made = [p if isinstance(p, Node) else constant(graph, 0.0, shape_of(p)) for p in parts]
    return made[0] if single else tuple(made)


def as_memories(memory: object) -> tuple[Node, ...]:
    """The memories, none or several.

    Raises:
        DtypeError: one of them is not a node.
    """
    memories = () if memory is None else memory if isinstance(memory, tuple) else (memory,)
    for node in memories:
        if not isinstance(node, Node):
            raise not_a_node("scan: memory", node)
    return memories


def as_steps(recompute: object) -> int | str:
    """Steps of a chunk, "sqrt", or 0 to keep everything."""
    if recompute is None or recompute == "sqrt":
        return "sqrt" if recompute else 0
    if is_integer(recompute) and recompute >= 0:
        return int(recompute)
    raise ArgumentError.at_caller(
        f"scan: recompute={recompute!r}.\n"
        '  rule: a number of steps, 1 or more; 0 to keep everything; "sqrt"; or None, which keeps\n'
        "        everything but states that are matrices"
    )


# Steps between two kept states that are matrices: each is as large as many tokens. Between them
# those of a head are made again; a half of most second-level caches has room for as many elements.
STEPS_OF_MATRICES, ELEMENTS_OF_MATRICES = 16, 1 << 17


def steps_of_matrices(parts: Sequence[Part]) -> int:
    """Steps of a chunk unless the user says otherwise: 0 where no part of the state is a matrix."""
    elements = sum([prod(shape[-2:]) for part in parts if len(shape := shape_of(part)) > 1])
    return max(1, min(STEPS_OF_MATRICES, ELEMENTS_OF_MATRICES // elements)) if elements else 0


def _no_state(what: str, init: object, part: object) -> ShapeError:
    fix = "take one row of a matrix, F.unsqueeze a scalar; a width is 1 or more"
    if init is None or part is None:
        fix = "init=64 for a state of 64 zeros, init=(64, 64) for two parts"
    elif isinstance(part, list) and not all([_is_part(each) for each in part]):
        fix = f"init={len(part)} for zeros; F.input(graph, {'numbers' if len(part) > 3 else part})"
    elif isinstance(part, list):
        fix = f"make the list a tuple, init={'tuple(...)' if len(part) > 3 else tuple(part)!r}"
    elif isinstance(part, tuple) and len(part) > 1 and all(map(is_integer, part)):
        fix = f"db.zeros{part} for a matrix of zeros"
    elif isinstance(part, np.ndarray):
        fix = "F.input(graph, array) makes an array a node"
    return ShapeError.at_caller(
        f"{what}: {part!r} is not an initial state.\n"
        "  rule: a vector (D,), node or parameter, a matrix (d, e) or (H, d, e), or a width or\n"
        f"        db.zeros(d, e) for zeros; a tuple of them for several parts\n  fix:  {fix}"
    )


def with_right_init(
    error: ShapeError | DtypeError, form: ScanForm, trace_with: Callable[[ScanForm], Trace]
) -> ShapeError | DtypeError:
    """The error, and if just one other state makes the cell run, what `init` should be.

    What is tried is each width that the error names first, or that differs from the given one as
    these do; of a tuple that the cell may take for one vector, each part of it alone; if none of
    these runs, zeros of its sizes.

    Args:
        trace_with: traces the cell.
    """
    named = [int(number) for number in re.findall("[0-9]+", str(error).split("\n")[0])]
    if not all([isinstance(width, int) for width in form.states]):
        return error
    apart = [int(width) + b - a for width in form.states for a in named for b in named]  # type: ignore[arg-type]
    widths = sorted({width for width in (*named, *apart) if width > 0})
    others = [form._replace(states=(width,) * len(form.states)) for width in widths]
    if not form.single:
        others += [form._replace(states=(width,), single=True) for width in {*form.states}]
    right = [other for other in others if other != form and _runs(trace_with, other)]
    if not (right or form.single) and len(form.states) in (2, 3):
        matrix = form._replace(states=(form.states,), single=True)  # type: ignore[arg-type]
        right = [matrix] if _runs(trace_with, matrix) else []
    if len(right) != 1 or "`init`" in str(error):
        return error
    now, then = [each.states[0] if each.single else each.states for each in (form, *right)]
    wanted = f"db.zeros{then}" if right[0].states == (form.states,) else then
    kind = ShapeError if isinstance(error, ShapeError) else DtypeError
    problem, lines = error.parts()
    return kind.at_caller(
        f"{problem}.\n{lines}\n"
        f"  init: {now} is given; with init={wanted} the cell's next state has its widths"
    )


def _runs(trace_with: Callable[[ScanForm], Trace], form: ScanForm) -> bool:
    try:
        trace_with(form)
    except (DynbatchError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return True
