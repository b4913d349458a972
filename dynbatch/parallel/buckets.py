"""Arrays that travel together: copied into one message, or a message by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dynbatch.backend import Array, DType, device_of
from dynbatch.kernels import arrays as kernels
from dynbatch.kernels.runtime.stream import flush


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


def flat_buckets(arrays: Sequence[Array]) -> Iterator[Array]:
    """The numbers of each bucket, flat; when the next one is asked for, they are copied back.

    An array that is alone and contiguous is not copied.
    """
    for bucket in buckets(arrays):
        is_copied = len(bucket) > 1 or not bucket[0].flags.c_contiguous
        flat = kernels.pack(bucket) if is_copied else bucket[0].reshape(-1)
        yield flat
        if is_copied:
            kernels.distribute(flat, bucket)
        flush(flat)
