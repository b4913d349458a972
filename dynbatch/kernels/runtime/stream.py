"""`stream_of`: the stream of a device, which all work for the device is written on, in order.

On a GPU it is a `Queue`, where work waits for one copy of all tables. The host does at once what a
`HostStream` is given, so nothing waits there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, TypeAlias

from dynbatch.backend import Array, Device, device_of
from dynbatch.kernels.cuda.runtime import joined
from dynbatch.kernels.cuda.runtime.host_copy import HostCopy as HostCopy
from dynbatch.kernels.cuda.runtime.kept import KeptLaunches
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.cuda.runtime.replays import Replays as Replays
from dynbatch.kernels.cuda.runtime.work import refused as refused
from dynbatch.kernels.runtime.tasks import Tasks, run_side_by_side, written

Action = Callable[[], object]


class HostStream:
    """The stream of the CPU: nothing waits or is uploaded, and no step is replayed."""

    label = ""
    replays = None
    early: ClassVar = Counter[str]()
    uploaded_bytes = workspace_bytes = 0

    def flush(self) -> None:
        """Do nothing: all work is done."""

    settle = discard = flush

    def counts(self) -> Counter[str]:
        return Counter()

    def waiting(self) -> list[str]:
        return []

    def at_once(self, names_kernels: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    repeating = hook = at_once

    def rows_to_fill(self, count: int) -> int:
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


def run_joined(device: Device, kernels: Sequence[tuple[str, Callable[[], Any]]]) -> None:
    """Run kernels that write down what does not read each other, each with a label for errors."""
    if device.is_cuda:
        joined.run_joined(queue(), kernels)
    else:
        run_side_by_side([kernel for _, kernel in kernels])


def kept(device: Device, actions: Iterable[tuple[Action, bool]]) -> list[Action]:
    """Actions with the same effect: those that follow one another are one, where that is allowed.

    On the CPU their calls of C are written down as one call, on a GPU their launches are kept.

    Args:
        actions: each with whether it does the same whenever it is called.
    """
    works: list[Action] = []
    if device.is_cuda:
        for is_same, group in groupby(actions, itemgetter(1)):
            each = [action for action, _ in group]
            works += [KeptLaunches(each)] if is_same else each
        return works
    tasks = Tasks()
    for action, is_same in actions:
        calls = written(action) if is_same else None
        if calls is not None:
            tasks.extend(calls)
            continue
        works += [tasks.repeated()] * bool(tasks) + [action]
        tasks = Tasks()
    return works + [tasks.repeated()] * bool(tasks)
