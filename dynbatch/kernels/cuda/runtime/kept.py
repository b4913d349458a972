"""`KeptLaunches`: launches of a step that comes again, found out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.cublas import Product
from dynbatch.kernels.cuda.runtime.launch import Launch
from dynbatch.kernels.cuda.runtime.queue import queue


class KeptLaunches:
    """Queues the launches of some actions; from the second time on, without the actions.

    Args:
        actions: of kernels that read the same arrays each time, and whose tables stay the same.
    """

    __slots__ = ("_actions", "_alive", "_with_tables", "_works")

    def __init__(self, actions: Sequence[Callable[[], object]]) -> None:
        self._actions = actions
        self._works: list[Any] | None = None
        self._with_tables: Sequence[int] = ()  # which of them
        self._alive: Sequence[Array] = ()  # arrays of the kernels' own

    def __call__(self) -> None:
        here = queue()
        if self._works is None:
            queued = here.queued_by(self._actions)
            if queued is not None and all(map(_can_be_kept, queued[0])):
                self._works, self._alive = [*queued[0]], queued[1]
                self._with_tables = [k for k, work in enumerate(self._works) if work.has_tables]
        else:
            for number in self._with_tables:
                self._works[number] = self._works[number].staged(here.upload, here.stage)
            here.add_all(self._works)


def _can_be_kept(work: object) -> bool:
    return isinstance(work, Launch) or (isinstance(work, Product) and not work.has_tables)
