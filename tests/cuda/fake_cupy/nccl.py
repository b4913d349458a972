"""NCCL of the stand-in, between ranks that are threads of one process.

A thread that waits for others lets them run: `one_at_a_time` is held by whoever does not wait.
Messages are matched in their order.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.cuda.fake_cupy.memory import require_device
from tests.cuda.fake_cupy.stream import current_device, one_at_a_time, stream_of

NCCL_CHAR = 0

_worlds: dict[tuple[int, ...], World] = {}
_ids = itertools.count(1)
_group = threading.local()


class NcclError(RuntimeError):
    """`cupy.cuda.nccl.NcclError`."""


class World:
    """The ranks that share a unique id: their GPUs, and copies of what is on its way."""

    def __init__(self) -> None:
        self.devices: dict[int, int] = {}
        self.messages: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
        self.is_aborted = False


def get_unique_id() -> tuple[int, ...]:
    return (next(_ids),) + (0,) * 127


def wait_for(is_there: Callable[[], Any], what: str) -> None:
    if not one_at_a_time.wait_for(is_there, timeout=20):
        raise NcclError(f"the stand-in waits in vain for {what}")


def groupStart() -> None:
    _group.calls = []


def groupEnd() -> None:
    """All sends, then all receives: none of a group waits for another one of it."""
    calls, _group.calls = _group.calls, None
    for _, call in sorted(calls, key=lambda pair: pair[0]):
        call()


class NcclCommunicator:
    """`cupy.cuda.nccl.NcclCommunicator`. A receive waits on the host, and its data on the stream.

    Work of the stand-in may wait until somebody asks for its result. What a rank sends is asked for
    when it is sent, so that a rank need not run work of another one.
    """

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:
        if len(commId) != 128:
            raise AssertionError("a unique id has 128 numbers")
        world = self._world = _worlds.setdefault(commId, World())
        self._rank, self._size, self._is_over = rank, ndev, False
        world.devices[rank] = current_device()
        one_at_a_time.notify_all()
        wait_for(lambda: len(world.devices) == ndev, f"{ndev} ranks")
        if len(set(world.devices.values())) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def destroy(self) -> None:
        if self._is_over:
            raise AssertionError("the communicator has been aborted or destroyed")
        self._is_over = True

    def abort(self) -> None:
        """A second time it would free memory again: CuPy does not look where two threads call."""
        if self._is_over:
            raise AssertionError("the communicator has been aborted or destroyed")
        self._is_over = True
        with one_at_a_time:
            self._world.is_aborted = True
            one_at_a_time.notify_all()

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._check(sendbuf, count, datatype, peer)

        def send() -> None:
            stream_of(stream).synchronize()
            self._world.messages[self._rank, peer].append(ctypes.string_at(sendbuf, count))
            one_at_a_time.notify_all()

        _group.calls.append((False, send))

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._check(recvbuf, count, datatype, peer)
        waiting = self._world.messages[peer, self._rank]

        def receive() -> None:
            wait_for(lambda: waiting or self._world.is_aborted, f"rank {peer}")
            if self._world.is_aborted:
                raise NcclError("NCCL_ERROR_INVALID_USAGE: aborted")
            data = waiting.pop(0)
            if len(data) != count:
                raise NcclError(f"{len(data)} bytes were sent, {count} are received")
            stream_of(stream).enqueue(lambda: _write(recvbuf, data))

        _group.calls.append((True, receive))

    def _check(self, address: int, count: int, datatype: int, peer: int) -> None:
        if datatype != NCCL_CHAR or count < 1 or not 0 <= peer < self._size or peer == self._rank:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: {count} of {datatype}, rank {peer}")
        if self._world.devices[self._rank] != current_device():
            raise NcclError("NCCL_ERROR_INVALID_USAGE: another GPU is current")
        require_device(address, count)


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))
