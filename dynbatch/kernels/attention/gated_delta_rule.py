"""The gated delta rule: a recurrence whose state is a matrix, in each head of every sentence.

    S_t = a_t S_t-1 + k_t w_tᵀ,  o_t = S_tᵀ q_t,  a = exp(log_a),
    w_t = b_t e_t,  e_t = v_t - a_t S_t-1ᵀ k_t;  without b, w_t = v_t

It runs by chunks of tokens: products of matrices, and no state inside of a chunk. Of one that
begins with state S, with γ_i = a_1 … a_i and D_ij = a_j+1 … a_i for j <= i, else 0:

    P = D ⊙ Q Kᵀ,  M = D ⊙ K Kᵀ below the diagonal
    E = V - γ K S - M W,  W = b E,  O = γ Q S + P W,  S' = γ_n S + (D_n K)ᵀ W

E is solved row by row. Decays are products of what lies in [0, 1], never quotients, and no update
is undone: strong gates, and a = 0, are as exact as a loop over tokens. In C long sentences go token
by token: `delta_steps.h`.

Source: Yang et al. 2024, arXiv:2406.06484 (chunks of the delta rule), and 2025, arXiv:2412.06464
    (gates). A chunk is solved at once here, with the state in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, ArraySpec, spec_of
from dynbatch.kernels.runtime.dispatch import HOST, kernel

# Tokens of a chunk. Sentences that have no more hold no state.
CHUNK = 64
ANY_LENGTH = 2**62


class DeltaSizes(NamedTuple):
    """Sizes of a batch: tokens of each sentence, and widths of one head's keys and values."""

    lengths: Sequence[int]
    heads: int
    key_width: int
    value_width: int
    has_b: bool


class DeltaInputs(NamedTuple):
    """Packed sentences: q, k (N, H · D) and v (N, H · E), log_a and b (N, H).

    b is None without a delta rule. `offsets` (sentences + 1,) go from 0 to N.
    """

    q: Array
    k: Array
    v: Array
    log_a: Array
    b: Array | None
    offsets: Array

    @property
    def sizes(self) -> DeltaSizes:
        heads = self.log_a.shape[1]
        d, e = self.q.shape[1] // heads, self.v.shape[1] // heads
        return DeltaSizes(np.diff(self.offsets).tolist(), heads, d, e, self.b is not None)


class DeltaGradients(NamedTuple):
    """Gradients of `DeltaInputs` to compute, overwritten; None for unwanted ones."""

    q: Array | None
    k: Array | None
    v: Array | None
    log_a: Array | None
    b: Array | None = None


@kernel(c=HOST, cuda=HOST)
def workspace(spec: ArraySpec, sizes: DeltaSizes, keeps: bool) -> int:
    """Elements of scratch for `gated_delta_rule`, which keeps errors and states or does not."""
    return 0


@kernel(c=HOST, cuda=HOST)
def workspace_backward(spec: ArraySpec, sizes: DeltaSizes) -> int:
    """Elements of scratch for `gated_delta_rule_backward`."""
    return 0


@kernel(c=HOST, cuda=HOST)
def longest_by_chunks(spec: ArraySpec, sizes: DeltaSizes) -> int:
    """Tokens of the longest sentence that runs by chunks and keeps the states between them."""
    return ANY_LENGTH


def kept_states(spec: ArraySpec, sizes: DeltaSizes) -> list[int]:
    """The states between chunks that each sentence keeps for backward, in each head."""
    longest = longest_by_chunks(spec, sizes)
    return [max(0, n - 1) // CHUNK if n <= longest else 0 for n in sizes.lengths]


@kernel("q", c=HOST, cuda=HOST)
def gated_delta_rule(
    x: DeltaInputs, out: Array, errors: Array | None, states: Array | None, scratch: Array
) -> None:
    """out_t = S_tᵀ q_t of each sentence and head.

    Args:
        out:     (N, H · E), overwritten.
        errors:  (N, H · E), overwritten with e_t; None if nobody wants them, or without b.
        states:  (states, D · E), overwritten with those of `kept_states`, which lie between two
            chunks, of each sentence in turn those of all heads; None if nobody wants them.
        scratch: `workspace` elements.

    Cost: of a chunk of n tokens 3 n² products of rows, and 3 of each row with the state.
    """
    heads = x.log_a.shape[1]
    kept = None if states is None else _by_heads_of_states(states, x)
    for rows in _sentences(x):
        state, to_keep = None, [] if kept is None else [*kept[rows.states]]
        for span in rows.chunks:
            chunk = _Chunk.of(x, span)
            w = chunk.v.copy()
            if chunk.b is not None:
                if state is not None:
                    w -= chunk.before * (chunk.k @ state)
                _solve(chunk, w)
                if errors is not None:
                    _by_heads(errors[span], heads)[...] = w
                w *= chunk.b
            y = chunk.scores() @ w
            if state is not None:
                y += chunk.before * (chunk.q @ state)
            _by_heads(out[span], heads)[...] = y
            if span.stop < rows.last:
                state = chunk.next_state(w, state)
                if to_keep:
                    to_keep.pop(0)[...] = state


@kernel("q", c=HOST, cuda=HOST)
def gated_delta_rule_backward(
    x: DeltaInputs, errors: Array | None, states: Array | None, dout: Array,
    wanted: DeltaGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `gated_delta_rule`, from a sentence's last chunk to its first.

    With dS' the gradient of the state after a chunk, u_i = dL/de_i and dw from

        dW = Pᵀ dO + D_n K dS' - Mᵀ U,  U = b dW,  dV = U

    the other gradients are those of the chunk's products. log_a's are sums over the terms that
    each a_t is a factor of, and not differences of such sums, but where C goes token by token: a
    strong gate's is as exact there as its neighbours' are, and 0 where a = 0.

    Args:
        errors, states: as forward left them. States that it did not keep are made again.
        dout:    (N, H · E).
        scratch: `workspace_backward` elements.
    """
    heads = x.log_a.shape[1]
    kept = None if states is None else _by_heads_of_states(states, x)
    for rows in _sentences(x):
        dstate = None
        before: list[Array | None] = [None, *([] if kept is None else kept[rows.states])]
        for span in rows.chunks[len(before) - 1 : -1]:
            chunk, w = _Chunk.of(x, span), _by_heads(x.v[span], heads)
            if chunk.b is not None and errors is not None:
                w = chunk.b * _by_heads(errors[span], heads)
            before.append(chunk.next_state(w, before[-1]))
        for span, state in reversed([*zip(rows.chunks, before, strict=False)]):
            chunk, dy = _Chunk.of(x, span), _by_heads(dout[span], heads)
            error = None if errors is None else _by_heads(errors[span], heads)
            dxs, dstate = _chunk_backward(chunk, error, state, dy, dstate)
            for array, dx in zip(wanted, dxs, strict=True):
                if array is not None and dx is not None:
                    _by_heads(array[span], heads)[...] = dx


def _chunk_backward(
    x: _Chunk, errors: Array | None, state: Array | None, dy: Array, dafter: Array | None
) -> tuple[list[Array | None], Array | None]:
    """The gradients of a chunk's inputs, and of the state before it."""
    scores = x.scores()
    dw = scores.mT @ dy
    if dafter is not None:
        dw += x.after * (x.k @ dafter)
    w, u, db = x.v, dw, None
    if errors is not None and x.b is not None:
        _solve_backward(x, dw)
        w, u, db = x.b * errors, x.b * dw, (dw * errors).sum(-1, keepdims=True)
    dscores = dy @ w.mT
    terms = scores * dscores
    dscores *= x.decays
    dq, dk = dscores @ x.k, dscores.mT @ x.q
    if db is not None:
        dproducts = -(u @ w.mT)
        terms += x.products() * dproducts
        dproducts *= np.tril(x.decays, -1)
        dk += (dproducts + dproducts.mT) @ x.k
    # a_t is a factor of the terms (i, j) with j < t <= i.
    dlog_a = np.tril(_sums_from(terms), -1).sum(-1, keepdims=True)
    if dafter is not None:
        part = x.after * (w @ dafter.mT)
        dk += part
        sums = np.cumsum((part * x.k).sum(-1, keepdims=True), axis=1)
        dlog_a[:, 1:] += sums[:, :-1]
    dbefore = None
    if state is not None:
        part = x.before * (dy @ state.mT)
        dq += part
        factors = (part * x.q).sum(-1, keepdims=True)
        dbefore = (x.before * x.q).mT @ dy
        if db is not None:
            part = -x.before * (u @ state.mT)
            dk += part
            factors += (part * x.k).sum(-1, keepdims=True)
            dbefore -= (x.before * x.k).mT @ u
        dlog_a += _sums_from(factors)
        if dafter is not None:
            last = x.before[:, -1:]
            dlog_a += last * (dafter * state).sum((1, 2), keepdims=True)
            dbefore += last * dafter
    return [dq, dk, u, dlog_a, db], dbefore


def _solve(x: _Chunk, e: Array) -> None:
    """E from E + M b E, in place."""
    assert x.b is not None
    products = x.products()
    for i in range(1, e.shape[1]):
        e[:, i] -= (products[:, i : i + 1, :i] @ (x.b[:, :i] * e[:, :i]))[:, 0]


def _solve_backward(x: _Chunk, dw: Array) -> None:
    """dW from dW + Mᵀ b dW, in place."""
    assert x.b is not None
    products = x.products().mT
    for j in range(dw.shape[1] - 2, -1, -1):
        later = slice(j + 1, None)
        dw[:, j] -= (products[:, j : j + 1, later] @ (x.b[:, later] * dw[:, later]))[:, 0]


def _sums_from(x: Array) -> Array:
    """Sums over each token and those after it."""
    sums: Array = np.cumsum(x[:, ::-1], axis=1)[:, ::-1]
    return sums


class _Chunk(NamedTuple):
    """The tokens of a chunk, heads first: q, k, v (H, n, …) and b (H, n, 1).

    decays (H, n, n): D. before (H, n, 1): γ, from the state before the chunk to each token.
    after (H, n, 1): D_n, from each token to the state after the chunk.
    """

    q: Array
    k: Array
    v: Array
    b: Array | None
    decays: Array
    before: Array

    @classmethod
    def of(cls, x: DeltaInputs, rows: slice) -> _Chunk:
        heads, count = x.log_a.shape[1], rows.stop - rows.start
        q, k, v = [_by_heads(array[rows], heads) for array in (x.q, x.k, x.v)]
        b = None if x.b is None else _by_heads(x.b[rows], heads)
        a = np.exp(_by_heads(x.log_a[rows], heads))
        decays = np.zeros((heads, count, count), a.dtype)
        for i in range(count):
            decays[:, i, :i] = decays[:, i - 1, :i] * a[:, i]
            decays[:, i, i] = 1
        return cls(q, k, v, b, decays, np.cumprod(a, axis=1))

    @property
    def after(self) -> Array:
        return self.decays[:, -1, :, None]

    def scores(self) -> Array:
        """P (H, n, n)."""
        scores: Array = self.decays * (self.q @ self.k.mT)
        return scores

    def next_state(self, w: Array, state: Array | None) -> Array:
        """S' (H, D, E)."""
        update: Array = (self.after * self.k).mT @ w
        return update if state is None else update + self.before[:, -1:] * state

    def products(self) -> Array:
        """M (H, n, n)."""
        return np.tril(self.decays * (self.k @ self.k.mT), -1)


class _Sentence(NamedTuple):
    """Rows of a sentence, those of its chunks, and its places among the kept states."""

    first: int
    last: int
    states: slice

    @property
    def chunks(self) -> list[slice]:
        starts = range(self.first, self.last, CHUNK)
        return [slice(start, min(start + CHUNK, self.last)) for start in starts]


def _sentences(x: DeltaInputs) -> list[_Sentence]:
    numbers = pairwise([0, *accumulate(kept_states(spec_of(x.v), x.sizes))])
    rows = pairwise(x.offsets.tolist())
    return [_Sentence(*ends, slice(*each)) for ends, each in zip(rows, numbers, strict=True)]


def _by_heads(rows: Array, heads: int) -> Array:
    """Rows (n, H · width) as (H, n, width), a view."""
    return rows.reshape(rows.shape[0], heads, -1).swapaxes(0, 1)


def _by_heads_of_states(states: Array, x: DeltaInputs) -> Array:
    """The states as (states, H, D, E)."""
    sizes = x.sizes
    return states.reshape(-1, sizes.heads, sizes.key_width, sizes.value_width)
