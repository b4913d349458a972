"""Memory that is worse than it will be: full of NaN, or used up in the middle of a step."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.memory import Adaptor, Buffer, DeviceMemory, HostMemory, Pool, Resource


class NanPool(Pool):
    """Gives arenas filled with NaN: an element that is read before it is written shows."""

    def take(self, elements: int, dtype: Any, label: str = "") -> Array:
        """An arena of `Pool.take`, with every element NaN."""
        array = super().take(elements, dtype, label)
        array.fill(np.nan)
        return array


def nan_pool(device: str) -> NanPool:
    return NanPool(upstream=DeviceMemory() if device == "cuda" else HostMemory())


class FailingMemory(Adaptor):
    """An upstream that has no memory left at some of its allocations.

    Args:
        fails:    numbers of the allocations that fail, counted from 1: `{3}`, or
                  `range(3, 1 << 60)` for the third and all that follow. It may be set.
        upstream: where the others come from; by default `HostMemory()`.

    Attributes:
        calls: allocations so far, failures included.

    Example:
        >>> from dynbatch.memory import Pool
        >>> from dynbatch.testing import FailingMemory
        >>> memory = FailingMemory({1})
        >>> pool = Pool(upstream=memory)
        >>> _ = pool.take(10, "float32")  # the pool tries twice
        >>> memory.calls
        2
    """

    def __init__(self, fails: Container[int] = (), upstream: Resource | None = None) -> None:
        super().__init__(upstream or HostMemory())
        self.fails = fails
        self.calls = 0

    def allocate(self, size: int) -> Buffer:
        """Allocate from the upstream, if it is not the turn of a failure.

        Raises:
            MemoryError: it is.
        """
        self.calls += 1
        if self.calls in self.fails:
            raise MemoryError(f"allocation {self.calls} fails, as it was told to")
        return self.upstream.allocate(size)
