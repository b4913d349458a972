"""Where bytes lie: planned offsets inside a run's arena, and the pool that arenas come from."""

from dynbatch.memory.planner import Interval, live_peak, plan_offsets
from dynbatch.memory.pool import Pool, default_pool
from dynbatch.memory.upstream import DeviceMemory, HostMemory, Upstream

__all__ = [
    "DeviceMemory",
    "HostMemory",
    "Interval",
    "Pool",
    "Upstream",
    "default_pool",
    "live_peak",
    "plan_offsets",
]
