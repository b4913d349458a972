"""Joins the work of kernels that do not read each other: the two directions of an LSTM, say.

Such a kernel writes its work down. Items of equal keys that several kernels have at the same place
are queued as one. What lies between them runs side by side, on streams.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from dynbatch.kernels.cuda.runtime.queue import Queue


class Joinable(Protocol):
    """Work that may be joined with that of other kernels."""

    @property
    def key(self) -> Hashable:
        """Equal for work that `run` can join."""

    def run(self, others: Sequence[Any] = ()) -> None:
        """Queue the work, with that of others of this key."""


class Works:
    """The work of a kernel, written down in order."""

    def __init__(self) -> None:
        self._items: list[Joinable | Callable[[], object]] = []

    @property
    def last(self) -> object:
        """The work that was added last, which may take more; None if there is none."""
        return self._items[-1] if self._items else None

    def then(self, *works: Joinable) -> None:
        """Add work that may be joined."""
        self._items += works

    def call(self, function: Callable[[], object]) -> None:
        """Add a function that queues what nobody else has the like of."""
        self._items.append(function)

    at_last = call

    def run(self) -> None:
        """Queue all of it."""
        for work in self.joinable():
            work.run()

    def joinable(self) -> Iterator[Joinable]:
        """The work that may be joined; functions between it are called on the way."""
        for item in self._items:
            if callable(item):
                item()
            else:
                yield item


Kernel = Callable[[], Works | None]
"""A kernel that returns what it has written down; None where it has queued everything."""


def run_joined(queue: Queue, kernels: Sequence[tuple[str, Kernel]]) -> None:
    """Run kernels from one item to the next.

    Args:
        kernels: each with the label of its work; see `Queue.label`.
    """
    running = [(label, _joinable(kernel)) for label, kernel in kernels]
    while running:
        stops: list[tuple[str, Joinable | None]] = []

        def go_on(label: str, kernel: Iterator[Joinable]) -> None:
            queue.label = label
            stops.append((label, next(kernel, None)))  # noqa: B023  # called at once

        queue.side_by_side([partial(go_on, *each) for each in running])
        running = [each for each, (_, work) in zip(running, stops, strict=True) if work is not None]
        alike: dict[Hashable, list[tuple[str, Joinable]]] = {}
        for label, work in stops:
            if work is not None:
                alike.setdefault(work.key, []).append((label, work))
        queue.side_by_side([partial(_run, queue, group) for group in alike.values()])


def _run(queue: Queue, group: Sequence[tuple[str, Joinable]]) -> None:
    """Queue joined work; errors name the first, and how many more there are."""
    (label, first), *others = group
    queue.label = f"{label}, and {len(others)} more beside it" if others else label
    first.run([work for _, work in others])


def _joinable(kernel: Kernel) -> Iterator[Joinable]:
    works = kernel()
    if works is not None:
        yield from works.joinable()
