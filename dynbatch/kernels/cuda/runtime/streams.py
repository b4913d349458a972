"""Work that does not depend on each other, on streams of its own: the two directions of an LSTM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dynbatch.kernels.cuda.runtime.items import Item

# Streams besides the current one; further branches share them.
MOST_STREAMS = 4
# Launches of a branch below which a stream of its own costs more than it saves: two events.
WORTH_A_STREAM = 16


class Fork(NamedTuple):
    """Branches that start when all before them is done; what comes next waits for all of them."""

    branches: Sequence[Sequence[Any]]


class CudaStreams:
    """The streams of one queue, made when they are first needed."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._streams: list[Any] = []

    def run(self, fork: Fork, start: Callable[[int, Item], None]) -> None:
        """Start the branches in turns, an item of each, so that the device has work of all.

        Args:
            start: (address of the stream, which is the current one then, item).
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
                            start(stream.ptr, item)
        finally:
            for stream in streams:
                main.wait_event(self._mark(stream))

    def _mark(self, stream: Any) -> Any:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return event


def joined(branches: Sequence[Sequence[Any]]) -> Iterable[Any]:
    """The branches as one fork, or one after the other where only one of them is long."""
    long = [len(items) >= WORTH_A_STREAM for items in branches]
    if sum(long) < 2:
        return chain.from_iterable(branches)
    short = [item for items, is_long in zip(branches, long, strict=True) if not is_long
             for item in items]  # fmt: skip
    return [Fork([items for items, is_long in zip(branches, long, strict=True) if is_long]), *short]
