"""Launches of `crf.cu`: linear-chain CRFs, one block per sentence."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.segment import reduce_segments
from dynbatch.kernels.losses.crf import Chain, ChainGradients, ends
from dynbatch.kernels.rows import gather_rows

MOST_WARPS = 16
# Rows whose pairs of tags one thread sums. More rows are shared among blocks, and their sums added.
CHUNK = 512
# Block of `crf_transitions`: tags after, tags before.
PAIRS = (32, 8)


def crf(
    x: Array, chain: Chain, ids: Array, offsets: Array, log_sums: Array, shifts: Array, out: Array
) -> None:
    args = (x, *chain, ids, offsets, log_sums, shifts, out, x.shape[1])
    _launch_by_sentence("crf", x, offsets, args, tags_of_warp=32)


def crf_backward(
    x: Array, chain: Chain, ids: Array, offsets: Array, log_sums: Array, shifts: Array,
    dy: Array, dx: Array, wanted: ChainGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `crf`: a launch for dx, two for the transitions, two each for start and end."""
    transitions, tags = chain.transitions, x.shape[1]
    args = (x, transitions, chain.end, ids, offsets, log_sums, shifts, dy, dx, tags)
    _launch_by_sentence("crf_backward", x, offsets, args, tags_of_warp=1)
    if wanted.transitions is not None:
        chunks = -(-x.shape[0] // CHUNK)
        parts = queue().empty((chunks, tags * tags), x.dtype)
        across, down = -(-tags // PAIRS[0]), -(-tags // PAIRS[1])
        values = (x, transitions, ids, offsets, log_sums, shifts, dy, dx, parts)
        sizes = (offsets.size - 1, CHUNK, tags)
        launch(x, "crf_transitions", (across, down, chunks), PAIRS, (*values, *sizes))
        sum_rows(parts, wanted.transitions)
    for rows, out in zip(ends(offsets), (wanted.start, wanted.end), strict=True):
        if out is not None:
            picked = queue().empty((rows.size, tags), x.dtype)
            gather_rows(dx, rows, picked)
            sum_rows(picked, out)


def viterbi(x: Array, chain: Chain, offsets: Array, out: Array, scratch: Array) -> None:
    origin = scratch[: x.size].view(np.int32)
    args = (x, *chain, offsets, origin, out, x.shape[1])
    _launch_by_sentence("viterbi", x, offsets, args, tags_of_warp=32)


def _launch_by_sentence(
    name: str, x: Array, offsets: Array, args: tuple[Argument, ...], tags_of_warp: int
) -> None:
    tags = x.shape[1]
    warps = min(MOST_WARPS, -(-tags // tags_of_warp))
    launch(x, name, (offsets.size - 1,), (32 * warps,), args, 2 * tags * x.itemsize)


def sum_rows(rows: Array, out: Array) -> None:
    """out = the sum of the rows, in the shape of `out`."""
    reduce_segments(np.add, rows, np.array([0, rows.shape[0]]), out.reshape(1, -1), 0)
