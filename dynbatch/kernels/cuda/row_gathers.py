"""`RowGathers`: copies of rows before or after a loop, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from dynbatch.backend import Array, DType
from dynbatch.kernels.cuda.rows import RowGather, gather_many
from dynbatch.kernels.cuda.runtime.matrices import place_of
from dynbatch.kernels.cuda.runtime.queue import Queue


class RowGathers:
    """Copies of rows by index; no target is read or written by another of them."""

    key = "gathers"

    def __init__(self, queue: Queue, dtype: DType) -> None:
        self._queue = queue
        self._dtype = dtype
        self._gathers: list[RowGather] = []
        self._used: list[Array] = []
        self._later: list[Callable[[], object]] = []

    def pick(
        self, source: Array, index: Array | int, out: Array, other: Array | None = None,
        puts: bool = False,
    ) -> None:  # fmt: skip
        """out[i] = source[index[i]], or other[-1 - index[i]] where the index is negative.

        Args:
            index: a number of rows where they are 0, 1, 2 …
            other: None for zeros.
            puts:  out[index[i]] = source[i] instead, for indices that differ.
        """
        # A flush before a node type of the user's ends what the queue kept until then.
        self._used += [source, out] if other is None else [source, out, other]
        aside = None if other is None else place_of(other)
        gather = RowGather(place_of(source), index, place_of(out), out.shape[1], aside, puts)
        self._gathers.append(gather)

    def then(self, function: Callable[[], object]) -> None:
        """Queue what a function queues, once the gathers are queued."""
        self._later.append(function)

    def run(self, others: Sequence[Self] = ()) -> None:
        everyone = (self, *others)
        for each in everyone:
            self._queue.keep(*each._used)
        gather_many(self._queue, self._dtype, [g for each in everyone for g in each._gathers])
        for each in everyone:
            for function in each._later:
                function()
