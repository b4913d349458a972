"""`kernels.choosing.ranks` on a GPU: a block a row."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import launch

THREADS = 256  # as in choosing.cu


def rank_rows(x: Array, out: Array) -> None:
    words, *sizes = _places(x, out)
    launch(x, "rank_rows", (len(x),), (THREADS,), (x, words, *sizes))


def take_from_rows(x: Array, places: Array, out: Array) -> None:
    words, *sizes = _places(x, places)
    launch(x, "take_from_rows", (len(x),), (THREADS,), (x, words, out, *sizes))


def _places(x: Array, places: Array) -> tuple[Array, int, int, int]:
    """The places as words of four bytes; elements and places of a row, and words of a place."""
    words = places.itemsize // 4
    return places if words == 1 else places.view(np.int32), x.shape[1], places.shape[1], words
