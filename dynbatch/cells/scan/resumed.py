"""`ResumedScan`: a scan over new rows of sentences, from the states that the rows before left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.scan.scan import Scan
from dynbatch.kernels.arrays import concatenate
from dynbatch.kernels.attention.addresses import PagedRows, write_rows
from dynbatch.kernels.runtime.tasks import Written
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class ScanPast(NamedTuple):
    """The data that earlier rows left of a scan, of all sentences.

    states:   parts of the state, one row of each a sentence, which are written over.
    memories: what each step reads; None where there is nothing.
    room:     rows of each memory that there must be room for, if it has more some other time.
    """

    states: PagedRows
    memories: PagedRows | None
    room: int


class ResumedScan(Scan):
    """`Scan` of sentences' new rows, forward only. It leaves the last states in `past`.

    Inputs: the program's streams (T, D).
    Batches with:  every other one of the same compiled cell.
    """

    __slots__ = ("past",)
    differentiable: ClassVar[bool] = False
    past: ScanPast

    @classmethod
    def memory_rows(cls, batch: Batch) -> list[int]:
        pasts: Sequence[ScanPast] = batch.column("past")
        return [sum([past.room for past in pasts])] * len(batch.first.cell.program.memories)

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return super().workspace(batch) + cls._elements_of_memories(batch)

    @classmethod
    def _elements_of_memories(cls, batch: Batch) -> int:
        """Elements of all memories, joined: the last of the workspace."""
        memories = batch.first.cell.program.memories
        rooms = zip(cls.memory_rows(batch), memories, strict=True)
        return sum([rows * memory.width for rows, memory in rooms])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> Written:
        pasts: Sequence[ScanPast] = batch.column("past")
        inits = _rows([past.states for past in pasts], y.values)
        memories: list[Ragged] = []
        if pasts[0].memories is not None:
            room = batch.scratch[batch.scratch.size - cls._elements_of_memories(batch) :]
            kept = [past.memories for past in pasts if past.memories is not None]
            memories = _rows(kept, y.values, room)
        written = super().forward_batch(batch, y, *xs, *inits, *memories)
        written.at_last(partial(cls._leave_states, batch))
        return written

    @staticmethod
    def _leave_states(batch: Batch) -> None:
        pasts: Sequence[ScanPast] = batch.column("past")
        for k, port in enumerate(batch.ports):
            places = [past.states.addresses[:, k] for past in pasts]
            write_rows(port.values, np.concatenate(places), pasts[0].states.is_short)


def _rows(pasts: Sequence[PagedRows], like: Array, room: Array | None = None) -> list[Ragged]:
    """The rows of each kind, packed; of one operator in `room`, if it is given."""
    lengths = [n for past in pasts for n in past.table.after.tolist()]
    sides = zip(
        *[past.joined(like, room if len(pasts) == 1 else None) for past in pasts], strict=True
    )
    return [Ragged(concatenate(side) if len(side) > 1 else side[0], lengths) for side in sides]
