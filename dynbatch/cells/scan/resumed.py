"""`ResumedScan`: a scan over new rows of a sentence, from the state that the rows before left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from dynbatch.cells.scan.run import ScanRun
from dynbatch.cells.scan.scan import Scan
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class ScanPast(Protocol):
    """What the rows before left of one sentence's scan.

    Attributes:
        states:   parts of the state, (1, width) each, which are written over.
        memories: what each step reads, (S, width) each.
    """

    @property
    def states(self) -> Sequence[Array]: ...
    @property
    def memories(self) -> Sequence[Array]: ...


class ResumedScan(Scan):
    """`Scan` of a sentence's new rows, forward only. It leaves the last state in `past`.

    Inputs: the program's streams (T, D).
    Batches with:  every other one of the same compiled cell.
    """

    __slots__ = ("past",)
    differentiable: ClassVar[bool] = False
    past: ScanPast

    @classmethod
    def memory_rows(cls, batch: Batch) -> list[int]:
        of_sentences = [past.memories for past in batch.column("past")]
        return [sum(map(len, rows)) for rows in zip(*of_sentences, strict=True)]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        pasts: list[ScanPast] = batch.column("past")
        inits = [_joined(rows) for rows in zip(*[past.states for past in pasts], strict=True)]
        memories = [_joined(rows) for rows in zip(*[past.memories for past in pasts], strict=True)]
        ScanRun(batch, y, [*xs, *inits, *memories]).forward(y)
        for k, past in enumerate(pasts):
            for state, port in zip(past.states, batch.ports, strict=True):
                state[0] = port.values[k]


def _joined(rows: Sequence[Array]) -> Ragged:
    return Ragged(np.concatenate(rows), [len(part) for part in rows])
