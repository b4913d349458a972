"""Arrays that travel together: copied into one message, or a message by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynbatch.backend import Array, DType, device_of
from dynbatch.kernels import arrays as kernels


def buckets(arrays: Sequence[Array], most_bytes: float = math.inf) -> list[list[Array]]:
    """Arrays in groups of one dtype and device, each of up to so many bytes; or one larger array.

    Example:
        >>> import numpy as np
        >>> given = [np.zeros(4), np.zeros(2, np.float32), np.zeros(3), np.zeros(1)]
        >>> [[array.size for array in bucket] for bucket in buckets(given, most_bytes=32)]
        [[4], [2], [3, 1]]
    """
    filled: list[list[Array]] = []
    filling: dict[tuple[str, DType], tuple[list[Array], float]] = {}
    for array in arrays:
        kind = device_of(array).name, array.dtype
        bucket, nbytes = filling.get(kind, ([], math.inf))
        if nbytes + array.nbytes > most_bytes or not bucket:
            bucket, nbytes = [], 0
            filled.append(bucket)
        bucket.append(array)
        filling[kind] = bucket, nbytes + array.nbytes
    return filled


def joined(bucket: Sequence[Array]) -> Array:
    """All numbers of a bucket: one array itself, if it is alone and contiguous."""
    if len(bucket) == 1 and bucket[0].flags.c_contiguous:
        return bucket[0].reshape(-1)
    return kernels.pack(bucket)


def write_back(flat: Array, bucket: Sequence[Array]) -> None:
    """Copy the numbers of a bucket, as `joined` made them, to its arrays."""
    if len(bucket) == 1 and bucket[0].flags.c_contiguous:
        return
    kernels.distribute(flat, bucket)
