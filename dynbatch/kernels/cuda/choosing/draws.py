"""`kernels.choosing.draws` on a GPU: a block a row."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import launch

THREADS = 256  # as in choosing.cu


def cut_rows(x: Array, cuts: Array) -> None:
    launch(x, "cut_rows", (len(x),), (THREADS,), (x, cuts, x.shape[1]))


def draw_rows(x: Array, uniforms: Array, out: Array) -> None:
    launch(x, "draw_rows", (len(x),), (THREADS,), (x, uniforms, out, x.shape[1]))
