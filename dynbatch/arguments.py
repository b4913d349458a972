"""Checks of arguments: sizes, numbers within an interval, switches, lists, dtypes."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.errors import ArgumentError, DtypeError, ShapeError

MOST_NAMES = 12
"""Names of a state that an error lists; a wrong number of layers changes hundreds."""


class NumberRange(NamedTuple):
    """An interval from `low` to `high`, each bound included or not."""

    low: float
    high: float
    has_low: bool
    has_high: bool

    def holds(self, value: float) -> bool:
        """Whether a number lies in the interval. NaN does not."""
        above = value >= self.low if self.has_low else value > self.low
        below = value <= self.high if self.has_high else value < self.high
        return above and below

    def rule(self, name: str) -> str:
        """The rule for a number called `name`."""
        low = "" if self.low == -math.inf else f"{self.low:g} {'<=' if self.has_low else '<'} "
        high = "" if self.high == math.inf else f" {'<=' if self.has_high else '<'} {self.high:g}"
        if low and not high:
            return f"a number, {name} {'>=' if self.has_low else '>'} {self.low:g}"
        return f"a number, {low}{name}{high}" if low or high else "a number that is finite"


@cache
def interval(text: str) -> NumberRange:
    """Parse an interval in mathematical notation: "[0, 1)" holds 0 and not 1."""
    low, high = map(float, text[1:-1].split(","))
    return NumberRange(low, high, text[0] == "[", text[-1] == "]")


def refused(owner: str, problem: str, rule: str, fix: str) -> ArgumentError:
    """The error for an argument that is not accepted."""
    return ArgumentError.at_caller(f"{owner}: {problem}.\n  rule: {rule}\n  fix:  {fix}")


def number(owner: object, name: str, value: Any, within: str = "(-inf, inf)") -> float:
    """The argument as a float.

    Args:
        owner:  the object whose argument it is, or the name of a function.
        within: an interval, as "[0, 1)".

    Raises:
        ArgumentError: it is not a number (text, True, an array of several), NaN, or outside.
    """
    bounds = interval(within)
    if _is_number(value) and bounds.holds(float(value)):
        return float(value)
    rule = bounds.rule(name)
    raise refused(_named(owner), f"{name} is {value!r}", rule, _fix(name, value, bounds))


def pair(
    owner: object, name: str, value: Any, within: tuple[str, str], example: str
) -> tuple[float, float]:  # fmt: skip
    """The argument as two floats, each within its interval.

    Raises:
        ArgumentError: it is not a pair, or as `number`.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        rule = f"{name} is a pair of numbers, within {' and '.join(within)}"
        raise refused(_named(owner), f"{name} is {value!r}", rule, f"{name}={example}")
    first, second = [number(owner, f"{name}[{k}]", value[k], within[k]) for k in range(2)]
    return first, second


def size(owner: object, name: str, value: Any, least: int = 1) -> int:
    """The argument as an int, `least` or more.

    Raises:
        ArgumentError: it is not an integer (2.0, "2", True), or smaller.
    """
    if is_integer(value) and value >= least:
        return operator.index(value)
    fix = f"give {name} an integer, {least} or more"
    if _is_text_of_number(value):
        value_of = float(value)
        if value_of.is_integer() and value_of >= least:
            fix = f"give {name}={int(value_of)}, without quotes"
    elif isinstance(value, float | np.floating) and value >= least and float(value).is_integer():
        fix = f"give {name}={int(value)}; of a quotient, // makes an integer"
    raise refused(
        _named(owner), f"{name} is {value!r}", f"an integer, {name} >= {least}", fix
    )  # fmt: skip


def integer(owner: object, name: str, value: object) -> int:
    """The argument as an int, of any sign.

    Raises:
        ArgumentError: it is not an integer (2.0, "2", True).
    """
    if is_integer(value):
        return operator.index(value)
    raise refused(_named(owner), f"{name} is {value!r}", "an integer", f"give {name} an integer")


def sizes(owner: object, **values: object) -> None:
    """Check several arguments that are sizes, 1 or more each, by their names.

    Raises:
        ArgumentError: one is not an integer, or smaller than 1.
    """
    for name, value in values.items():
        size(owner, name, value)


def switch(owner: object, name: str, value: object) -> bool:
    """The argument as a bool.

    Raises:
        ArgumentError: it is neither True nor False.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    fix = f"give {name}=True or {name}=False; by name, if arguments were given by position"
    raise refused(_named(owner), f"{name} is {value!r}", "True or False", fix)


def listed(owner: object, name: str, value: Any, fix: str) -> list[Any]:
    """The items of an argument.

    Raises:
        ArgumentError: it cannot be iterated: None, a number, a class.
    """
    try:
        if is_indexed(value) and not hasattr(type(value), "__iter__"):
            return [value[k] for k in range(len(value))]  # `list` would ask on until an error comes
        return list(value)
    except TypeError as error:
        if hasattr(type(value), "__iter__"):
            raise  # of the user's own
        raise refused(_named(owner), f"{name} is {shown(value)}", "a list", fix) from error


def is_indexed(value: object) -> bool:
    """Whether the type of a value has len(value) and value[k]."""
    return hasattr(type(value), "__len__") and hasattr(type(value), "__getitem__")


def row_mask(owner: str, name: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Rows of a matrix as a mask, (rows,) bool, from their numbers or from such a mask.

    Args:
        shape: of the matrix.

    Raises:
        ShapeError:    it is not the shape of a matrix, or the mask has not an entry for each row.
        DtypeError:    the rows are neither integers nor truth values.
        ArgumentError: there is no such row.
    """
    rows = np.asarray(value)
    if len(shape) != 2 or rows.ndim != 1 or (rows.dtype == bool and rows.shape != shape[:1]):
        raise ShapeError.at_caller(
            f"{owner}: {name} {rows.shape} of an array {shape}.\n"
            "  rule: row numbers of a matrix, or a mask with an entry for each of its rows\n"
            f"  fix:  {name} = [0, 3]"
        )
    if rows.dtype == bool:
        return rows.copy()
    if rows.size and rows.dtype.kind not in "iu":
        raise DtypeError.at_caller(
            f"{owner}: {name} of {rows.dtype}.\n  rule: row numbers, or truth values\n"
            "  fix:  rows.astype(np.int64)"
        )
    outside = rows[(rows < 0) | (rows >= shape[0])]
    if outside.size:
        rule = f"0 <= row < {shape[0]}"
        raise refused(owner, f"{name} has {outside[0]}", rule, "give rows of this array")
    mask = np.zeros(shape[0], bool)
    mask[rows.astype(np.int64)] = True
    return mask


def state_of(owner: object, value: object) -> Mapping[str, Any]:
    """The argument of a `load_state_dict`.

    Raises:
        ArgumentError: it is not a dict.
    """
    if isinstance(value, Mapping):
        return value
    raise refused(
        _named(owner), f"the state is {shown(value)}", "arrays by their names, a dict",
        "give what state_dict() returned",
    )  # fmt: skip


def state_differences(
    wanted: Mapping[str, tuple[int, ...]], saved: Mapping[str, tuple[int, ...]], owner: str
) -> str:
    """The differences between a state and its target, in lines; "" if names and shapes agree.

    Args:
        wanted: shapes by name that the owner has.
        saved:  shapes by name in the state.
        owner:  what the state is loaded into, such as "model".
    """
    missing, unknown = sorted(wanted.keys() - saved.keys()), sorted(saved.keys() - wanted.keys())
    shapes = [
        f"{name}: {owner} {shape}, state {saved[name]}"
        for name, shape in sorted(wanted.items())
        if name in saved and saved[name] != shape
    ]
    if not missing and not unknown and not shapes:
        return ""
    return (
        f"  missing: {_first(missing)}\n  unknown: {_first(unknown)}\n"
        f"  shapes differ: {_first(shapes)}"
    )


def _first(names: list[str]) -> str:
    """A list as text, with the number of those behind the first dozen in place of them."""
    more = len(names) - MOST_NAMES
    return f"{names[:MOST_NAMES]}" + (f" and {more:,} more" if more > 0 else "")


def function(owner: object, name: str, value: object, form: str) -> None:
    """Check an argument that must be a function.

    Args:
        form: the expected call, as "validate(model) -> metric".

    Raises:
        ArgumentError: it is not a function, or cannot be called so.
    """
    if not callable(value):
        fix = f"give the function itself: {name}=a_function"
        raise refused(_named(owner), f"{name} is {shown(value)}", f"a function, {form}", fix)
    arguments = form[form.find("(") + 1 : form.find(")")]
    try:
        inspect.signature(value).bind(*[part for part in arguments.split(", ") if part])
    except ValueError:  # some functions of C do not tell
        return
    except TypeError as error:
        raise refused(
            _named(owner), f"{name} takes other arguments: {error}", f"a function, {form}",
            f"wrap what you have: {name}=lambda {arguments}: …",
        ) from None  # fmt: skip


def float_dtype(owner: object, value: Any) -> DType:
    """The argument as the dtype of values.

    Raises:
        DtypeError: it is neither float32 nor float64.
    """
    try:
        dtype: DType | None = None if value is None else np.dtype(value)
    except (TypeError, ValueError):  # what NumPy has not heard of
        dtype = None
    if dtype is not None and dtype in (np.float32, np.float64):
        return dtype
    meant = str(value).rpartition(".")[2]
    fix = meant if meant in ("float32", "float64") else "float32"
    raise DtypeError.at_caller(
        f"{_named(owner)}: dtype is {value!r}.\n  rule: float32 or float64 expected\n"
        f'  fix:  give dtype="{fix}"'
    )


def shown(value: object) -> str:
    """A value as errors show it: None and numbers as they are, anything else by its type."""
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _named(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


def _is_number(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iuf"
    is_real = isinstance(value, int | float | np.integer | np.floating)
    return is_real and not isinstance(value, bool)


def _is_text_of_number(value: object) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _fix(name: str, value: Any, within: NumberRange) -> str:
    if _is_text_of_number(value) and within.holds(float(value)):
        return f"give {name}={float(value):g}, without quotes"
    if isinstance(value, bool):
        return f"give {name} by its name: a switch was given in its position"
    return f"give {name} such a number"


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy: neither 2.0 nor True."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 0 to below 2^63."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold, infinity and NaN included."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isinstance(value, float) or abs(value) < 1 << 1000
