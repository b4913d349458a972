"""`kernels.losses.semi_crf` in C, a sentence at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.losses.crf import MOST_TAGS
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.losses.crf import Chain
from dynbatch.kernels.losses.semi_crf import labels_before
from dynbatch.kernels.runtime.tasks import share_rows

_library = Library("losses/semi_crf.c")


def semi_crf(
    x: Array, chain: Chain, ids: Array, offsets: Array, entries: Array, states: Array,
    shifts: Array, out: Array,
) -> Any:  # fmt: skip
    functions = _functions(chain, x, entries, states, shifts, out)
    if functions is None:
        return NotImplemented
    into, ids = np.ascontiguousarray(chain.transitions.T), np.ascontiguousarray(ids, np.int64)
    before = labels_before(ids, offsets, chain.start.size)
    arrays = (chain.transitions, into, chain.start, chain.end, ids, before)
    _share(functions.semi_crf, x, chain, offsets, *arrays, entries, states, shifts, out)
    return None


def walk_segments_back(
    x: Array, chain: Chain, offsets: Array, entries: Array, states: Array, shifts: Array, dy: Array,
    ending: Array, starting: Array, dx: Array,
) -> Any:  # fmt: skip
    arrays = (entries, states, shifts, dy, ending, starting, dx)
    functions = _functions(chain, x, *arrays)
    if functions is None:
        return NotImplemented
    share = (x, chain, offsets, chain.transitions, chain.end, *arrays)
    _share(functions.walk_segments_back, *share)
    return None


def pair_sums(
    transitions: Array, offsets: Array, entries: Array, states: Array, starting: Array, out: Array
) -> Any:
    arrays = (transitions, entries, states, starting, out)
    functions = _library.functions(out.dtype) if is_packed(*arrays) else None
    if functions is None:
        return NotImplemented
    count = len(transitions)
    places = [address(array) for array in (offsets, *arrays)]
    share_rows(functions.pair_sums, count, entries.size, count, offsets.size - 1, *places)
    return None


def semi_viterbi(x: Array, chain: Chain, offsets: Array, scratch: Array, out: Array) -> Any:
    functions = _functions(chain, x, scratch, out)
    if functions is None:
        return NotImplemented
    parts = np.split(scratch, 3)
    arrays = (chain.transitions, chain.start, chain.end, *parts, out)
    _share(functions.semi_viterbi, x, chain, offsets, *arrays)
    return None


def _functions(chain: Chain, *arrays: Array) -> Any:
    is_taken = is_packed(*chain, *arrays) and chain.start.size <= MOST_TAGS
    return _library.functions(chain.start.dtype) if is_taken else None


def _share(function: Any, x: Array, chain: Chain, offsets: Array, *arrays: Array) -> None:
    """Run a function over all sentences, each of about its share of lengths and pairs of labels."""
    count, tags = offsets.size - 1, chain.start.size
    work = x.size + x.shape[0] * tags * tags
    places = [address(array) for array in (offsets, x, *arrays)]
    lengths = x.shape[1] // tags
    share_rows(function, count, work // max(1, count), tags, lengths, *places)
