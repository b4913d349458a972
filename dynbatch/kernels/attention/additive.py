"""Additive attention of every sentence's queries over its own keys, without padding.

tanh(q_i + k_j) is as wide as the keys for every pair: it exists for one block of a sentence's
queries at a time, and backward recomputes it. The weights, one number per pair, are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels import blas
from dynbatch.kernels.attention import single_query
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import (
    AttentionGradients,
    PackedAttention,
    exp_rows,
    pairs_of,
    softmax_backward,
)
from dynbatch.kernels.runtime.dispatch import HOST, kernel, no_scratch_on_gpu
from dynbatch.kernels.runtime.precision import FULL, multiplying

# Elements of one block of tanh(q + k): it stays in the second-level cache.
BLOCK_ELEMENTS = 1 << 17


class AdditiveSentence(NamedTuple):
    """One sentence: q (T_q, D), k (T_k, D), v (T_k, E), and its pairs' weights (T_q, T_k)."""

    rows: slice
    keys: slice
    q: Array
    k: Array
    v: Array
    weights: Array

    def blocks(self, scratch: Array) -> Iterator[tuple[slice, Array]]:
        """Blocks of queries, with tanh(q_i + k_j) (queries, T_k, D) for all keys, in scratch."""
        count, (keys, width) = self.q.shape[0], self.k.shape
        step = block_rows(count, keys, width)
        for first in range(0, count, max(1, step)):
            rows = slice(first, min(count, first + step))
            shape = (rows.stop - first, keys, width)
            hidden = scratch[: shape[0] * keys * width].reshape(shape)
            np.add(self.q[rows, None], self.k, out=hidden)
            np.tanh(hidden, out=hidden)
            yield rows, hidden


def block_rows(queries: int, keys: int, width: int) -> int:
    return min(queries, max(1, BLOCK_ELEMENTS // max(1, keys * width)))


@no_scratch_on_gpu
def workspace(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int], width: int
) -> int:
    """Elements of scratch for `additive_attention`.

    The largest block of tanh(q + k): at least one query's, over all its keys.
    """
    return max(
        [
            block_rows(queries, keys, width) * keys * width
            for queries, keys in zip(query_lengths, key_lengths, strict=True)
        ],
        default=0,
    )


@kernel(cuda=HOST)
def workspace_backward(
    spec: ArraySpec,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    width: int,
    values: int,
) -> int:
    """Elements of scratch for `additive_attention_backward`, with `width` features of values.

    Beside the block of tanh(q + k): for the largest sentence, a number for each pair and its part
    of the gradient of keys or values.
    """
    pairs = [a * b for a, b in zip(query_lengths, key_lengths, strict=True)]
    block: int = workspace(spec, query_lengths, key_lengths, width)
    added = max(key_lengths, default=0) * max(width, values)
    return block + max(pairs, default=0) + added


@kernel("queries", c=HOST, cuda=HOST)
def additive_attention(
    packed: PackedAttention, vector: Array, masks: Sequence[Mask],
    out: Array, weights: Array, scratch: Array,
) -> None:  # fmt: skip
    """out_i = Σ_j w_ij v_j,  w_ij = softmax_j(vector · tanh(q_i + k_j)), of each sentence.

    A query that sees no key gives zeros.

    Args:
        vector:  (D,).
        masks:   K, which keys each sentence's queries see.
        out:     (N_q, E), overwritten.
        weights: (Σ T_q T_k,) overwritten, each sentence's (T_q, T_k) after the other.
        scratch: `workspace` elements.

    Cost: a loop over sentences: NumPy has no product of matrices of different shapes.
    """
    if single_query.applies(packed, masks):
        single_query.additive_attention(packed, vector, out, weights)
        return
    for sentence, mask in zip(_sentences(packed, weights), masks, strict=True):
        w = sentence.weights
        if not w.size:
            out[sentence.rows] = 0
            continue
        for rows, hidden in sentence.blocks(scratch):
            scores = w[rows].reshape(-1)
            blas.dot_rows(hidden.reshape(scores.size, -1), vector, scores)
        if mask is not NO_MASK:
            mask.hide(w, 0, 0)
        _, total = exp_rows(w)
        np.copyto(total, 1, where=total == 0)
        np.divide(w, total, out=w)
        with multiplying(FULL):
            blas.matmul(w, sentence.v, out[sentence.rows])


@kernel("queries", c=HOST, cuda=HOST)
def additive_attention_backward(
    packed: PackedAttention, vector: Array, weights: Array, dout: Array, wanted: AttentionGradients,
    scratch: Array,
) -> Array:  # fmt: skip
    """Gradients of `additive_attention`. With u = tanh(q_i + k_j) and dw_ij = dout_i · v_j:

        ds_ij = w_ij (dw_ij - Σ_j w_ij dw_ij);  dv = wᵀ dout;  dvector = Σ_ij ds_ij u
        dq_i = vector ⊙ Σ_j ds_ij (1 - u²);  dk_j = vector ⊙ Σ_i ds_ij (1 - u²)

    Args:
        weights: as forward left them.
        dout:    (N_q, E).
        scratch: `workspace_backward` elements.
    Returns:
        dvector (D,).
    """
    if single_query.applies(packed, ()):
        return single_query.additive_attention_backward(packed, vector, weights, dout, wanted)
    dvector = np.zeros_like(vector)
    sentences = list(_sentences(packed, weights))
    most = max([sentence.weights.size for sentence in sentences], default=0)
    keys = max([len(sentence.k) for sentence in sentences], default=0)
    slopes, scratch = scratch[:most], scratch[most:]
    widest = max(packed.keys.shape[1], packed.values.shape[1])
    added, scratch = scratch[: keys * widest], scratch[keys * widest :]
    for sentence in sentences:
        w, dy = sentence.weights, dout[sentence.rows]
        dq, dk, dv = [
            None if array is None else array[rows]
            for array, rows in (
                (wanted.queries, sentence.rows),
                (wanted.keys, sentence.keys),
                (wanted.values, sentence.keys),
            )
        ]
        if dq is not None:
            dq[...] = 0
        for array in (dk, dv):
            if array is not None and not wanted.accumulate:
                array[...] = 0
        if not w.size:
            continue
        if dv is not None:
            np.add(dv, np.matmul(w.T, dy, out=added[: dv.size].reshape(dv.shape)), out=dv)
        ds = np.matmul(dy, sentence.v.T, out=slopes[: w.size].reshape(w.shape))
        softmax_backward(w, ds)
        _scores_backward(sentence, ds, vector, dvector, dq, dk, added, scratch)
    return dvector


def _scores_backward(
    sentence: AdditiveSentence, ds: Array, vector: Array, dvector: Array,
    dq: Array | None, dk: Array | None, added: Array, scratch: Array,
) -> None:  # fmt: skip
    """Add the gradients of s_ij = vector · tanh(q_i + k_j) to dvector, dq and dk."""
    total = None if dk is None else added[: dk.size].reshape(dk.shape)
    if total is not None:
        total[...] = 0
    for rows, u in sentence.blocks(scratch):
        part = ds[rows]
        dvector += np.dot(part.reshape(-1), u.reshape(part.size, -1))
        np.multiply(u, u, out=u)
        np.subtract(1, u, out=u)
        if dq is not None:
            np.matmul(part[:, None], u, out=dq[rows, None])
        if total is not None:
            np.multiply(u, part[..., None], out=u)
            total += u.sum(axis=0)
    if dq is not None:
        np.multiply(dq, vector, out=dq)
    if dk is not None and total is not None:
        np.multiply(total, vector, out=total)
        np.add(dk, total, out=dk)


def _sentences(packed: PackedAttention, weights: Array) -> Iterator[AdditiveSentence]:
    for rows, keys, pairs in pairs_of(packed, weights):
        q, k, v = packed.queries[rows], packed.keys[keys], packed.values[keys]
        yield AdditiveSentence(rows, keys, q, k, v, pairs)
