"""Calls of C functions that are written down first and then made without Python in between.

After C has gone through megabytes the interpreter finds nothing of its own in the caches: what it
does in 3 ms in one stretch takes 6 between such calls (measured).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.sharing import share, team
from dynbatch.kernels.runtime import parallel


class NativeTask(NamedTuple):
    """A call of a C function.

    row:   where the function is, how many arguments it has, and these.
    alive: arrays whose addresses are among them.
    """

    row: bytes
    alive: tuple[Any, ...]


def task(function: Any, arguments: Sequence[Any], *alive: Any) -> NativeTask:
    """A call of a function of a library."""
    head = struct.pack("qq", function.packed, len(arguments))
    return NativeTask(head + function.packing.pack(*[x or 0 for x in arguments]), alive)


class NativeTasks:
    """Tasks in stages: one begins when the one before it has ended."""

    def __init__(self) -> None:
        self._stages: list[list[Sequence[NativeTask]]] = []

    def then(self, *parts: Sequence[NativeTask]) -> None:
        """Add a stage, whose parts may run at the same time."""
        self._stages.append([*parts])

    def run(self) -> None:
        """Do all of it."""
        stages, self._stages = [stage for stage in self._stages if any(stage)], []
        if not stages:
            return
        if parallel.available() < 2:
            stages = [[[each for stage in stages for part in stage for each in part]]]
        for stage in stages:
            rows = [
                np.frombuffer(b"".join([each.row for each in part]), np.int64) for part in stage
            ]
            counts = map(len, stage)
            share(team().run_tasks, [*zip(counts, map(address, rows), strict=True)])
