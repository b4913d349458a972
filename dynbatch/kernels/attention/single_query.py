"""Attention with one query a sentence, as in a decoder's step: all sentences at once, in NumPy.

Sentence by sentence it is a handful of thin products, which cost a microsecond each, as much as
Python's loop around them; elementwise work covers the keys of all sentences in one call. Measured
in training a seq2seq model of 96 to 256 units, which the general forms make 1.1 to 2 times slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import narrowed, repeat
from dynbatch.kernels import blas
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.segment import groups, rows_of


def applies(packed: PackedAttention, masks: Sequence[Mask]) -> bool:
    """Whether each sentence has one query, which sees all of its keys, and there are some.

    Where rows are multiplied by themselves, the general forms are: a sentence's bits are then the
    same in the company of others.
    """
    return bool(
        not blas.has_fixed_rows()
        and all([mask is NO_MASK for mask in masks])
        and (np.diff(packed.query_offsets) == 1).all()
        and (np.diff(packed.key_offsets) > 0).all()  # reduceat misreads empty segments
    )


def dot_attention(
    packed: PackedAttention, scales: Array, out: Array, log_sums: Array | None
) -> None:
    """out_k = Σ_j p_j v_j,  p_j = softmax_j(scale_k · q_k · k_j), over the keys j of sentence k."""
    p = _scores(packed, scales)
    sums = _softmax(p, packed.key_offsets)
    _weighted_sums(p, packed.values, packed.key_offsets, out)
    if log_sums is not None:
        log_sums[:, 0] = sums


def dot_attention_backward(
    packed: PackedAttention, scales: Array, log_sums: Array, dout: Array,
    wanted: AttentionGradients,
) -> None:  # fmt: skip
    queries, keys, values, _, offsets = packed
    p = _scores(packed, scales)
    np.exp(np.subtract(p, repeat(log_sums[:, 0], np.diff(offsets)), out=p), out=p)
    _outer(p, dout, offsets, wanted.values, wanted.accumulate)
    ds = _softmax_backward(p, _dots(values, dout, offsets), offsets)
    np.multiply(ds, repeat(scales, np.diff(offsets)), out=ds)
    if wanted.queries is not None:
        _weighted_sums(ds, keys, offsets, wanted.queries)
    _outer(ds, queries, offsets, wanted.keys, wanted.accumulate)


def additive_attention(packed: PackedAttention, vector: Array, out: Array, weights: Array) -> None:
    """out_k = Σ_j w_j v_j,  w_j = softmax_j(vector · tanh(q_k + k_j)), over the keys of sentence k.

    Args:
        weights: (N_k,), overwritten.
    """
    offsets = packed.key_offsets
    for _, rows in groups(offsets, vector.size):
        blas.dot_rows(_hidden(packed, rows), vector, weights[rows])
    _softmax(weights, offsets)
    _weighted_sums(weights, packed.values, offsets, out)


def additive_attention_backward(
    packed: PackedAttention, vector: Array, weights: Array, dout: Array, wanted: AttentionGradients
) -> Array:
    offsets, dvector = packed.key_offsets, np.zeros_like(vector)
    _outer(weights, dout, offsets, wanted.values, wanted.accumulate)
    ds = _softmax_backward(weights, _dots(packed.values, dout, offsets), offsets)
    for sentences, rows in groups(offsets, vector.size):
        u = _hidden(packed, rows)
        dvector += ds[rows] @ u
        slopes = np.subtract(1, np.multiply(u, u, out=u), out=u)
        if wanted.queries is not None:
            inside = offsets[sentences.start : sentences.stop + 1] - rows.start
            _weighted_sums(ds[rows], slopes, inside, wanted.queries[sentences])
        if wanted.keys is not None:
            np.multiply(slopes, vector, out=slopes)
            np.multiply(slopes, ds[rows, None], out=slopes)
            _put(slopes, wanted.keys[rows], wanted.accumulate)
    if wanted.queries is not None:
        np.multiply(wanted.queries, vector, out=wanted.queries)
    return dvector


def _scores(packed: PackedAttention, scales: Array) -> Array:
    scores = _dots(packed.keys, packed.queries, packed.key_offsets)
    np.multiply(scores, repeat(scales, np.diff(packed.key_offsets)), out=scores)
    return scores


def _hidden(packed: PackedAttention, rows: slice) -> Array:
    """tanh(q + k_j) for some rows of keys."""
    hidden = rows_of(packed.queries, packed.key_offsets, rows)
    np.tanh(np.add(hidden, packed.keys[rows], out=hidden), out=hidden)
    return hidden


def _dots(rows: Array, vectors: Array, offsets: Array) -> Array:
    """rows_j · vectors_k for the rows j of sentence k."""
    out, edges = np.empty(len(rows), rows.dtype), offsets.tolist()
    for start, end, vector in zip(edges, edges[1:], vectors, strict=False):
        np.dot(rows[start:end], vector, out[start:end])
    return out


def _weighted_sums(weights: Array, rows: Array, offsets: Array, out: Array) -> None:
    """out_k = Σ_j weights_j rows_j over the rows j of sentence k."""
    edges = offsets.tolist()
    for start, end, total in zip(edges, edges[1:], out, strict=False):
        np.dot(weights[start:end], rows[start:end], total)


def _outer(weights: Array, vectors: Array, offsets: Array, out: Array | None, adds: bool) -> None:
    """out_j (+)= weights_j vectors_k for the rows j of sentence k."""
    if out is None:
        return
    for _, rows in groups(offsets, vectors.shape[1]):
        products = rows_of(vectors, offsets, rows)
        _put(np.multiply(products, weights[rows, None], out=products), out[rows], adds)


def _put(x: Array, out: Array, adds: bool) -> None:
    if adds:
        np.add(out, x, out=out)
    else:
        np.copyto(out, x)


def _softmax(scores: Array, offsets: Array) -> Array:
    """Softmax over each sentence, in place; the logarithms of the sums of exp(score)."""
    starts, lengths = narrowed(offsets[:-1]), np.diff(offsets)
    peak = np.maximum.reduceat(scores, starts)
    np.exp(np.subtract(scores, repeat(peak, lengths), out=scores), out=scores)
    total = np.add.reduceat(scores, starts)
    np.divide(scores, repeat(total, lengths), out=scores)
    sums: Array = np.log(total) + peak
    return sums


def _softmax_backward(weights: Array, dweights: Array, offsets: Array) -> Array:
    """w_j (dw_j - Σ_i w_i dw_i), the sum over j's sentence, in the place of dweights."""
    np.multiply(weights, dweights, out=dweights)
    total = repeat(np.add.reduceat(dweights, narrowed(offsets[:-1])), np.diff(offsets))
    np.subtract(dweights, weights * total, out=dweights)
    return dweights
