"""Launches of `semi_crf.cu`: semi-Markov CRFs, one block per sentence."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.losses.crf import CHUNK, MOST_WARPS, PAIRS, sum_rows
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.losses.crf import Chain, ChainGradients
from dynbatch.kernels.losses.semi_crf import labels_before, labels_inside


def semi_crf(
    x: Array, chain: Chain, ids: Array, offsets: Array, entries: Array, states: Array,
    shifts: Array, out: Array,
) -> None:  # fmt: skip
    tables = (ids, labels_before(ids, offsets, chain.start.size), offsets)
    _launch("semi_crf", x, chain, offsets, (x, *chain, *tables, entries, states, shifts, out))


def semi_crf_backward(
    x: Array, chain: Chain, ids: Array, offsets: Array, entries: Array, states: Array,
    shifts: Array, dy: Array, scratch: Array, dx: Array, wanted: ChainGradients,
) -> None:  # fmt: skip
    """Gradients of `semi_crf`: a launch for dx, two for the transitions, one for each end."""
    tags, size = chain.start.size, entries.size
    ending, starting = scratch[:size], scratch[size : 2 * size]
    starts, ends = [queue().empty((dy.size, tags), x.dtype) for _ in range(2)]
    labels = np.append(labels_inside(ids, tags), -1)[offsets[:-1]]  # -1: a last one without tokens
    arrays = (entries, states, shifts, dy, ending, starting, dx, starts, ends)
    args = (x, chain.transitions, chain.end, ids, labels, offsets, *arrays)
    _launch("semi_crf_backward", x, chain, offsets, args)
    if wanted.transitions is not None:
        chunks = -(-x.shape[0] // CHUNK)
        parts = queue().empty((chunks, tags * tags), x.dtype)
        across, down = -(-tags // PAIRS[0]), -(-tags // PAIRS[1])
        tables = (ids, labels_before(ids, offsets, tags), offsets)
        values = (chain.transitions, *tables, entries, states, dy, starting, parts)
        sizes = (dy.size, CHUNK, tags)
        launch(x, "semi_crf_transitions", (across, down, chunks), PAIRS, (*values, *sizes))
        sum_rows(parts, wanted.transitions)
    for rows, out in ((starts, wanted.start), (ends, wanted.end)):
        if out is not None:
            sum_rows(rows, out)


def semi_viterbi(x: Array, chain: Chain, offsets: Array, scratch: Array, out: Array) -> None:
    size = x.shape[0] * chain.start.size
    parts = [scratch[k * size : (k + 1) * size] for k in range(3)]
    _launch("semi_viterbi", x, chain, offsets, (x, *chain, offsets, *parts, out))


def _launch(name: str, x: Array, chain: Chain, offsets: Array, args: tuple[Argument, ...]) -> None:
    tags = chain.start.size
    warps, sizes = min(MOST_WARPS, -(-tags // 32)), (x.shape[1] // tags, tags)
    launch(x, name, (offsets.size - 1,), (32 * warps,), (*args, *sizes), 2 * tags * x.itemsize)
