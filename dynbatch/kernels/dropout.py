"""Dropout whose mask is a function of (stream, element number): nothing is stored, nothing drawn.

A stream's mask is the same in every mini-batch, on every device and in both dtypes, and backward
makes it again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MODULUS = 1 << 32


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


def random_bits(streams: Array, offsets: Array) -> Array:
    """hash(hash(i) ⊕ stream) for element i = 0, 1, … of every segment.

    The first round scatters i, so that two streams never are shifted copies of one another.

    Args:
        streams: (K,) uint32.
        offsets: (K + 1,) first element of each segment, from 0 to N; segments below 2³² elements.
    Returns:
        (N,) uint32.
    """
    sizes = np.diff(offsets)
    numbers = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], sizes)
    bits = hash32(numbers.astype(np.uint32))
    np.bitwise_xor(bits, np.repeat(streams, sizes), out=bits)
    return hash32(bits)


def dropout(x: Array, streams: Array, probabilities: Array, offsets: Array, out: Array) -> None:
    """out = x / (1 - p) where random bits / 2³² >= p, else 0. It is its own gradient, on dy.

    Args:
        x:             (N,) elements.
        streams:       (K,) uint32, of each segment.
        probabilities: (K,) float64, of dropping an element; 0 <= p <= 1, and p = 1 drops all.
        offsets:       (K + 1,) first element of each segment, from 0 to N.
        out:           (N,), overwritten.
    """
    bits = random_bits(streams, offsets)
    bounds = np.minimum(probabilities * MODULUS, MODULUS - 1).astype(np.uint32)
    kept = 1 - probabilities
    scales = np.divide(1, kept, where=kept > 0, out=np.zeros_like(kept)).astype(x.dtype)
    if probabilities.size and (probabilities == probabilities[0]).all():
        np.multiply(x, bits >= bounds[0], out=out)
        np.multiply(out, scales[0], out=out)
    else:
        sizes = np.diff(offsets)
        np.multiply(x, bits >= np.repeat(bounds, sizes), out=out)
        np.multiply(out, np.repeat(scales, sizes), out=out)
