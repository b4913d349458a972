"""Dropout whose mask is a hash of (stream, element number): no state, and nothing stored.

A stream's mask is the same in every mini-batch, on every device and in both dtypes, and backward
recomputes it.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import ELEMENTS, HOST, kernel
from dynbatch.kernels.segment import blocks, rows_of

MODULUS = 1 << 32
# 2³² divided by the golden ratio: it spreads small numbers over all bits.
GOLDEN_RATIO = 0x9E3779B9
# Of so many arrays beside each other a block is made, so that they stay in the second-level cache.
ARRAYS = 2


def hash32(values: Array) -> Array:
    """Scatter uint32 numbers in place: a bijection in which each input bit flips half the output.

    Source: Wellons 2018, "Prospecting for Hash Functions" (nullprogram.com/blog/2018/07/31, public
        domain), lowbias32, the multiply-xorshift function of least avalanche bias found there.
    """
    shifted = values >> np.uint32(16)
    np.bitwise_xor(values, shifted, out=values)
    np.multiply(values, np.uint32(0x7FEB352D), out=values)  # wraps around at 2³²
    np.right_shift(values, np.uint32(15), out=shifted)
    np.bitwise_xor(values, shifted, out=values)
    np.multiply(values, np.uint32(0x846CA68B), out=values)
    np.right_shift(values, np.uint32(16), out=shifted)
    np.bitwise_xor(values, shifted, out=values)
    return values


def random_bits(streams: Array, offsets: Array, start: int, end: int) -> Array:
    """hash(hash(i) ⊕ stream) for elements start, …, end - 1; i counts within the segment.

    The first round scatters i, so no stream is a shifted copy of another.

    Args:
        streams: (K,) uint32.
        offsets: (K + 1,) first element of each segment, from 0 to N; segments below 2³² elements.
    Returns:
        (end - start,) uint32.
    """
    part = slice(start, end)
    numbers = np.arange(end - start, dtype=np.uint32)
    np.add(numbers, np.uint32(start % MODULUS), out=numbers)  # wraps around at 2³²
    np.subtract(numbers, rows_of(offsets[:-1].astype(np.uint32), offsets, part), out=numbers)
    return _bits_of(numbers, rows_of(streams, offsets, part))


def _bits_of(numbers: Array, streams: Array | np.generic) -> Array:
    """The random bits of uint32 numbers, which are overwritten."""
    bits = hash32(numbers)
    np.bitwise_xor(bits, streams, out=bits)
    return hash32(bits)


def bounds_and_scales(probabilities: Array, dtype: np.typing.DTypeLike) -> tuple[Array, Array]:
    """The smallest uint32 that keeps an element, and the factor for kept elements."""
    bounds = np.minimum(probabilities * MODULUS, MODULUS - 1).astype(np.uint32)
    kept = 1 - probabilities
    scales = np.divide(1, kept, where=kept > 0, out=np.zeros_like(kept))
    return bounds, scales.astype(dtype)


@kernel(c=ELEMENTS, cuda=HOST)
def dropout(x: Array, streams: Array, probabilities: Array, offsets: Array, out: Array) -> None:
    """out = x / (1 - p) where random bits / 2³² >= p, else 0. It is its own gradient, on dy.

    Args:
        streams:       (K,) uint32, of each segment.
        probabilities: (K,) float64, of dropping an element; 0 <= p <= 1, and p = 1 drops all.

    Memory: 16 bytes for each element of a block, however many there are; none in C. One thread does
        it in NumPy: the calls are so short that two wait for the interpreter's lock (1.2 ms alone,
        1.6 shared).
    """
    bounds, scales = bounds_and_scales(probabilities, x.dtype)
    alike = bool((probabilities[:1] == probabilities).all())
    for part in blocks(x.size, ARRAYS):
        bound: Array | np.generic = bounds[0] if alike else rows_of(bounds, offsets, part)
        scale: Array | np.generic = scales[0] if alike else rows_of(scales, offsets, part)
        y = out[part]
        np.multiply(x[part], random_bits(streams, offsets, part.start, part.stop) >= bound, out=y)
        np.multiply(y, scale, out=y)


def drop_rows(x: Array, first: Array, stream: np.generic, p: float) -> None:
    """Drop elements of x (R, n), in place, as `dropout` does for one segment.

    Args:
        first:  (R,) uint32, the number of each row's first element; modulo 2³².
        stream: uint32.

    Memory: 16 bytes for each element of a block, or of a row.
    """
    bounds, scales = bounds_and_scales(np.array([p]), x.dtype)
    columns = np.arange(x.shape[1], dtype=np.uint32)
    for part in blocks(*x.shape):
        rows = x[part]
        bits = _bits_of(first[part, None] + columns, stream)
        np.multiply(rows, bits >= bounds[0], out=rows)
        np.multiply(rows, scales[0], out=rows)
