"""Drawing tokens from logits: the distribution is cut, then one number from a counter decides.

Each row is treated by itself: what it becomes does not depend on the rows beside it.
"""

from __future__ import annotations

import zlib

import numpy as np

from dynbatch.generation.config import GenerationConfig
from dynbatch.kernels.dropout import GOLDEN_RATIO, hash32
from dynbatch.parameter import Array

# Of so many most probable tokens top-p is decided, where they suffice.
PROBABLE = 256


def cut(logits: Array, config: GenerationConfig) -> Array:
    """The logits (N, V) after temperature, top-k, top-p and min-p, in that order; overwritten.

    What is cut off is -∞. At least the most probable token stays.
    """
    if config.temperature != 1:
        logits /= logits.dtype.type(config.temperature)
    for row in logits:
        if 0 < config.top_k < row.size:
            least = np.partition(row, row.size - config.top_k)[row.size - config.top_k]
            row[row < least] = -np.inf
        if config.top_p < 1:
            _cut_improbable(row, config.top_p)
        if config.min_p > 0:
            # p < min_p · max p, without the sum of all that is in both.
            row[np.exp(row - row.max()) < config.min_p] = -np.inf
    return logits


def _cut_improbable(row: Array, top_p: float) -> None:
    """Cut off the least probable tokens, the last of equal ones first, that sum up to 1 - top_p."""
    weights = np.exp(row.astype(np.float64) - row.max())
    total = weights.sum()
    count = min(PROBABLE, row.size)
    while True:  # the most probable ones, more and more of them until they suffice
        least = np.partition(row, row.size - count)[row.size - count]
        places = np.flatnonzero(row >= least)
        places = places[np.argsort(-row[places], kind="stable")]
        before = np.cumsum(weights[places]) - weights[places]
        kept = int(np.count_nonzero(before < top_p * total))
        if kept < places.size or count == row.size:
            break
        count = min(8 * count, row.size)
    stay = places[: max(1, kept)]
    values = row[stay]
    row[...] = -np.inf
    row[stay] = values


def draw(logits: Array, uniforms: Array) -> Array:
    """The token of each row (N,): the first whose probabilities, added up, exceed its number.

    Args:
        logits:   (N, V); at least one of each row is finite.
        uniforms: (N,) float64 in [0, 1).
    """
    tokens = np.empty(len(logits), np.int64)
    for k, (row, uniform) in enumerate(zip(logits, uniforms, strict=True)):
        # Where few tokens are left, as behind top-k, only they are added up.
        places = np.flatnonzero(row > -np.inf)
        sums = np.cumsum(np.exp(row[places].astype(np.float64) - row.max()))
        found = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
        tokens[k] = places[min(found, places.size - 1)]
    return tokens


def streams(seed: int, count: int) -> list[int]:
    """32-bit numbers of the random streams of a request's results, from its seed."""
    return [zlib.crc32(f"{seed},{number}".encode()) for number in range(count)]


def uniforms(streams: Array, steps: Array) -> Array:
    """(N,) float64 in [0, 1) for a step of each stream, from a counter: no state is kept.

    Args:
        streams: (N,) numbers of `streams`.
        steps:   (N,) tokens that each result has so far.
    """
    numbers = hash32(steps.astype(np.uint32))
    high = hash32(numbers ^ streams.astype(np.uint32))
    low = hash32(hash32(numbers ^ np.uint32(GOLDEN_RATIO)) ^ streams.astype(np.uint32))
    bits = (high.astype(np.uint64) << np.uint64(21)) | (low >> np.uint32(11)).astype(np.uint64)
    drawn: Array = bits.astype(np.float64) / float(1 << 53)
    return drawn
