"""Launches of `dot_product.cu`: dot-product attention of sentences' queries over their own keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.attention.dot_product import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.cuda.runtime.launch import Argument
from dynbatch.kernels.cuda.runtime.queue import launch

TILE = 32  # queries, or keys, of a block, as in dot_product.cu
THREADS = 256
ALONE_THREADS = 512  # where all sentences have one query
UNBOUNDED = 1 << 30  # a distance that no sentence reaches, in 32 bits


def workspace_backward(
    array: Array, query_lengths: Sequence[int], key_lengths: Sequence[int],
    heads: int, masks: Sequence[Mask],
) -> int:  # fmt: skip
    """Elements of scratch of `dot_attention_backward`: Σ_j p_ij dp_ij of each query and head."""
    return sum(query_lengths) * heads


def dot_attention(
    packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array, scratch: Array
) -> None:
    """out_i = Σ_j p_ij v_j,  p_ij = softmax_j(scale · q_i · k_j), of each sentence in each head."""
    attend(packed, scoring, out, log_sums)


def dot_attention_backward(
    packed: PackedAttention, scoring: Scoring, log_sums: Array, dout: Array,
    wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `dot_attention`: a launch for queries, and one for keys and values.

    For sentences with one query the first launch does everything, unless heads share keys.
    """
    attend_backward(packed, scoring, log_sums, dout, wanted, scratch[: log_sums.size])


def attend(packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array) -> None:
    """`dot_attention`; without masks every query sees every key."""
    queries = np.diff(packed.query_offsets)
    tiles, blocks = tile_table(queries)
    arrays = (packed.queries, packed.keys, packed.values, out, log_sums)
    args = (*arrays, tiles, *_tables(packed, scoring))
    launch(out, "dot_attention", (blocks, scoring.heads), _block(queries), args)


def attend_backward(
    packed: PackedAttention, scoring: Scoring, log_sums: Array, dout: Array,
    wanted: AttentionGradients, means: Array | None,
) -> None:  # fmt: skip
    """`dot_attention_backward`; without masks every query sees every key.

    Args:
        means: (N_q · heads,) scratch, or None where every sentence has one query and one head.
    """
    queries, keys = np.diff(packed.query_offsets), np.diff(packed.key_offsets)
    arrays = (packed.queries, packed.keys, packed.values, log_sums, dout, means)
    tables = _tables(packed, scoring)
    tiles, blocks = tile_table(queries)
    of_keys = (wanted.keys, wanted.values)
    args = (*arrays, wanted.queries, *of_keys, wanted.accumulate, tiles, *tables)
    block = _block(queries) if scoring.shared == 1 else (THREADS,)
    launch(dout, "dot_attention_backward", (blocks, scoring.heads), block, args)
    rest = np.where(queries == 1, 0, keys) if scoring.shared == 1 else keys
    if rest.any() and not (wanted.keys is None and wanted.values is None):
        tiles, blocks = tile_table(rest)
        args = (*arrays, *of_keys, wanted.accumulate, tiles, *tables)
        grid = (blocks, scoring.heads // scoring.shared)
        launch(dout, "dot_attention_backward_keys", grid, (THREADS,), args)


def tile_table(lengths: Array) -> tuple[Array | None, int]:
    """First tile of each sentence (None if each has one), and the number of tiles."""
    counts = -(-lengths // TILE)
    if (counts == 1).all():
        return None, counts.size
    ends = np.cumsum(counts)
    return ends - counts, int(ends[-1])


def mask_tables(masks: Sequence[Mask]) -> tuple[Array | None, Array | None]:
    """The tables that `mask_of` in attention.cuh reads: (K, 4) numbers, and all masks' flags."""
    if all([mask is NO_MASK for mask in masks]):
        return None, None
    table = np.empty((len(masks), 4), np.int64)
    visible: list[Array] = []
    start = 0
    for row, (left, right, seen) in zip(table, masks, strict=True):
        row[:2] = min(left, UNBOUNDED), min(right, UNBOUNDED)
        if seen is None or not seen.size:
            row[2:] = -1, 0
            continue
        row[2:] = start, seen.shape[1] if seen.ndim == 2 else 0
        visible.append(seen.reshape(-1))
        start += seen.size
    return table, np.concatenate(visible) if visible else None


def _tables(packed: PackedAttention, scoring: Scoring) -> tuple[Argument, ...]:
    """The last parameters of every kernel."""
    count = packed.query_offsets.size - 1
    tables = (
        packed.query_offsets, packed.key_offsets, np.broadcast_to(scoring.scales, count),
        *mask_tables(scoring.masks),
    )  # fmt: skip
    heads, shared = scoring.heads, scoring.shared
    widths = [x.shape[1] // (heads // shared) for x in (packed.keys, packed.values)]
    return (*tables, count, heads, shared, *widths)


def _block(queries: Array) -> tuple[int]:
    return (ALONE_THREADS if (queries == 1).all() else THREADS,)
