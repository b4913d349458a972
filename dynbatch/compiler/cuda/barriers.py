"""Finds the barriers that the passes of a block need, as few as there can be.

A pass is a loop in which each thread makes elements of its own. A thread must not touch what
another one writes unless a barrier is in between: so a pass says which columns it touches, and
which thread touches each, where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dynbatch.compiler.nests import Strides


class Touch(NamedTuple):
    """Columns of a space that a pass reads or writes.

    flat:    the column that element 0 has, where element e, of thread e, has column flat + e.
    strides: along the axes of a nest: of two touches with equal ones each index has one element.
    threads: what an index decides which thread by; None if several threads may touch an element.
    """

    space: str
    first: int
    end: int
    flat: int | None
    writes: bool
    strides: Strides
    threads: object

    @property
    def element(self) -> tuple[object, ...]:
        return self.first, self.strides, self.threads

    def meets(self, other: Touch) -> bool:
        """Whether a thread touches what another one writes, if no barrier is in between."""
        is_apart = self.end <= other.first or other.end <= self.first
        same_thread = self.flat is not None and self.flat == other.flat
        same_thread |= self.threads is not None and self.element == other.element
        return self.space == other.space and not (is_apart or same_thread) and (
            self.writes or other.writes
        )  # fmt: skip


class BlockPass(NamedTuple):
    """The lines of a pass, and what it touches."""

    lines: list[str]
    touches: list[Touch]


def barriers(before: Sequence[BlockPass], step: Sequence[BlockPass], behind: Sequence[BlockPass],
             turns: Callable[[str, int], str]) -> list[int]:  # fmt: skip
    """The fewest passes that a barrier must come before, by their numbers in order.

    Args:
        before, step, behind: what runs once, in each step of a loop, and once.
        turns: (space, number of the step) -> the space, if it is another one in each step.
    """
    run: list[tuple[int, list[Touch]]] = []
    passes = [*enumerate(before), *[p for _ in range(3) for p in enumerate(step, len(before))],
              *enumerate(behind, len(before) + len(step))]  # fmt: skip
    at = 0
    for count, (number, each) in enumerate(passes):
        at = max(0, count - len(before)) // max(1, len(step))
        run.append((number, [t._replace(space=turns(t.space, at)) for t in each.touches]))
    chosen = {number for number, _ in run}
    for number in sorted(chosen):
        if not _races(run, chosen - {number}):
            chosen.remove(number)
    return sorted(chosen)


def _races(run: Iterable[tuple[int, Sequence[Touch]]], chosen: set[int]) -> bool:
    """Whether a thread may touch what another one writes, with barriers before these passes."""
    since: dict[str, list[Touch]] = {}
    for number, touches in run:
        if number in chosen:
            since = {}
        for touch in touches:
            if any([touch.meets(other) for other in since.get(touch.space, ())]):
                return True
        for touch in touches:
            since.setdefault(touch.space, []).append(touch)
    return False
