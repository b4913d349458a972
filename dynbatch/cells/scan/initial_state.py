"""Suggests the first state for the error about a state that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dynbatch.cells.scan.arguments import ScanForm
from dynbatch.compiler.trace import Trace
from dynbatch.errors import DtypeError, DynbatchError, ShapeError
from dynbatch.parameter import Parameter

MOST_DEPTH, MOST_WIDTHS = 4, 32


def with_right_init(
    error: ShapeError | DtypeError,
    form: ScanForm,
    params: object,
    trace_with: Callable[[ScanForm], Trace],
) -> ShapeError | DtypeError:
    """The error, and if just one width of the state makes the cell run, what `init` should be.

    The widths tried are those of the parameters; of a state that is a tuple and that the cell takes
    for one vector, those of its parts.

    Args:
        trace_with: traces the cell.
    """
    if isinstance(error, DtypeError):
        return _with_one_vector(error, form, trace_with)
    right = []
    widths = sorted({width for width in _sizes(params, 0) if {width} != {*form.states}})
    for width in widths[:MOST_WIDTHS]:
        if _runs(trace_with, form._replace(states=(width,) * len(form.states))):
            right.append(width)
    if len(right) != 1 or "`init`" in str(error):
        return error
    now, then = [_spelt(states, form.single) for states in (form.states, right * len(form.states))]
    return ShapeError(
        f"{error}\n  init: {now} is given; with init={then} the cell's next state has its widths"
    )


def _with_one_vector(
    error: DtypeError, form: ScanForm, trace_with: Callable[[ScanForm], Trace]
) -> DtypeError:
    """The error of a cell whose state is a tuple, and whether it runs with one of its vectors."""
    for width in () if form.single else dict.fromkeys(form.states):
        if _runs(trace_with, form._replace(states=(width,), single=True)):
            return DtypeError(
                f"{error}\n  init: {_spelt(form.states, False)} is given, which makes the state a "
                f"tuple; the cell's is one vector, init={width}"
            )
    return error


def _runs(trace_with: Callable[[ScanForm], Trace], form: ScanForm) -> bool:
    try:
        trace_with(form)
    except (DynbatchError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return True


def _spelt(states: Sequence[int], single: bool) -> str:
    return str(states[0]) if single else str(tuple(states))


def _sizes(value: object, depth: int) -> Iterator[int]:
    """The sizes of all parameters in something, as far as they are easily found."""
    if isinstance(value, Parameter):
        yield from value.shape
    elif depth < MOST_DEPTH:
        parts: Iterable[object] = value if isinstance(value, list | tuple) else ()
        parts = value.values() if isinstance(value, dict) else parts
        parts = vars(value).values() if hasattr(value, "__dict__") else parts
        for part in parts:
            yield from _sizes(part, depth + 1)
