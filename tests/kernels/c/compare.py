"""Runs a kernel in C and in NumPy on arrays of equal content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime.dispatch import c_version

TOLERANCE = {"f": 1e-5, "d": 1e-12}


class Scratch:
    """An argument of so many elements, what a kernel leaves in which does not matter."""

    def __init__(self, size: int, dtype: Any) -> None:
        self.size = size
        self.dtype = dtype


def run_both(kernel: Callable[..., Any], *args: Any, **named: Any) -> Iterator[tuple[Array, Array]]:
    """All arrays after the kernel ran in C, and after it ran in NumPy, argument by argument.

    Fails if the kernel's C version does not take the arguments.
    """
    mine, expected = [_copy(arg) for arg in args], [_copy(arg) for arg in args]
    result = c_version(kernel)(*mine, **named)
    assert result is not NotImplemented, "the C version does not take these arguments"
    with library.reference_only():
        reference = kernel(*expected, **named)
    for arg, *pair in zip([*args, None], [*mine, result], [*expected, reference], strict=True):
        if not isinstance(arg, Scratch):
            yield from _pairs(*pair)


def assert_same(kernel: Callable[..., Any], *args: Any, **named: Any) -> None:
    """The C version leaves in all arrays what NumPy's leaves, within rounding."""
    for mine, reference in run_both(kernel, *args, **named):
        tolerance = TOLERANCE.get(reference.dtype.char, 0)
        np.testing.assert_allclose(mine, reference, tolerance, tolerance)


def _copy(arg: Any) -> Any:
    """An array of equal content and strides; lists and tuples of arrays alike."""
    if isinstance(arg, np.ndarray):
        if arg.base is None:
            return arg.copy()
        offset = arg.__array_interface__["data"][0] - arg.base.__array_interface__["data"][0]
        return np.ndarray(arg.shape, arg.dtype, arg.base.copy(), offset, arg.strides)
    if isinstance(arg, Scratch):
        return np.full(arg.size, np.nan, arg.dtype)
    if isinstance(arg, list | tuple):
        make = getattr(type(arg), "_make", type(arg))  # that of a NamedTuple
        return make([_copy(x) for x in arg])
    return arg


def _pairs(mine: Any, reference: Any) -> Iterator[tuple[Array, Array]]:
    if isinstance(reference, np.ndarray):
        yield mine, reference
    elif isinstance(reference, list | tuple):
        for pair in zip(mine, reference, strict=True):
            yield from _pairs(*pair)
