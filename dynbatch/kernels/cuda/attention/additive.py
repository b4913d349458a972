"""Launches of `additive.cu`: additive attention over every sentence's own keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels.attention.mask import Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention, pair_offsets
from dynbatch.kernels.cuda.attention.dot_product import mask_tables
from dynbatch.kernels.cuda.runtime.addresses import row_address
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.segment import reduce_segments
from dynbatch.kernels.cuda.walks import row_grid

THREADS = 512


def workspace_backward(
    spec: ArraySpec,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    width: int,
    values: int,
) -> int:
    """Elements of scratch for `additive_attention_backward`.

    The derivative of each pair's score, and each query's part of the vector's gradient.
    """
    pairs = sum([a * b for a, b in zip(query_lengths, key_lengths, strict=True)])
    return pairs + sum(query_lengths) * width


def additive_attention(
    packed: PackedAttention, vector: Array, masks: Sequence[Mask], out: Array, weights: Array,
    scratch: Array,
) -> None:  # fmt: skip
    """out_i = Σ_j w_ij v_j,  w_ij = softmax_j(vector · tanh(q_i + k_j)), of each sentence.

    Without masks every query sees every key.
    """
    queries, stride = row_address(packed.queries)
    arrays = (queries, packed.keys, packed.values, vector, out, weights)
    tables = (*_pair_tables(packed), *mask_tables(masks))
    args = (*arrays, *tables, *_sizes(packed), stride)
    launch(out, "additive_attention", (out.shape[0],), (THREADS,), args)


def additive_attention_backward(
    packed: PackedAttention, vector: Array, weights: Array, dout: Array, wanted: AttentionGradients,
    scratch: Array,
) -> Array | None:  # fmt: skip
    """Gradients of `additive_attention`: a launch for queries, one for keys and values, a sum.

    For sentences with one query the first launch does everything. Queries and their gradients may
    be columns of wider rows.

    Returns:
        dvector (D,); None where each query's part was added to `wanted.vectors`.
    """
    count, width = packed.queries.shape
    pairs = weights.size
    slopes = scratch[:pairs]
    adds = wanted.vectors is not None
    dvectors = scratch[pairs : pairs + count * width].reshape(count, width)
    first, *tables = _pair_tables(packed)
    queries, stride = row_address(packed.queries)
    dqueries, gradient_stride = row_address(wanted.queries)
    args = (
        queries, packed.keys, packed.values, vector, weights, dout, slopes,
        wanted.vectors if adds else dvectors, dqueries, wanted.keys, wanted.values,
        wanted.accumulate, first, *tables, *_sizes(packed), stride, gradient_stride, adds,
    )  # fmt: skip
    launch(dout, "additive_attention_backward", (count,), (THREADS,), args)
    if first is not None and not (wanted.keys is None and wanted.values is None):
        _keys_backward(packed, vector, weights, dout, slopes, wanted, (first, *tables))
    if adds:
        return None
    dvector = queue().cupy.empty(vector.shape, dout.dtype)
    reduce_segments(np.add, dvectors, np.array([0, count]), dvector.reshape(1, width), 0)
    return dvector


def _keys_backward(
    packed: PackedAttention, vector: Array, weights: Array, dout: Array, slopes: Array,
    wanted: AttentionGradients, tables: tuple[Array, ...],
) -> None:  # fmt: skip
    """Gradients of keys and values, unless every sentence has one query."""
    sentences, *widths = _sizes(packed)
    rows = packed.keys.shape[0]
    queries, stride = row_address(packed.queries)
    args = (
        queries, packed.keys, vector, weights, dout, slopes, wanted.keys, wanted.values,
        wanted.accumulate, *tables, sentences, rows, *widths, stride,
    )  # fmt: skip
    grid, block = row_grid(rows, max(widths))
    launch(dout, "additive_attention_backward_keys", grid, block, args)


def _pair_tables(packed: PackedAttention) -> tuple[Array | None, Array, Array]:
    """First query, key and pair of each sentence; None for queries if each has one."""
    if (np.diff(packed.query_offsets) == 1).all():
        return None, packed.key_offsets, packed.key_offsets
    return packed.query_offsets, packed.key_offsets, pair_offsets(packed)[:-1]


def _sizes(packed: PackedAttention) -> tuple[int, int, int]:
    return packed.query_offsets.size - 1, packed.keys.shape[1], packed.values.shape[1]
