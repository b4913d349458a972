"""Connectionist temporal classification: loss and gradient, a sentence after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, kernel


class Labels(NamedTuple):
    """The labels that each sentence's frames should spell, side by side.

    A sentence of U labels has 2 U + 1 states, in this order: blank_0 … blank_U, the blank after so
    many labels; then label_1 … label_U.

    Attributes:
        ids:     (M,), none of which is the blank; of the host.
        offsets: (sentences + 1,) from 0 to M.
        blank:   its column of x.
    """

    ids: Array
    offsets: Array
    blank: int

    def widths(self) -> Array:
        """The number of states of each sentence."""
        return 2 * np.diff(self.offsets) + 1

    def state_offsets(self, offsets: Array) -> Array:
        """(sentences + 1,) where the states of each sentence's frames begin."""
        return np.concatenate(([0], np.cumsum(self.widths() * np.diff(offsets))))

    def bars(self, dtype: np.dtype[np.floating]) -> Array:
        """(M,) log scores of a label straight after the one before it: 0, or -inf where a blank
        must part them, as they are equal, and before each first label."""
        bars = np.zeros(self.ids.size, dtype)
        bars[1:][self.ids[1:] == self.ids[:-1]] = -np.inf
        bars[self.offsets[:-1][np.diff(self.offsets) > 0]] = -np.inf
        return bars


@kernel(c=HOST, cuda=HOST)
def ctc(
    x: Array, labels: Labels, offsets: Array, zero_infinity: bool, states: Array, shifts: Array,
    out: Array,
) -> None:  # fmt: skip
    """out_k = -log Σ_π exp(Σ_t x[t, π_t]), over the paths π of frames that spell sentence k.

    A path spells its labels where equal neighbours are merged and then blanks are left out. With
    a_t(s) the log score of all beginnings of paths up to frame t and state s:

        a_t(blank_u) = x[t, blank] + log(e^a(blank_u) + e^a(label_u))
        a_t(label_u) = x[t, label_u] + log(e^a(label_u) + e^a(blank_u-1) + e^(a(label_u-1) + bar_u))

    Args:
        x:       (N, V) log probabilities of each frame.
        offsets: (sentences + 1,) from 0 to N.
        zero_infinity: whether a sentence without a path has loss 0, not infinity.
        states:  (Σ T (2 U + 1),), overwritten: a_t - shift_t.
        shifts:  (N,), overwritten: what makes the largest state of a frame 0.
        out:     (sentences,), overwritten.

    Accuracy: states stay small however many frames there are; the shifts are summed in float64.
    Source: Graves, Fernández, Gomez & Schmidhuber 2006, ICML.
    """
    for k, (rows, ids, bars, a) in enumerate(_sentences(x, labels, offsets, states)):
        total, (frames, width), count = 0.0, a.shape, ids.size
        state = np.full(width, -np.inf, x.dtype)
        state[0] = 0  # of a frame before the first: nothing is spelled
        for t in range(frames):
            row = a[t]
            row[0], row[1 : count + 1] = (
                state[0],
                np.logaddexp(state[1 : count + 1], state[count + 1 :]),
            )
            row[: count + 1] += x[rows.start + t, labels.blank]
            row[count + 1 :] = np.logaddexp(
                np.logaddexp(state[count + 1 :], state[:count]), state[count:-1] + bars
            )
            row[count + 1 :] += x[rows.start + t, ids]
            shift = _shift(row)
            row -= shift
            shifts[rows.start + t] = shift
            total += float(shift)
            state = row
        loss = -(total + float(_last(state, count)))
        out[k] = 0 if zero_infinity and loss == np.inf else loss


def workspace_backward(counts: Sequence[int]) -> int:
    """Elements of scratch for `ctc_backward`: three rows of states for so many labels each."""
    return 3 * sum([2 * count + 1 for count in counts])


@kernel(c=HOST, cuda=HOST)
def ctc_backward(
    x: Array, labels: Labels, offsets: Array, zero_infinity: bool, states: Array, shifts: Array,
    dy: Array, scratch: Array, dx: Array,
) -> None:  # fmt: skip
    """Gradient of `ctc`: dx_tv = -dy_k Σ p_t(s), over the states s whose column is v.

    p_t(s) is the probability of state s at frame t, of the paths that spell the labels. State i
    precedes j with probability exp(a_t-1(i) + bar - l_j), where l_j = a_t(j) - x[t, j] is the
    logarithm of such a sum: so p_t-1 follows from p_t, and is normalised anew, that no error adds
    up over frames.

    Args:
        states, shifts: as forward left them.
        dy:      (sentences,).
        scratch: `workspace_backward` elements.
        dx:      (N, V), overwritten. All NaN for a sentence without a path, or 0 where
            `zero_infinity`; it is the gradient of x itself, whether or not exp(x) sums to 1.
    """
    for k, (rows, ids, bars, a) in enumerate(_sentences(x, labels, offsets, states)):
        count, slopes = ids.size, dx[rows]
        slopes[...] = 0
        total = _last(a[-1], count) if len(a) else 0
        if not total > -np.inf:
            slopes[...] = 0 if zero_infinity and total == -np.inf else np.nan
            continue
        p = np.zeros(a.shape[1], x.dtype)
        ends = slice(count, None, max(1, count))  # blank_U and label_U
        p[ends] = np.exp(a[-1][ends] - total) if len(a) else 0
        for t in range(len(a) - 1, -1, -1):
            slopes[t, labels.blank] = -dy[k] * p[: count + 1].sum()
            np.subtract.at(slopes[t], ids, dy[k] * p[count + 1 :])
            if t:
                emitted = x[rows.start + t]
                sums = a[t] + shifts[rows.start + t]
                sums[: count + 1] -= emitted[labels.blank]
                sums[count + 1 :] -= emitted[ids]
                p = _before(p, a[t - 1], sums, bars)


def _before(p: Array, a: Array, sums: Array, bars: Array) -> Array:
    """The probabilities of a frame's states, from those of the next one."""
    count = bars.size
    before = _edge(p, a, sums)  # each state may stay
    before[:count] += _edge(p[count + 1 :], a[:count], sums[count + 1 :])
    before[count + 1 :] += _edge(p[1 : count + 1], a[count + 1 :], sums[1 : count + 1])
    if count > 1:
        skipped = a[count + 1 : -1] + bars[1:]
        before[count + 1 : -1] += _edge(p[count + 2 :], skipped, sums[count + 2 :])
    before /= before.sum()
    return before


def _edge(p: Array, a: Array, sums: Array) -> Array:
    """p exp(a - sums), 0 where p is."""
    edge = np.zeros_like(p)
    possible = p != 0
    edge[possible] = p[possible] * np.exp(a[possible] - sums[possible])
    return edge


def _shift(row: Array) -> np.floating:
    """The largest state, 0 if all are -inf; a NaN stays in what follows from it."""
    shift: np.floating = np.fmax.reduce(row)
    return shift if np.isfinite(shift) else shift.dtype.type(0)


def _last(state: Array, count: int) -> np.floating:
    """log(e^a(blank_U) + e^a(label_U)), of paths that end here."""
    last: np.floating = np.logaddexp(state[count], state[-1]) if count else state[0]
    return last


def _sentences(
    x: Array, labels: Labels, offsets: Array, states: Array
) -> Iterator[tuple[slice, Array, Array, Array]]:
    """Rows, ids, bars and states (T, 2 U + 1) of each sentence."""
    bars = labels.bars(x.dtype)
    spans = [
        [slice(*span) for span in pairwise(each.tolist())]
        for each in (offsets, labels.offsets, labels.state_offsets(offsets))
    ]
    for rows, places, elements in zip(*spans, strict=True):
        ids = labels.ids[places]
        shape = (rows.stop - rows.start, 2 * ids.size + 1)
        yield rows, ids, bars[places], states[elements].reshape(shape)
