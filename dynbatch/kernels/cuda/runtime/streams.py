"""Runs independent work on separate streams: the two directions of an LSTM, for instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from dynbatch.cupy_types import CudaEvent, CudaStream, CupyModule
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.work import Work

# Streams besides the current one; further branches share them.
MOST_STREAMS = 4
# Launches of a branch below which a stream of its own costs more than it saves: two events.
WORTH_A_STREAM = 16


class Fork(NamedTuple):
    """Branches that start when all earlier work is done; later work waits for all of them."""

    branches: Sequence[Sequence[Work]]


class SideStreams:
    """The side streams of one queue, made when first needed."""

    def __init__(self, cupy: CupyModule) -> None:
        self._cupy = cupy
        self._streams: list[CudaStream] = []

    def run(self, fork: Fork, start: Callable[[int, Sequence[Work]], None]) -> None:
        """Start one item of each branch in turn, so that the device has work of all.

        Args:
            start: (address of the stream, which is the current one then, the work).
        """
        cuda = self._cupy.cuda
        count = min(len(fork.branches), MOST_STREAMS)
        while len(self._streams) < count:
            self._streams.append(cuda.Stream(non_blocking=True))
        streams = self._streams[:count]
        main = cuda.get_current_stream()
        begin = self._mark(main)
        for stream in streams:
            stream.wait_event(begin)
        try:
            for items in zip_longest(*fork.branches):
                for number, item in enumerate(items):
                    if item is not None:
                        stream = streams[number % count]
                        with stream:
                            start(stream.ptr, (item,))
        finally:
            for stream in streams:
                main.wait_event(self._mark(stream))

    def _mark(self, stream: CudaStream) -> CudaEvent:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return event


def joined(branches: Sequence[Sequence[Work]]) -> Iterable[Work | Fork]:
    """The branches as one fork, or one after the other if only one of them is long."""
    counts = [sum([_launches(item) for item in items]) for items in branches]
    long = [items for n, items in zip(counts, branches, strict=True) if n >= WORTH_A_STREAM]
    if len(long) < 2:
        return chain.from_iterable(branches)
    short = [items for n, items in zip(counts, branches, strict=True) if n < WORTH_A_STREAM]
    return [Fork(long), *chain.from_iterable(short)]


def _launches(item: Work) -> int:
    return item.launches if isinstance(item, PreparedLoop) else 1
