"""Launches of `ctc.cu`: connectionist temporal classification, one block per sentence."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import launch
from dynbatch.kernels.losses.ctc import Labels

# Fixed, so that sums have one order whatever the other sentences are.
THREADS = 128


def ctc(
    x: Array, labels: Labels, offsets: Array, zero_infinity: bool, states: Array, shifts: Array,
    out: Array,
) -> None:  # fmt: skip
    tables = (labels.ids, offsets, labels.offsets, labels.state_offsets(offsets))
    sizes = (x.shape[1], labels.blank, zero_infinity)
    launch(x, "ctc", (out.size,), (THREADS,), (x, *tables, states, shifts, out, *sizes))


def ctc_backward(
    x: Array, labels: Labels, offsets: Array, zero_infinity: bool, states: Array, shifts: Array,
    dy: Array, scratch: Array, dx: Array,
) -> None:  # fmt: skip
    tables = (labels.ids, *_neighbours(labels), offsets, labels.offsets)
    arrays = (labels.state_offsets(offsets), states, shifts, dy, scratch, dx)
    sizes = (x.shape[1], labels.blank, zero_infinity)
    launch(x, "ctc_backward", (dy.size,), (THREADS,), (x, *tables, *arrays, *sizes))


def _neighbours(labels: Labels) -> tuple[Array, Array]:
    """Whether a label is the first of its kind in its sentence, and where the next one of its kind
    stands there, or -1; for each label."""
    counts = np.diff(labels.offsets)
    places = np.arange(labels.ids.size) - np.repeat(labels.offsets[:-1], counts)
    sentence = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((places, labels.ids, sentence))  # equal labels of a sentence side by side
    is_same = (np.diff(sentence[order]) == 0) & (np.diff(labels.ids[order]) == 0)
    is_first = np.ones(order.size, np.int32)
    following = np.full(order.size, -1, np.int32)
    is_first[order[1:][is_same]] = 0
    following[order[:-1][is_same]] = places[order[1:][is_same]]
    return is_first, following
