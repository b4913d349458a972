"""`StepResults`: the few numbers of a step that the host wants, in one copy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.kernels.arrays import download
from dynbatch.kernels.cuda.runtime.queue import queue

Shapes = Sequence[tuple[int, ...]]


class StepResults:
    """Small arrays for kernels to write, not set.

    Args:
        like:    of the device and the dtype of `numbers`.
        ids, numbers: shapes.

    Attributes:
        ids:     int64, on a GPU int32.
        numbers: of like's dtype.
    """

    def __init__(self, like: Array, ids: Shapes, numbers: Shapes) -> None:
        self._shapes = ids, numbers
        self._dtype = like.dtype
        self._whole: Array | None = None
        if isinstance(like, np.ndarray):
            self.ids = [np.empty(shape, np.int64) for shape in ids]
            self.numbers = [np.empty(shape, like.dtype) for shape in numbers]
        else:
            words = sum(map(math.prod, numbers)) * like.itemsize // 4 + sum(map(math.prod, ids))
            self._whole = device_of(like).xp.empty(words, np.int32)
            self.ids, self.numbers = self._parts(self._whole)

    def _parts(self, whole: Array) -> tuple[list[Array], list[Array]]:
        """Views of ids and numbers; the numbers, which may be wider, come first."""
        ids, numbers = self._shapes
        parts: list[Array] = []
        start = 0
        for shape, dtype in [(n, self._dtype) for n in numbers] + [(n, np.int32) for n in ids]:
            end = start + math.prod(shape) * np.dtype(dtype).itemsize // 4
            parts.append(whole[start:end].view(dtype).reshape(shape))
            start = end
        return parts[len(numbers) :], parts[: len(numbers)]

    def read(self) -> tuple[list[Array], list[Array]]:
        """The ids, int64, and the numbers on the host; on a GPU it waits for the kernels."""
        if self._whole is None:
            return self.ids, self.numbers
        ids, numbers = self._parts(download(self._whole))
        return [array.astype(np.int64) for array in ids], numbers


def start_kernels(array: Array) -> None:
    """Start what waits for the array's GPU, if it lies on one: others may read it then."""
    if not isinstance(array, np.ndarray):
        device_of(array).use()
        queue().flush()
