"""Linear-chain conditional random field: loss, gradient, and the best tag sequence.

Sentences go side by side, longest first, so that those which have a token t are the first ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.indexing import repeat
from dynbatch.kernels.runtime.dispatch import HOST, kernel, no_scratch_on_gpu
from dynbatch.kernels.segment import sum_segments

# Sums over all pairs of tags that `viterbi` holds at a time.
BLOCK_ELEMENTS = 1 << 18


class Chain(NamedTuple):
    """Scores of sequences of K tags: transitions (K, K) from row to column, start and end (K,)."""

    transitions: Array
    start: Array
    end: Array


class ChainGradients(NamedTuple):
    """Gradients of a `Chain` to compute, overwritten; None for unwanted ones."""

    transitions: Array | None
    start: Array | None
    end: Array | None


@kernel(c=HOST, cuda=HOST)
def crf(
    x: Array, chain: Chain, ids: Array, offsets: Array, log_sums: Array, shifts: Array, out: Array
) -> None:
    """out_k = log Σ_y exp(score(y)) - score(ids), over all tag sequences y of sentence k, in nats.

        score(y) = start[y_0] + Σ_t x[t, y_t] + Σ_t transitions[y_t, y_t+1] + end[y_T-1]

    The forward algorithm: a_t = log_sums_t + x_t - shift_t, where log_sums_0 = start and
    log_sums_tj = log Σ_i exp(a_t-1,i + transitions_ij). A score of -inf forbids.

    Args:
        x:        (N, K) scores of each token's tags.
        ids:      (N,) tags, of the host.
        offsets:  (sentences + 1,) from 0 to N.
        log_sums: (N, K), overwritten.
        shifts:   (N,), overwritten: max_j log_sums_tj + x_tj, so that the largest a_tj is 0.
        out:      (sentences,), overwritten; 0 for a sentence without tokens.

    Accuracy: the log-partition is summed token by token with the score of `ids` taken off, so that
        its rounding is that of one token's scores, not of the sentence's.
    Cost: one product of a matrix with (K, K) a token of the longest sentence; see `LogSums`.
    Source: Lafferty, McCallum & Pereira 2001, ICML; start and end as in Lample et al. 2016,
        arXiv:1603.01360, section 2.2.
    """
    first, last = ends(offsets)
    sums, a = LogSums(chain.transitions), x[:0]
    for t, rows in enumerate(steps(offsets)):
        log_sum = (
            sums(a[: rows.size]) if t else np.broadcast_to(chain.start, (rows.size, x.shape[1]))
        )
        a = log_sum + x[rows]
        shift = _peak(a)
        a -= shift
        log_sums[rows], shifts[rows] = log_sum, shift[:, 0]
    each = shifts - x[np.arange(x.shape[0]), ids]
    each[first] -= chain.start[ids[first]]
    inner = rows_after(offsets)
    each[inner] -= chain.transitions[ids[inner - 1], ids[inner]]
    each[last] += _log_sum_exp(_state(x, log_sums, shifts, last) + chain.end) - chain.end[ids[last]]
    sum_segments(each[:, None], offsets, out[:, None])


@no_scratch_on_gpu
def workspace_backward(spec: ArraySpec, tokens: int, tags: int) -> int:
    """Elements of scratch for `crf_backward`.

    Two numbers and a flag for each token and tag.
    """
    pairs = tokens * tags
    return 2 * pairs + -(-pairs // spec.itemsize)


@kernel(cuda=HOST)
def crf_backward(
    x: Array, chain: Chain, ids: Array, offsets: Array, log_sums: Array, shifts: Array,
    dy: Array, dx: Array, wanted: ChainGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `crf`. With p the probability of a tag, or of two in a row, given the sentence:

        dx_tj = dy_k (p_tj - [ids_t = j])
        dtransitions_ij = Σ_k dy_k Σ_t (p_tij - [ids_t = i and ids_t+1 = j])

    and dstart and dend are the sums of dx over first and last tokens.

    Args:
        log_sums, shifts: as forward left them.
        dy: (sentences,).
        dx: (N, K), overwritten, also where nobody wants it.
        scratch: `workspace_backward` elements.

    The backward algorithm, on weights instead of scores: tag i precedes a tag j with probability
    exp(a_t-1,i + transitions_ij - log_sums_tj), so that p_t-1 follows from p_t by one product.
    """
    first, last = ends(offsets)
    sums, scale = LogSums(chain.transitions), repeat(dy, np.diff(offsets))
    before, slopes = scratch[: 2 * x.size].reshape(2, *x.shape)
    np.add(log_sums, x, out=before)
    np.subtract(before, shifts[:, None], out=before)
    np.exp(before, out=before)
    is_small = scratch[2 * x.size :].view(bool)[: x.size].reshape(x.shape)
    sums.inverse(log_sums, slopes, is_small)
    slopes[first], is_small[first] = 0, False
    exact = np.zeros_like(chain.transitions)
    walk_back(
        x, chain, sums.factors, offsets, log_sums, shifts, dy, before, slopes, is_small, dx, exact
    )
    dx[np.arange(x.shape[0]), ids] -= scale
    if wanted.transitions is not None:
        np.matmul(before[:-1].T, slopes[1:], out=wanted.transitions)
        np.multiply(wanted.transitions, sums.factors, out=wanted.transitions)
        np.add(wanted.transitions, exact, out=wanted.transitions)
        inner = rows_after(offsets)
        np.subtract.at(wanted.transitions, (ids[inner - 1], ids[inner]), scale[inner])
    if wanted.start is not None:
        np.sum(dx[first], axis=0, out=wanted.start)
    if wanted.end is not None:
        np.sum(dx[last], axis=0, out=wanted.end)


@kernel(c=HOST)
def walk_back(
    x: Array, chain: Chain, factors: Array, offsets: Array, log_sums: Array, shifts: Array,
    dy: Array, before: Array, slopes: Array, is_small: Array, dx: Array, exact: Array,
) -> None:  # fmt: skip
    """The steps of `crf_backward`: dx_tj = dy_k p_tj, from last tokens to first ones.

    Args:
        factors:  (K, K) those of `LogSums`.
        before:   (N, K) exp(a_t).
        slopes:   (N, K) 1 / Σ_i before_t-1,i factors_ij; multiplied by dx. 0 where `is_small`.
        is_small: (N, K) where the sum is too small to divide by.
        dx:       (N, K), overwritten.
        exact:    (K, K), to which what `slopes` lacks of the transitions' gradient is added.
    """
    _, last = ends(offsets)
    scale = repeat(dy, np.diff(offsets))[last, None]
    dx[last] = scale * _softmax(_state(x, log_sums, shifts, last) + chain.end)
    for rows in steps(offsets)[:0:-1]:
        p = dx[rows]
        slope = slopes[rows] = slopes[rows] * p
        earlier = before[rows - 1] * (slope @ factors.T)
        n, j = np.nonzero(is_small[rows] & (p != 0))
        if n.size:
            a = _state(x, log_sums, shifts, rows[n] - 1)
            pairs = a + chain.transitions.T[j] - log_sums[rows[n], j][:, None]
            pairs = p[n, j][:, None] * np.exp(pairs)
            np.add.at(earlier, n, pairs)
            np.add.at(exact.T, j, pairs)
        dx[rows - 1] = earlier


@kernel(c=HOST, cuda=HOST)
def viterbi(x: Array, chain: Chain, offsets: Array, out: Array, scratch: Array) -> None:
    """out_n = the tag of row n in its sentence's best sequence (see `crf`).

    Ties go to the lowest tag of the last token, then of the token before it.

    Args:
        x:       (N, K).
        offsets: (sentences + 1,) from 0 to N.
        out:     (N,), overwritten: whole numbers as floats, exact below 2^24 tags.
        scratch: (N · K,): for each token and tag the one before, an integer in the room of a float.

    Source: Viterbi 1967; Forney 1973, Proc. IEEE 61(3).
    """
    tags = x.shape[1]
    into = np.ascontiguousarray(chain.transitions.T)  # (to, from)
    origin = scratch[: x.size].view(f"i{scratch.itemsize}").reshape(x.shape)
    best = np.empty(x.shape[0], np.intp)
    a, rows_of_steps = x[:0], steps(offsets)
    order = longest_first(offsets)
    final = np.empty((order.size, tags), x.dtype)
    for t, rows in enumerate(rows_of_steps):
        if t:
            reached = np.empty((rows.size, tags), x.dtype)
            most = max(1, BLOCK_ELEMENTS // (tags * tags))
            for begin in range(0, rows.size, most):
                block = slice(begin, min(begin + most, rows.size))
                pairs = a[block, None, :] + into
                best_before = pairs.argmax(axis=2)
                origin[rows[block]] = best_before
                reached[block] = np.take_along_axis(pairs, best_before[..., None], axis=2)[..., 0]
            a = reached + x[rows]
        else:
            a = chain.start + x[rows]
        final[: rows.size] = a
    for t in range(len(rows_of_steps) - 1, -1, -1):
        rows = rows_of_steps[t]
        going_on = rows_of_steps[t + 1].size if t + 1 < len(rows_of_steps) else 0
        best[rows[going_on:]] = (final[going_on : rows.size] + chain.end).argmax(axis=1)
        following = rows[:going_on] + 1
        best[rows[:going_on]] = origin[following, best[following]]
    out[...] = best


# What the three share ----------------------------------------------------------------------------


def longest_first(offsets: Array) -> Array:
    """The sentences by length, the longest first, in a stable order."""
    return np.argsort(-np.diff(offsets), kind="stable")


def steps(offsets: Array) -> list[Array]:
    """The rows of token t, for each t, in all sentences that have one, longest sentence first.

    Example:
        >>> [rows.tolist() for rows in steps(np.array([0, 1, 1, 4]))]
        [[1, 0], [2], [3]]
    """
    order = longest_first(offsets)
    starts, lengths = offsets[:-1][order], np.diff(offsets)[order]
    counts = np.searchsorted(-lengths, -np.arange(lengths.max(initial=0)))
    return [starts[:count] + t for t, count in enumerate(counts.tolist())]


def ends(offsets: Array) -> tuple[Array, Array]:
    """First and last rows of the sentences that have any."""
    occupied = np.flatnonzero(np.diff(offsets))
    return offsets[occupied], offsets[occupied + 1] - 1


def rows_after(offsets: Array) -> Array:
    """The rows that are not the first of their sentence."""
    is_inner = np.ones(int(offsets[-1]), bool)
    is_inner[ends(offsets)[0]] = False
    return np.flatnonzero(is_inner)


class LogSums:
    """log Σ_i exp(a_i + transitions_ij) of many a (n, K) at once, by a product of exponentials.

    exp(transitions) has its columns divided by their largest element, so that no sum overflows.
    Terms that underflow are below the smallest normal number; a sum small enough for this to matter
    is recomputed in log space, term by term.

    Attributes:
        peaks:   (K,) the largest element of each column of the transitions.
        factors: (K, K) exp(transitions_ij - peaks_j).
        least:   a sum below it is recomputed.
    """

    def __init__(self, transitions: Array) -> None:
        self._transitions = transitions
        self.peaks = _peak(transitions.T)[:, 0]
        self.factors = np.exp(transitions - self.peaks)
        limits = np.finfo(transitions.dtype)
        self.least = transitions.shape[0] * limits.tiny / limits.eps

    def __call__(self, a: Array) -> Array:
        """The sums for `a` whose rows have maximum 0."""
        total = np.exp(a) @ self.factors
        n, j = np.nonzero(total < self.least)
        with np.errstate(divide="ignore"):
            log_sums: Array = np.log(total) + self.peaks
        if n.size:
            log_sums[n, j] = _log_sum_exp(a[n] + self._transitions.T[j])
        return log_sums

    def inverse(self, log_sums: Array, out: Array, is_small: Array) -> None:
        """1 / Σ_i exp(a_i) factors_ij from its logarithm; 0 and True where the sum is too small."""
        np.subtract(self.peaks, log_sums, out=out)
        with np.errstate(over="ignore"):
            np.exp(out, out=out)
        np.greater(out, 1 / self.least, out=is_small)
        np.copyto(out, 0, where=is_small)


def _state(x: Array, log_sums: Array, shifts: Array, rows: Array | slice) -> Array:
    """a_t for some rows, as defined in `crf`."""
    state: Array = log_sums[rows] + x[rows]
    state -= shifts[rows, None]
    return state


def _peak(rows: Array) -> Array:
    """The maximum of each row (n, 1), 0 for a row of -inf."""
    peak: Array = rows.max(axis=1, keepdims=True)
    peak[np.isneginf(peak)] = 0
    return peak


def _log_sum_exp(rows: Array) -> Array:
    """log Σ exp of each row; -inf for a row of -inf."""
    peak = _peak(rows)
    with np.errstate(divide="ignore"):
        log_sum: Array = np.log(np.exp(rows - peak).sum(axis=1)) + peak[:, 0]
    return log_sum


def _softmax(rows: Array) -> Array:
    exps: Array = np.exp(rows - _peak(rows))
    exps /= exps.sum(axis=1, keepdims=True)
    return exps
