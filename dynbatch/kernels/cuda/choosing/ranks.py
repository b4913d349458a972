"""`kernels.choosing.ranks` on a GPU: a block a row."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import launch

THREADS = 256  # as in choosing.cu


def rank_rows(x: Array, out: Array) -> None:
    launch(x, "rank_rows", (len(x),), (THREADS,), (x, out, x.shape[1], out.shape[1]))


def take_from_rows(x: Array, places: Array, out: Array) -> None:
    args = (x, places, out, x.shape[1], out.shape[1])
    launch(x, "take_from_rows", (len(x),), (THREADS,), args)
