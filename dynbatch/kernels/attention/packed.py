"""Shared by the attention kernels: packed sentences, wanted gradients, softmax of rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from dynbatch.backend import Array
from dynbatch.ragged import offsets_of


class PackedAttention(NamedTuple):
    """Queries, keys and values of K sentences, packed.

    queries (N_q, D) · keys (N_k, D) · values (N_k, E) · query_offsets and key_offsets (K + 1,);
    elsewhere these are called `cu_seqlens_q` and `cu_seqlens_k`.
    """

    queries: Array
    keys: Array
    values: Array
    query_offsets: Array
    key_offsets: Array


class AttentionGradients(NamedTuple):
    """Gradients to compute, in the shapes of `PackedAttention`; None for unwanted ones.

    accumulate: those of keys and values are added to, not overwritten.
    vectors: on a GPU, a row for each sentence of a scan, to which additive attention adds its
        queries' parts of the vector's gradient, for the end of the scan.
    bias: (rows, heads) or (rows, 1), of the table that a bias is looked up in.
    pairs: of the matrices of a bias, flat.
    """

    queries: Array | None
    keys: Array | None
    values: Array | None
    accumulate: bool = False
    vectors: Array | None = None
    bias: Array | None = None
    pairs: Array | None = None


class PackedPairs(Protocol):
    """Queries and keys of K sentences, packed."""

    @property
    def query_offsets(self) -> Array: ...
    @property
    def key_offsets(self) -> Array: ...


def sentences_of(packed: PackedPairs) -> Iterator[tuple[slice, slice]]:
    queries, keys = packed.query_offsets.tolist(), packed.key_offsets.tolist()
    for (first, last), (low, high) in zip(pairwise(queries), pairwise(keys), strict=True):
        yield slice(first, last), slice(low, high)


def pairs_of(packed: PackedPairs, numbers: Array) -> Iterator[tuple[slice, slice, Array]]:
    """Each sentence's queries, keys, and (T_q, T_k) numbers, one for each pair."""
    start = 0
    for rows, keys in sentences_of(packed):
        shape = (rows.stop - rows.start, keys.stop - keys.start)
        end = start + shape[0] * shape[1]
        yield rows, keys, numbers[start:end].reshape(shape)
        start = end


def pair_offsets(packed: PackedPairs) -> Array:
    """(K + 1,) where the pairs of each sentence begin."""
    return offsets_of(np.diff(packed.query_offsets) * np.diff(packed.key_offsets))


def exp_rows(scores: Array) -> tuple[Array, Array]:
    """exp(score - maximum) along the last axis, in place; zeros for a row of -inf.

    Returns:
        maximum (0 for a row of -inf) and sum, the last axis kept.
    """
    peak = scores.max(axis=-1, keepdims=True)
    np.copyto(peak, 0, where=np.isneginf(peak))
    np.subtract(scores, peak, out=scores)
    np.exp(scores, out=scores)
    return peak, scores.sum(axis=-1, keepdims=True)


def softmax_backward(p: Array, dp: Array, mean: Array | None = None) -> None:
    """dp ← p ⊙ (dp - mean), with mean = Σ p dp over the last axis, unless it is known."""
    if mean is None:
        mean = np.vecdot(p, dp)
    np.subtract(dp, mean[..., None], out=dp)
    np.multiply(dp, p, out=dp)
