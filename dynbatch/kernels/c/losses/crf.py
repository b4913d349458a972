"""`kernels.losses.crf` in C, a sentence at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.losses.crf import Chain, LogSums
from dynbatch.kernels.runtime.tasks import share_rows

# Tags of which a row lies on C's stack.
MOST_TAGS = 1024

_library = Library("losses/crf.c")


def crf(
    x: Array, chain: Chain, ids: Array, offsets: Array, log_sums: Array, shifts: Array, out: Array
) -> Any:
    functions = _functions(x, *chain, log_sums, shifts, out)
    if functions is None:
        return NotImplemented
    sums = LogSums(chain.transitions)
    into, ids = np.ascontiguousarray(chain.transitions.T), np.ascontiguousarray(ids, np.int64)
    inputs = (offsets, x, chain.transitions, into, chain.start, chain.end, sums.factors, sums.peaks)
    _share(functions.crf, x, offsets, *map(address, inputs), sums.least,
        *map(address, (ids, log_sums, shifts, out)))  # fmt: skip
    return None


def walk_back(
    x: Array, chain: Chain, factors: Array, offsets: Array, log_sums: Array, shifts: Array,
    dy: Array, before: Array, slopes: Array, is_small: Array, dx: Array, exact: Array,
) -> Any:  # fmt: skip
    kept = (log_sums, shifts, dy, before, slopes)
    functions = _functions(x, *chain, factors, *kept, dx, exact)
    if functions is None:
        return NotImplemented
    into = np.ascontiguousarray(chain.transitions.T)
    arrays = (offsets, x, into, chain.end, factors, *kept, is_small, dx, exact)
    places = [address(array) for array in arrays]
    if is_small.any():  # all sentences add to `exact`, in their order
        functions.walk_back(0, offsets.size - 1, x.shape[1], *places)
    else:
        _share(functions.walk_back, x, offsets, *places)
    return None


def viterbi(x: Array, chain: Chain, offsets: Array, out: Array, scratch: Array) -> Any:
    functions = _functions(x, *chain, out, scratch)
    if functions is None:
        return NotImplemented
    arrays = (offsets, x, *chain, scratch, out)
    _share(functions.viterbi, x, offsets, *[address(array) for array in arrays])
    return None


def _functions(x: Array, *others: Array) -> Any:
    is_taken = is_packed(x, *others) and x.shape[1] <= MOST_TAGS
    return _library.functions(x.dtype) if is_taken else None


def _share(function: Any, x: Array, offsets: Array, *arguments: Any) -> None:
    """Run a function over all sentences, each of about its share of the pairs of tags."""
    count, tags = offsets.size - 1, x.shape[1]
    share_rows(function, count, x.size * tags // max(1, count), tags, *arguments)
