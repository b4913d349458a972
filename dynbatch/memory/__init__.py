"""Memory: planned offsets inside a run's arena, and the pool that arenas come from.

`Buddy` and `SizeClasses` are allocators to compare `Arena` with: give one to a `Pool`, or record a
run with `Logging` and compare allocators on the log with `replay`.

`compare_padding` measures what padding would cost, and `main` is the command that does so. Both are
made of everything above this layer, and stand here for users: the package binds them.
"""

from collections.abc import Callable
from typing import Any

from dynbatch.memory.arena import Arena
from dynbatch.memory.buddy import Buddy
from dynbatch.memory.log import Event, Logging, read_log
from dynbatch.memory.planner import Interval, live_peak, plan_offsets
from dynbatch.memory.pool import Pool, default_pool
from dynbatch.memory.replay import Replay, replay
from dynbatch.memory.resource import (
    Adaptor,
    Buffer,
    Limit,
    MemoryStatistics,
    Resource,
    Retry,
    Statistics,
)
from dynbatch.memory.size_classes import SizeClasses
from dynbatch.memory.upstream import DeviceMemory, GivenMemory, HostMemory

compare_padding: Callable[..., Any]
main: Callable[[], int]

__all__ = [
    "Adaptor",
    "Arena",
    "Buddy",
    "Buffer",
    "DeviceMemory",
    "Event",
    "GivenMemory",
    "HostMemory",
    "Interval",
    "Limit",
    "Logging",
    "MemoryStatistics",
    "Pool",
    "Replay",
    "Resource",
    "Retry",
    "SizeClasses",
    "Statistics",
    "compare_padding",
    "default_pool",
    "live_peak",
    "plan_offsets",
    "read_log",
    "replay",
]
