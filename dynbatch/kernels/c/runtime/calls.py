"""Calls of C functions that are printed from C's own parameters: checks, addresses, threads.

A function goes through a range, `first` to `last`, of what its walk counts: elements, rows or
segments. Of its other parameters

* `REAL* x` is an array whose elements lie side by side; beside `ptrdiff_t x_stride`, whose rows do;
* `whole* x` is such an array of integers as wide as REAL;
* `const int64_t* x`, or a pointer to another type, is a table, which is converted where need be;
* `width` is the number of columns, unless it is a parameter of the kernel;
* a number is a number.

A call is one frame of Python, which matters: on a small array it takes longer than C.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.c.runtime.arrays import ADDRESS, address_names, has_rows
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.source import CParameter
from dynbatch.kernels.runtime.dispatch import ELEMENTS, ROWS, SEGMENTS, Walk
from dynbatch.kernels.runtime.tasks import WORTH_A_THREAD, share_rows, writing

ARRAYS = "REAL", "whole"
TABLES = {"int64_t": "i8", "uint32_t": "u4", "uint16_t": "u2", "double": "f8"}
"""The dtypes of tables, by the types of their elements in C."""

COUNTS = {ELEMENTS: "{like}.size", ROWS: "len({rows})", SEGMENTS: "len(offsets) - 1"}
"""The number that `first` and `last` are ranges of."""

TEXT = """\
def {name}({parameters}):
    functions = library.functions({like}.dtype)
    if functions is None or not ({checks}):
        return NotImplemented
    {tables}
    count, size = {count}, {size}
    if size < 2 * least and writing.tasks is None:
        functions.{name}(0, count{arguments})
    else:
        each = size // (count or 1)
        share_rows(functions.{name}, count, each{arguments}, least=least, alive=({alive},))
"""


@cache
def library_of(file: str) -> Library:
    """The library of a source file."""
    return Library(file)


def call_of(
    kernel: Callable[..., Any], walk: Walk, most: Mapping[str, int] | None = None
) -> Callable[..., Any]:
    """The call of the C function that has the name, module and parameters of a NumPy kernel."""
    file = kernel.__module__.removeprefix("dynbatch.kernels.").replace(".", "/") + ".c"
    limits = tuple([f"{name} <= {number}" for name, number in (most or {}).items()])
    return print_call(file, kernel.__name__, walk, inspect.signature(kernel), limits=limits)


@cache
def print_call(
    file: str, name: str, walk: Walk, signature: inspect.Signature | None = None,
    optional: str = "", least: int = WORTH_A_THREAD, limits: tuple[str, ...] = (),
) -> Callable[..., Any]:  # fmt: skip
    """The call of a C function, which returns NotImplemented where C does not take the arguments.

    Args:
        file:      its source, as `library_of` names it.
        signature: the parameters of the call; by default those of C that the walk does not tell.
        optional:  the arrays that may be None, beside those whose annotation says so.
        least:     elements that are worth a thread.
        limits:    what else C wants of the arguments, as text.

    Raises:
        LookupError: C has another parameter, or lacks one.
    """
    of_c = {each.name: each for each in source.parameters(source.read(file))[name]}
    known = {"first", "last"} | {f"{each}_stride" for each in of_c if f"{each}_stride" in of_c}
    if signature is None:
        known |= {"width"} & {*of_c}
        names = [each for each in of_c if each not in known]
        signature = inspect.Signature(
            [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in names]
        )
    parameters = signature.parameters
    can_be_none = {k for k, each in parameters.items() if str(each.annotation).endswith("None")}
    known |= {"width"} - {*parameters}
    if wrong := ({*of_c} - known) ^ {*parameters}:
        raise LookupError(f"{file}: {name} and its kernel differ in {', '.join(sorted(wrong))}")
    scope: dict[str, Any] = {
        "library": library_of(file), "writing": writing, "share_rows": share_rows, "np": np,
        "has_rows": has_rows, "least": least, **address_names,
    }  # fmt: skip
    missing = can_be_none.union(optional.split())
    text = _text(name, walk, of_c, [*parameters], missing, limits)
    exec(compile(text, f"<call of {name} in {file} printed by dynbatch>", "exec"), scope)
    scope[name].__defaults__ = tuple(
        [each.default for each in parameters.values() if each.default is not each.empty]
    )
    printed: Callable[..., Any] = scope[name]
    return printed


def _text(
    name: str,
    walk: Walk,
    of_c: dict[str, CParameter],
    parameters: list[str],
    optional: set[str],
    limits: Sequence[str],
) -> str:
    """The text of a call, whose parameters are those of the kernel."""
    pointers = [of_c[each] for each in parameters if of_c[each].is_pointer]
    arrays = [each.name for each in pointers if each.type in ARRAYS]
    tables = [each for each in pointers if each.type in TABLES]
    required = [each for each in arrays if each not in optional and of_c[each].type == "REAL"]
    like, last = required[0], required[-1]

    def check(x: str) -> str:
        dtype = f"{like}.dtype" if of_c[x].type == "REAL" else f"'i%d' % {like}.itemsize"
        packed = f"{x}.flags.c_contiguous"
        if f"{x}_stride" in of_c:
            packed = f"({packed} or has_rows({x}))"
        told = packed if x == like else f"{x}.dtype == {dtype} and {packed}"
        return f"({x} is None or {told})" if x in optional else told

    def written(each: CParameter) -> str:
        """The check of a table that C writes, which is not converted."""
        return f"{each.name}.dtype == '{TABLES[each.type]}' and {each.name}.flags.c_contiguous"

    def argument(each: CParameter) -> str:
        array = each.name.removesuffix("_stride")
        if each.name == "width" and "width" not in parameters:
            return f"{like}.shape[1]"
        value = ADDRESS.format(each.name) if each.is_pointer else each.name
        if array != each.name and array in arrays:
            value = f"{array}.strides[0] // {like}.itemsize"
        return f"0 if {array} is None else {value}" if array in optional else value

    checks = (
        [*limits] + [check(x) for x in arrays] + [written(x) for x in tables if not x.is_read_only]
    )
    converted = [
        f"{x.name} = np.ascontiguousarray({x.name}, '{TABLES[x.type]}')"
        for x in tables if x.is_read_only
    ]  # fmt: skip
    return TEXT.format(
        name=name,
        parameters=", ".join(parameters),
        like=like,
        checks=" and ".join(checks),
        tables="; ".join(converted) or "pass",
        count=COUNTS[walk].format(like=like, rows="out" if "out" in of_c else like),
        size=f"max({like}.size, {last}.size)" if walk is SEGMENTS else f"{like}.size",
        arguments="".join([f", {argument(each)}" for each in [*of_c.values()][2:]]),
        alive=", ".join([each.name for each in pointers]),
    )
