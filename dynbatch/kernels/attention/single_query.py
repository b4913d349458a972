"""Attention with one query per sentence, as in a decoder's step: all sentences at once.

It is a handful of thin products, which cost BLAS a microsecond each, as much as Python's loop over
the sentences around them; elementwise work covers the keys of all sentences in one call. Measured
with 20 sentences of 22 keys, against the general kernels, whose every call is of one sentence:
forward 0.07 ms (dot) and 0.11 ms (additive) instead of 0.47 and 0.39, backward 0.22 and 0.29
instead of 0.94 and 0.93.

Every query sees every key of its sentence, and no sentence is empty: `reduceat` misreads those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels import blas, segment
from dynbatch.kernels.attention.deferred import DeferredGradients
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.runtime.dispatch import HOST, kernel, no_scratch_on_gpu


def sentence_of_rows(offsets: Array) -> Array:
    """The number of each packed row's sentence: (N,) int64."""
    return np.repeat(np.arange(offsets.size - 1), np.diff(offsets))


@no_scratch_on_gpu
def dot_workspace(spec: ArraySpec, key_lengths: Sequence[int]) -> int:
    """Elements of scratch for `dot_attention`."""
    return sum(key_lengths)


@no_scratch_on_gpu
def additive_workspace(spec: ArraySpec, key_lengths: Sequence[int], width: int) -> int:
    """Elements of scratch for `additive_attention`: the keys of the largest block of sentences."""
    return _block_elements(key_lengths, width)


@kernel(cuda=HOST)
def workspace_backward(spec: ArraySpec, key_lengths: Sequence[int], width: int) -> int:
    """Elements of scratch for both backward kernels; `width` is the larger of keys and values."""
    return _block_elements(key_lengths, width)


def _block_elements(key_lengths: Sequence[int], width: int) -> int:
    rows = max(max(key_lengths, default=0), segment.BLOCK // max(1, width))
    return width * min(sum(key_lengths), rows)


@kernel("queries", c=HOST, cuda=HOST)
def dot_attention(
    packed: PackedAttention, scales: Array, sentences: Array,
    out: Array, log_sums: Array | None, scratch: Array,
) -> None:  # fmt: skip
    """out = Σ_j p_j v_j,  p_j = softmax_j(scale · q · k_j): one row a sentence.

    Args:
        scales:    (K,), or (1,) for all.
        sentences: (N_k,), `sentence_of_rows`.
        out:       (K, E), overwritten.
        log_sums:  (K, 1), overwritten: log Σ_j exp(score).
        scratch:   (N_k,), `dot_workspace`.
    """
    _dots(packed.keys, packed.queries, packed.key_offsets, scratch)
    _scale(scratch, scales, sentences)
    peak, total = _softmax(scratch, packed.key_offsets, sentences)
    _weighted_sums(scratch, packed.values, packed.key_offsets, out)
    if log_sums is not None:
        np.add(np.log(total), peak, out=log_sums[:, 0])


@kernel("queries", c=HOST, cuda=HOST)
def dot_attention_backward(
    packed: PackedAttention, scales: Array, sentences: Array,
    log_sums: Array, dout: Array, wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `dot_attention`; formulas as in the kernel of that name for many queries.

    Args:
        scratch: `workspace_backward` elements.
    """
    keys, offsets = packed.keys, packed.key_offsets
    p, ds = np.empty((2, keys.shape[0]), keys.dtype)
    _dots(keys, packed.queries, offsets, p)
    _scale(p, scales, sentences)
    np.subtract(p, log_sums[:, 0][sentences], out=p)
    np.exp(p, out=p)
    deferred = _deferred(wanted, keys)
    if deferred is not None:
        deferred.values.add(p, dout)
    elif wanted.values is not None:
        _outer(p, dout, sentences, wanted.values)
    _row_dots(packed.values, dout, sentences, ds, scratch)
    _softmax_backward(p, ds, offsets, sentences)
    _scale(ds, scales, sentences)
    if wanted.queries is not None:
        _weighted_sums(ds, keys, offsets, wanted.queries)
    if deferred is not None:
        deferred.keys.add(ds, packed.queries)
        if deferred is not wanted.deferred:
            deferred.add_to(wanted.keys, wanted.values, offsets)
    elif wanted.keys is not None:
        _outer(ds, packed.queries, sentences, wanted.keys)


@kernel("queries", c=HOST, cuda=HOST)
def additive_attention(
    packed: PackedAttention, vector: Array, sentences: Array, out: Array, weights: Array,
    scratch: Array,
) -> None:  # fmt: skip
    """out = Σ_j w_j v_j,  w_j = softmax_j(vector · tanh(q + k_j)): one row a sentence.

    Args:
        vector:    (D,).
        sentences: (N_k,), `sentence_of_rows`.
        out:       (K, E), overwritten.
        weights:   (N_k,), overwritten.
        scratch:   `additive_workspace` elements.
    """
    offsets = packed.key_offsets
    for _, rows in segment.groups(offsets, packed.keys.shape[1]):
        blas.dot_rows(_hidden(packed, sentences, rows, scratch), vector, weights[rows])
    _softmax(weights, offsets, sentences)
    _weighted_sums(weights, packed.values, offsets, out)


@kernel("queries", c=HOST, cuda=HOST)
def additive_attention_backward(
    packed: PackedAttention, vector: Array, sentences: Array,
    weights: Array, dout: Array, wanted: AttentionGradients, scratch: Array,
) -> Array:  # fmt: skip
    """Gradients of `additive_attention`; formulas as in the kernel of that name for many queries.

    Args:
        scratch: `workspace_backward` elements.
    Returns:
        dvector (D,).
    """
    offsets, deferred = packed.key_offsets, _deferred(wanted, packed.keys)
    if deferred is not None:
        deferred.values.add(weights, dout)
    elif wanted.values is not None:
        _outer(weights, dout, sentences, wanted.values)
    ds = np.empty_like(weights)
    _row_dots(packed.values, dout, sentences, ds, scratch)
    _softmax_backward(weights, ds, offsets, sentences)
    dvector = np.zeros_like(vector)
    for block, rows in segment.groups(offsets, packed.keys.shape[1]):
        u = _hidden(packed, sentences, rows, scratch)
        dvector += np.dot(ds[rows], u)
        np.multiply(u, u, out=u)
        if wanted.queries is not None:
            inside = offsets[block.start : block.stop + 1] - rows.start
            _weighted_sums(ds[rows], u, inside, wanted.queries[block])
        if deferred is not None:
            deferred.add_slopes(rows, ds[rows], u)
        elif wanted.keys is not None:
            np.subtract(1, u, out=u)
            np.multiply(u, vector, out=u)
            np.multiply(u, ds[rows, None], out=wanted.keys[rows])
    if wanted.queries is not None:
        total = np.add.reduceat(ds, offsets[:-1])
        np.subtract(total[:, None], wanted.queries, out=wanted.queries)
        np.multiply(wanted.queries, vector, out=wanted.queries)
    if deferred is not None and deferred is not wanted.deferred:
        deferred.add_to(wanted.keys, wanted.values, offsets, vector)
    return dvector


# Parts --------------------------------------------------------------------------------------------


def _deferred(wanted: AttentionGradients, keys: Array) -> DeferredGradients | None:
    """Scratch for gradients that are added; None if they are overwritten."""
    if wanted.accumulate and wanted.deferred is None:
        return DeferredGradients(keys.shape[0])
    return wanted.deferred


def _scale(scores: Array, scales: Array, sentences: Array) -> None:
    if not (scales == 1).all():
        np.multiply(scores, scales if scales.size == 1 else scales[sentences], out=scores)


def _hidden(packed: PackedAttention, sentences: Array, rows: slice, scratch: Array) -> Array:
    """tanh(q + k_j) for some rows of keys, in scratch."""
    keys = packed.keys[rows]
    hidden = scratch[: keys.size].reshape(keys.shape)
    np.take(packed.queries, sentences[rows], axis=0, out=hidden, mode="clip")
    np.add(hidden, keys, out=hidden)
    np.tanh(hidden, out=hidden)
    return hidden


def _dots(rows: Array, vectors: Array, offsets: Array, out: Array) -> None:
    """out_j = rows_j · vectors_k for the rows j of sentence k."""
    edges = offsets.tolist()
    for start, end, vector in zip(edges, edges[1:], vectors, strict=False):
        np.dot(rows[start:end], vector, out[start:end])


def _row_dots(rows: Array, vectors: Array, sentences: Array, out: Array, scratch: Array) -> None:
    """`_dots` in few calls; with short calls two threads would wait for each other."""
    step = max(1, min(scratch.size, segment.BLOCK) // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step]
        other = scratch[: part.size].reshape(part.shape)
        np.take(vectors, sentences[start : start + step], axis=0, out=other, mode="clip")
        np.vecdot(part, other, out=out[start : start + step])


def _weighted_sums(weights: Array, rows: Array, offsets: Array, out: Array) -> None:
    """out_k = Σ_j weights_j rows_j over the rows j of sentence k."""
    edges = offsets.tolist()
    for start, end, total in zip(edges, edges[1:], out, strict=False):
        np.dot(weights[start:end], rows[start:end], total)


def _outer(weights: Array, vectors: Array, sentences: Array, out: Array) -> None:
    """out_j = weights_j vectors_k for the rows j of sentence k."""
    np.take(vectors, sentences, axis=0, out=out, mode="clip")
    np.multiply(out, weights[:, None], out=out)


def _softmax(scores: Array, offsets: Array, sentences: Array) -> tuple[Array, Array]:
    """Softmax over each sentence, in place; also its maximum and sum of exp(score - maximum)."""
    starts = offsets[:-1]
    peak = np.maximum.reduceat(scores, starts)
    np.subtract(scores, peak[sentences], out=scores)
    np.exp(scores, out=scores)
    total = np.add.reduceat(scores, starts)
    np.divide(scores, total[sentences], out=scores)
    return peak, total


def _softmax_backward(weights: Array, dweights: Array, offsets: Array, sentences: Array) -> None:
    """dweights_j ← w_j (dw_j - Σ_i w_i dw_i), the sum over j's sentence."""
    np.multiply(weights, dweights, out=dweights)
    total = np.add.reduceat(dweights, offsets[:-1])
    np.subtract(dweights, weights * total[sentences], out=dweights)
