"""Semi-Markov CRF: scores of segments of up to L tokens; loss, gradient, the best segmentation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat
from dynbatch.kernels.losses.crf import Chain, ChainGradients, ends
from dynbatch.kernels.runtime.dispatch import HOST, kernel


@kernel(c=HOST, cuda=HOST)
def semi_crf(
    x: Array, chain: Chain, ids: Array, offsets: Array, entries: Array, states: Array,
    shifts: Array, out: Array,
) -> None:  # fmt: skip
    """out_k = log Σ_y exp(score(y)) - score(ids), over all segmentations y of sentence k, in nats.

        score(y) = start[y_1] + Σ_s x[t_s, (l_s - 1) K + y_s] + Σ_s transitions[y_s, y_s+1]
                   + end[y_S]

    where segment s has length l_s and label y_s, and ends at token t_s. With b_t(j) the log score
    of all beginnings that have label j start at token t, and a_t(j) of those where it ends there:

        b_0 = start,   b_t(j) = log Σ_i exp(a_t-1(i) + transitions_ij)
        a_t(j) = log Σ_l exp(b_t-l+1(j) + x[t, (l - 1) K + j])

    Args:
        x:       (N, L · K) scores of the segments that end at a token; those that would begin
            before its sentence are not read.
        ids:     (N,) the column of the segment that ends at a token, or -1; of the host.
        offsets: (sentences + 1,) from 0 to N.
        entries: (N, K), overwritten: b, less the shifts of the tokens before.
        states:  (N, K), overwritten: a, less the shifts up to the token.
        shifts:  (N,), overwritten: what makes the largest of a token's states 0.
        out:     (sentences,), overwritten; 0 for a sentence without tokens.

    Source: Sarawagi & Cohen 2004, NeurIPS 17.
    """
    count = chain.start.size
    before = labels_before(ids, offsets, count)
    for k, (first, last) in enumerate(pairwise(offsets.tolist())):
        total = 0.0
        for n in range(first, last):
            entries[n] = chain.start if n == first else _log_sums(states[n - 1], chain.transitions)
            states[n] = np.logaddexp.reduce(_choices(x, entries, shifts, n, first))
            shift = np.fmax.reduce(states[n])
            shifts[n] = shift if np.isfinite(shift) else 0
            states[n] -= shifts[n]
            total += float(shifts[n])
            if ids[n] >= 0:
                total -= float(x[n, ids[n]] + score_before(chain, before[n], ids[n] % count))
        if last > first:
            total += float(
                np.logaddexp.reduce(states[last - 1] + chain.end) - chain.end[ids[last - 1] % count]
            )
        out[k] = total


def workspace_backward(tokens: int, labels: int) -> int:
    """Elements of scratch for `semi_crf_backward`: two numbers for each token and label."""
    return 2 * tokens * labels


@kernel(cuda=HOST)
def semi_crf_backward(
    x: Array, chain: Chain, ids: Array, offsets: Array, entries: Array, states: Array,
    shifts: Array, dy: Array, scratch: Array, dx: Array, wanted: ChainGradients,
) -> None:  # fmt: skip
    """Gradients of `semi_crf`: the probability of each segment, less 1 for those of the sentence.

    Args:
        entries, states, shifts: as forward left them.
        dy:      (sentences,).
        scratch: `workspace_backward` elements.
        dx:      (N, L · K), overwritten; 0 for segments that would begin before the sentence.
    """
    count, scale = chain.start.size, repeat(dy, np.diff(offsets))
    ending, starting = scratch.reshape(2, -1, count)
    walk_segments_back(x, chain, offsets, entries, states, shifts, dy, ending, starting, dx)
    rows, (first, last) = np.flatnonzero(ids >= 0), ends(offsets)
    dx[rows, ids[rows]] -= scale[rows]
    if wanted.transitions is not None:
        pair_sums(chain.transitions, offsets, entries, states, starting, wanted.transitions)
        before = labels_before(ids, offsets, count)
        joints = rows[before[rows] >= 0]
        pairs = before[joints], ids[joints] % count
        np.subtract.at(wanted.transitions, pairs, scale[joints])
    labels = labels_inside(ids, count)
    for gradient, at, p in ((wanted.start, first, starting), (wanted.end, last, ending)):
        if gradient is not None:
            np.sum(p[at], axis=0, out=gradient)
            np.subtract.at(gradient, labels[at], scale[at])


@kernel(c=HOST)
@np.errstate(invalid="ignore")  # what is forbidden precedes nothing: see `_edge`
def walk_segments_back(
    x: Array, chain: Chain, offsets: Array, entries: Array, states: Array, shifts: Array, dy: Array,
    ending: Array, starting: Array, dx: Array,
) -> None:  # fmt: skip
    """The probabilities of all segments, from last tokens to first ones, times dy.

    A segment of label j that ends at t was as long as l with probability exp(b_t-l+1(j) + x -
    a_t(j)), and the one before it had label i with exp(a(i) + transitions_ij - b(j)).

    Args:
        ending, starting: (N, K), overwritten: of each label, that a segment ends at a token, and
            that one starts there.
        dx: (N, L · K), overwritten.
    """
    dx[...], starting[...] = 0, 0
    for k, (first, last) in enumerate(pairwise(offsets.tolist())):
        for n in range(last - 1, first - 1, -1):
            if n == last - 1:
                scores = states[n] + chain.end
                total = np.logaddexp.reduce(scores)
                ending[n] = dy[k] * np.exp(scores - (total if total > -np.inf else np.nan))
            else:
                pairs = states[n][:, None] + chain.transitions - entries[n + 1]
                ending[n] = _edge(starting[n + 1], pairs).sum(axis=1)
            choices = _choices(x, entries, shifts, n, first)
            p = _edge(ending[n], choices - shifts[n] - states[n])
            dx[n, : p.size] = p.reshape(-1)
            starting[n - len(p) + 1 : n + 1] += p[::-1]


@kernel(c=HOST)
@np.errstate(invalid="ignore")
def pair_sums(
    transitions: Array, offsets: Array, entries: Array, states: Array, starting: Array, out: Array
) -> None:
    """out_ij = Σ_n starting_nj exp(states_n-1,i + transitions_ij - entries_nj), over rows n that
    have one before them in their sentence."""
    out[...] = 0
    for first, last in pairwise(offsets.tolist()):
        for n in range(first + 1, last):
            pairs = states[n - 1][:, None] + transitions - entries[n]
            out += _edge(starting[n], pairs)


@kernel(c=HOST, cuda=HOST)
def semi_viterbi(x: Array, chain: Chain, offsets: Array, scratch: Array, out: Array) -> None:
    """out_n = the column of x of the segment that ends at row n in its sentence's best segmentation
    (see `semi_crf`), or -1.

    Ties go to the lowest label, then to the shortest segment, from the last token on.

    Args:
        scratch: (3 N · K,): the best b, and for each a its length, for each b the label before; all
            as floats.
        out:     (N,), overwritten: whole numbers as floats.
    """
    count = chain.start.size
    entries, lengths, labels = scratch.reshape(3, -1, count)
    out[...] = -1
    for first, last in pairwise(offsets.tolist()):
        state = chain.start
        for n in range(first, last):
            if n == first:
                entries[n] = chain.start
            else:
                pairs = state[:, None] + chain.transitions
                labels[n], entries[n] = pairs.argmax(axis=0), pairs.max(axis=0)
            choices = _choices(x, entries, np.zeros(0, x.dtype), n, first)
            lengths[n], state = choices.argmax(axis=0), choices.max(axis=0)
        n, label = last - 1, int(np.argmax(state + chain.end))
        while n >= first:
            length = int(lengths[n, label])
            out[n] = length * count + label
            n -= length
            label = int(labels[n, label]) if n > first else label
            n -= 1


def score_before(chain: Chain, before: int, label: int) -> np.floating:
    """The score of a label after another, or at first where that is -1."""
    score: np.floating = chain.start[label] if before < 0 else chain.transitions[before, label]
    return score


def labels_before(ids: Array, offsets: Array, count: int) -> Array:
    """(N,) of each segment's end, the label of the segment before it in its sentence, or -1."""
    before = np.full(ids.size, -1, np.int64)
    rows = np.flatnonzero(ids >= 0)
    sentence = np.searchsorted(offsets, rows, "right")
    follows = np.flatnonzero(sentence[1:] == sentence[:-1]) + 1
    before[rows[follows]] = ids[rows[follows - 1]] % count
    return before


def labels_inside(ids: Array, count: int) -> Array:
    """(N,) the label of the segment that a token is in, where `ids` are columns at their ends."""
    rows = np.flatnonzero(ids >= 0)
    return repeat(ids[rows] % count, np.diff(rows, prepend=-1))


def _choices(x: Array, entries: Array, shifts: Array, n: int, first: int) -> Array:
    """(l, K) scores of all that ends at row n, by the length of the last segment.

    Args:
        shifts: those of the rows before; none where nothing is shifted.
    """
    count = entries.shape[1]
    most = min(x.shape[1] // count, n - first + 1)
    choices = x[n, : most * count].reshape(most, count) + entries[n - most + 1 : n + 1][::-1]
    if shifts.size and most > 1:
        choices[1:] -= np.cumsum(shifts[n - most + 1 : n][::-1])[:, None]
    return choices


def _log_sums(state: Array, transitions: Array) -> Array:
    """log Σ_i exp(state_i + transitions_ij)."""
    sums: Array = np.logaddexp.reduce(state[:, None] + transitions)
    return sums


def _edge(p: Array, scores: Array) -> Array:
    """p exp(scores), 0 where p is; scores (…, K)."""
    edge: Array = np.where(p == 0, 0, p * np.exp(np.where(p == 0, 0, scores)))
    return edge
