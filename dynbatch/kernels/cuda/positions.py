"""Launches of `positions.cu`: rotary embeddings and sinusoids of packed rows."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import launch
from dynbatch.kernels.cuda.walks import THREADS, TILE, over_elements, segment_table
from dynbatch.kernels.positions import Angles, longest


def rotary(
    x: Array, offsets: Array, starts: Array, angles: Angles, heads: int, is_interleaved: bool,
    is_inverse: bool, out: Array,
) -> None:  # fmt: skip
    """Turn pairs of features (a, b) of each head to (a cos - b sin, b cos + a sin) of their angle.

    The table of angles is brought up once for all launches of a flush that read it.
    """
    rows, width = x.shape
    half, features = angles.width // 2, width // heads
    across = heads * (features - half)  # a thread turns a pair, or copies a feature that stays
    turns = angles.table(longest(offsets, starts), x.dtype)
    table, length = segment_table(offsets)
    total = rows * across
    args = (
        x, turns, starts, features, half, is_interleaved, is_inverse, out,
        table, length, len(offsets) - 1, across, total,
    )  # fmt: skip
    launch(x, "rotary", (-(-total // TILE),), (THREADS,), args)


def sinusoidal(
    offsets: Array, starts: Array, angles: Angles, is_interleaved: bool, out: Array
) -> None:
    turns = angles.table(longest(offsets, starts), out.dtype)
    over_elements("sinusoidal", (turns, starts), offsets, out, is_interleaved)
