"""`kernels.choosing.edits` on a GPU: a block a row that is named."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.choosing.edits import RowEdits
from dynbatch.kernels.cuda.runtime.queue import launch

THREADS = 256


def edit_rows(x: Array, edits: RowEdits) -> None:
    rows, penalized, factors, amounts, banned, allowed, limits = edits
    args = (x, rows, *penalized, factors, amounts, *banned, *allowed, limits, x.shape[1])
    launch(x, "edit_rows", (len(rows),), (THREADS,), args)
