"""A pool whose memory is NaN, so that nothing can be right by the luck of old contents."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.memory import DeviceMemory, HostMemory, Pool
from dynbatch.parameter import Array


class NanPool(Pool):
    """Gives arenas filled with NaN: an element that is read before it is written shows."""

    def take(self, elements: int, dtype: Any) -> Array:
        """As `Pool.take`, with every element NaN."""
        array = super().take(elements, dtype)
        array.fill(np.nan)
        return array


def nan_pool(device: str) -> NanPool:
    """Such a pool over the memory of a device."""
    return NanPool(upstream=DeviceMemory() if device == "cuda" else HostMemory())
