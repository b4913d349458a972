"""The precision of products with weights: what their factors are rounded to.

Tensor cores of a GPU multiply float32 matrices after rounding each factor to fewer bits of
mantissa, and sum the products in float32; some processors have an instruction for bfloat16.
`multiplying` says which bits a run wants; on a GPU cuBLAS is asked for them, on the CPU factors are
rounded here, or in C (`factors.h`), so that a model can be trained about as a GPU will train it:
cuBLAS may cut factors where we round them. In C, a bfloat16 below the normal numbers is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypedDict

import numpy as np

from dynbatch.arguments import refused
from dynbatch.backend import Array, Device, DType
from dynbatch.errors import BackendError

FULL = "float32"
SHORT = "bfloat16"
MANTISSA_BITS = {FULL: 23, "tf32": 10, SHORT: 7}
"""Bits of a factor's mantissa by the precision's name, without the one that is always 1."""

QUIET = np.uint32(0x400000)
"""The bit of a NaN's mantissa that bfloat16 keeps, so that it does not become infinity."""

LEAST_CAPABILITY = 80


class Rounding(TypedDict, total=False):
    """The arguments of a graph that say what is rounded: see `Graph`."""

    matmul: str | None
    precision: str


_of_products = ContextVar("precision of products", default=FULL)

of_products = _of_products.get
"""The precision of products with weights in this thread, and in those that help it."""


@contextmanager
def multiplying(precision: str) -> Iterator[None]:
    """Give products with weights a precision inside the block."""
    before = _of_products.set(precision)
    try:
        yield
    finally:
        _of_products.reset(before)


def rounded(x: Array) -> Array:
    """A float32 array as factors of products are rounded; `x` itself where they are not.

    bfloat16 goes to the nearest, of two the even one, as the instruction `cvt.rn.bf16.f32`; TF32 to
    the nearest, of two the one further from 0, as `cvt.rna.tf32.f32`. Infinity stays, and NaN, of
    which bfloat16 keeps the upper bits, and sets the one that makes it quiet.

    Example:
        >>> import numpy as np
        >>> x = np.array([1.0, 1 + 2**-8, 1 + 2**-11], np.float32)
        >>> for name in MANTISSA_BITS:
        ...     with multiplying(name):
        ...         print((rounded(x) - 1).tolist())
        [0.0, 0.00390625, 0.00048828125]
        [0.0, 0.00390625, 0.0009765625]
        [0.0, 0.0, 0.0]
    """
    precision = of_products()
    if precision == FULL or x.dtype != np.float32:
        return x
    return round_to(x, precision)


def round_to(x: Array, precision: str) -> Array:
    """A float32 array rounded to "tf32" or "bfloat16"; see `rounded`."""
    dropped = MANTISSA_BITS[FULL] - MANTISSA_BITS[precision]
    bits = np.ascontiguousarray(x).view(np.uint32)
    half, kept = np.uint32(1 << (dropped - 1)), np.uint32((1 << 32) - (1 << dropped))
    if precision == SHORT:
        nearest = bits + (half - np.uint32(1)) + ((bits >> np.uint32(dropped)) & np.uint32(1))
        np.bitwise_or(bits, QUIET, out=nearest, where=np.isnan(x))
        return (nearest & kept).view(np.float32)
    result: Array = ((bits + half) & kept).view(np.float32)
    np.copyto(result, x, where=~np.isfinite(x))
    return result


def upper_halves(x: Array) -> Array:
    """The bits of rounded float32 numbers in bfloat16, as uint16."""
    return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def widened(x: Array) -> Array:
    """The numbers whose upper halves an array of uint16 has, in its order; another array itself."""
    if x.dtype != np.uint16:
        return x
    numbers: Array = np.left_shift(x, 16, dtype=np.uint32).view(np.float32)
    return numbers


def of_matmul(matmul: str | None, precision: str) -> str:
    """The precision to which a graph with these arguments rounds factors of products."""
    return precision if matmul is None else matmul


def of_values(precision: object, dtype: DType, owner: str = "Graph") -> str:
    """The argument `precision` of a graph, or of an `owner` of graphs.

    Raises:
        ArgumentError: the name is unknown, or numbers are of float64.
    """
    if precision not in (FULL, SHORT):
        raise refused(
            owner, f"precision is {precision!r}", f'"{FULL}" or "{SHORT}"',
            'precision="bfloat16" has values in half the memory; leave it out for float32',
        )  # fmt: skip
    if precision == SHORT and dtype != np.float32:
        raise refused(
            owner, f"precision={precision!r} for numbers of {dtype}",
            "only float32 is rounded", 'leave precision out, or dtype="float32"',
        )  # fmt: skip
    return str(precision)


def checked(precision: object, dtype: DType, device: Device) -> str:
    """The argument `matmul` of a graph.

    Raises:
        ArgumentError: the name is unknown, or the graph is of float64.
        BackendError:  the GPU has no tensor cores for it.
    """
    if not isinstance(precision, str) or precision not in MANTISSA_BITS:
        names = ", ".join([f'"{name}"' for name in MANTISSA_BITS])
        raise refused(
            "Graph", f"matmul is {precision!r}", f"one of {names}",
            'matmul="tf32" multiplies on tensor cores; leave it out for float32',
        )  # fmt: skip
    if precision == FULL:
        return precision
    if dtype != np.float32:
        raise refused(
            "Graph", f"matmul={precision!r} in a graph of {dtype}",
            "only factors of float32 are rounded", 'leave matmul out, or dtype="float32"',
        )  # fmt: skip
    if device.is_cuda:
        capability = int(device.xp.cuda.Device().compute_capability)
        if capability < LEAST_CAPABILITY:
            raise BackendError(
                f"Graph: matmul={precision!r} on a GPU of capability "
                f"{capability // 10}.{capability % 10}.\n"
                "  rule: tensor cores multiply float32 from capability 8.0 on (Ampere)\n"
                "  fix:  leave matmul out: products are of float32 then"
            )
    return precision
