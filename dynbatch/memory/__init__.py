"""Where bytes lie: planned offsets inside a run's arena, and the pool that arenas come from.

`compare_padding` measures what padding would cost. It is made of everything above this layer, and
stands here for its users: looked up on first use, the one arrow that points up.
"""

import importlib
from typing import Any

from dynbatch.memory.planner import Interval, live_peak, plan_offsets
from dynbatch.memory.pool import Pool, default_pool
from dynbatch.memory.upstream import DeviceMemory, HostMemory, Upstream

__all__ = [
    "DeviceMemory",
    "HostMemory",
    "Interval",
    "Pool",
    "Upstream",
    "compare_padding",
    "default_pool",
    "live_peak",
    "plan_offsets",
]


def __getattr__(name: str) -> Any:
    """`compare_padding` on first use: it needs models, training and tqdm, the rest NumPy alone."""
    if name == "compare_padding":
        return importlib.import_module("dynbatch.padding").compare_padding
    raise AttributeError(f"module 'dynbatch.memory' has no attribute {name!r}")
