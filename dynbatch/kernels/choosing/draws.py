"""Distributions are cut, then one number decides on a token."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, ROWS, kernel

# Of so many most probable tokens top-p is decided, where they suffice.
PROBABLE = 256


@kernel(c=HOST, cuda=HOST)
def cut_rows(x: Array, cuts: Array) -> None:
    """Logits after temperature, top-k, top-p and min-p, in that order; what is cut off is -∞.

    Top-p cuts off the least probable tokens, the last of equal ones first, that sum up to 1 - p. At
    least the most probable token stays.

    Args:
        x:    (N, V), overwritten.
        cuts: (N, 4) float64: of each row temperature, top-k, top-p and min-p; 1, 0, 1 and 0 change
              nothing.
    """
    for row, (temperature, top_k, top_p, min_p) in zip(x, cuts.tolist(), strict=True):
        if temperature != 1:
            row /= x.dtype.type(temperature)
        if 0 < top_k < row.size:
            rank = row.size - int(top_k)
            row[row < np.partition(row, rank)[rank]] = -np.inf
        if top_p < 1:
            _cut_improbable(row, top_p)
        if min_p > 0:
            # p < min_p · max p, without the sum of all that is in both.
            row[np.exp(row - row.max()) < min_p] = -np.inf


def _cut_improbable(row: Array, top_p: float) -> None:
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


@kernel(c=ROWS, cuda=HOST)
def draw_rows(x: Array, uniforms: Array, out: Array) -> None:
    """The first token whose probabilities, added up, exceed a number; or the most probable one.

    Args:
        x:        (N, V) logits; at least one of each row is finite.
        uniforms: (N,) float64 in [0, 1); -1 for the most probable token, the first of equal ones.
        out:      (N,) int64, on a GPU int32, overwritten.
    """
    out[...] = x.argmax(axis=1)
    drawn = np.flatnonzero(uniforms >= 0)
    if drawn.size:
        some = x if drawn.size == len(x) else x[drawn]
        peaks = np.take_along_axis(some, out[drawn, None], axis=1)
        sums = np.cumsum(np.exp(some.astype(np.float64) - peaks), axis=1)
        total = sums[:, -1]
        # Below the total, whatever the product rounds to: behind the last token there is none.
        goals = np.minimum(uniforms[drawn] * total, np.nextafter(total, 0))
        out[drawn] = (sums > goals[:, None]).argmax(axis=1)
