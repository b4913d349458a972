"""The largest distance of a cuBLAS product with rounded factors from the exact one.

The stand-in rounds factors to the nearest, as our own kernels and the CPU do. How cuBLAS rounds its
manual does not say: a tensor core that is given float32 as TF32 cuts it, a small product may not be
rounded at all, and one of bfloat16 may be of TF32. So on a card a bound is all that holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS, round_to

Array = np.ndarray[Any, np.dtype[Any]]


def error_share(precision: str, products: int = 1) -> float:
    """The share of |A||B| by which A B may be off: 2^(1 - bits), as each factor by 2^-bits.

    Args:
        products: so many in a chain, whose magnitudes are multiplied likewise.
    """
    return (1 + 2.0 ** -MANTISSA_BITS[precision]) ** (2 * products) - 1


def cut(x: Array, precision: str) -> Array:
    """A float32 array without the low bits that a precision has not."""
    dropped = MANTISSA_BITS[FULL] - MANTISSA_BITS[precision]
    mask = np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    cut_off: Array = (np.ascontiguousarray(x).view(np.uint32) & mask).view(np.float32)
    return cut_off


CUBLAS_MAY: dict[str, Callable[[Array, str], Array]] = {
    "round": round_to,
    "cut": cut,
    "cut to TF32": lambda x, precision: cut(x, "tf32"),
    "do nothing": lambda x, precision: x,
}
"""How cuBLAS may round, for the stand-in's `cublas.round_to`."""
