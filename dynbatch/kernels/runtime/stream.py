"""`stream_of`: the stream of a device, which all work for the device is written on, in order.

On a GPU it is a `Queue`, where work waits for one copy of all tables. The host does at once what a
`HostStream` is given, so nothing waits there.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from dynbatch.backend import Array, Device, device_of
from dynbatch.kernels.cuda.runtime.host_copy import HostCopy as HostCopy
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.cuda.runtime.replays import Replays as Replays


class HostStream:
    """The stream of the CPU.

    Attributes:
        replays: None: no step is replayed.
        workspace_bytes: memory that a library keeps for products of this stream: none.
    """

    replays = None
    workspace_bytes = 0

    def counts(self) -> Counter[str]:
        """Launches and uploads so far: none."""
        return Counter()

    def flush(self) -> None:
        """Do nothing: all work is done."""

    def settle(self) -> None:
        """Do nothing: no work is postponed."""

    def waiting(self) -> list[str]:
        """The names of the work that has not been started: none."""
        return []

    def host_copy(self, array: Array) -> None:
        """None: the array can be read now."""

    def rows_to_fill(self, count: int) -> int:
        """No further rows: a step of `count` rows is not replayed."""
        return 0


Stream: TypeAlias = HostStream | Queue

HOST_STREAM = HostStream()


def stream_of(device: Device) -> Stream:
    """The stream of a device in this thread, for which a GPU is made CuPy's current one."""
    if not device.is_cuda:
        return HOST_STREAM
    device.use()
    return queue()


def flush(array: Array) -> None:
    """Start what waits on an array's device, where others read it than kernels of dynbatch."""
    stream_of(device_of(array)).flush()
