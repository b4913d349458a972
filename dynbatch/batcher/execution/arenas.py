"""`Arenas`: the memory that the runs of one graph have on loan from a pool."""

from __future__ import annotations

from dynbatch.backend import DType
from dynbatch.memory import Pool
from dynbatch.parameter import Array


class Arenas:
    """One arena a run, or two.

    Attributes:
        num_bytes:  of all arenas.
        peak_bytes: the most so far.
    """

    def __init__(self, pool: Pool, dtype: DType) -> None:
        self.num_bytes = 0
        self.peak_bytes = 0
        self._pool = pool
        self._dtype = dtype
        self._arenas: list[tuple[Array, int]] = []

    def __len__(self) -> int:
        return len(self._arenas)

    def take(self, elements: int) -> Array:
        """One more, of so many elements."""
        arena = self._pool.take(elements, self._dtype, label="a graph's arena")
        size = elements * arena.itemsize
        self._arenas.append((arena, size))
        self.num_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        return arena

    def give(self, arena: Array) -> None:
        """Give one back."""
        (number,) = [k for k, (other, _) in enumerate(self._arenas) if other is arena]
        _, size = self._arenas.pop(number)
        self.num_bytes -= size
        self._pool.give(arena)

    def give_after(self, count: int) -> None:
        """Give back all but the first so many."""
        while len(self._arenas) > count:
            self.give(self._arenas[-1][0])
