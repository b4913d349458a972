"""Joins the work of kernels that do not read each other: the two directions of an LSTM, say.

Such a kernel is a generator. It queues what nobody else has the like of, and stops to hand over
what may be joined: work of equal keys that several kernels hand over at the same stop is queued as
one. The rest runs side by side, on streams.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from dynbatch.kernels.cuda.runtime.queue import Queue


class Joinable(Protocol):
    """Work that a kernel hands over when it stops."""

    @property
    def key(self) -> Hashable:
        """Equal for work that `run` can join."""

    def run(self, others: Sequence[Any] = ()) -> None:
        """Queue the work, with that of others of this key."""


def run_joined(queue: Queue, kernels: Sequence[tuple[str, Iterator[Joinable]]]) -> None:
    """Run kernels from stop to stop.

    Args:
        kernels: each with the label of its work; see `Queue.label`.
    """
    while kernels:
        stops: list[tuple[str, Joinable | None]] = []

        def go_on(label: str, kernel: Iterator[Joinable]) -> None:
            queue.label = label
            stops.append((label, next(kernel, None)))  # noqa: B023  # called at once

        queue.side_by_side([partial(go_on, *each) for each in kernels])
        kernels = [each for each, (_, work) in zip(kernels, stops, strict=True) if work is not None]
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
