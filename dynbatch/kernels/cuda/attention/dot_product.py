"""Launches of `dot_product.cu`: dot-product attention of sentences' queries over their own keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.attention.dot_product import AttentionGradients, PackedAttention, Scoring
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.cuda.runtime.launch import Argument
from dynbatch.kernels.cuda.runtime.queue import launch

TILE = 32  # queries, or keys, of a block, as in dot_product.cu
THREADS = 256
ALONE_THREADS = 512  # where all sentences have one query
UNBOUNDED = 1 << 30  # a distance that no sentence reaches, in 32 bits


def workspace(
    array: Array, query_lengths: Sequence[int], key_lengths: Sequence[int],
    heads: int, sights: Sequence[Mask],
) -> int:  # fmt: skip
    """Elements of scratch of `dot_attention`: none."""
    return 0


def workspace_backward(
    array: Array, query_lengths: Sequence[int], key_lengths: Sequence[int],
    heads: int, sights: Sequence[Mask],
) -> int:  # fmt: skip
    """Elements of scratch of `dot_attention_backward`: Σ_j p_ij dp_ij of each query and head."""
    return sum(query_lengths) * heads


def dot_attention(
    packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array, scratch: Array
) -> None:
    """out_i = Σ_j p_ij v_j,  p_ij = softmax_j(scale · q_i · k_j), of each sentence in each head."""
    attend(packed, scoring.heads, scoring.scales, scoring.sights, out, log_sums)


def dot_attention_backward(
    packed: PackedAttention,
    scoring: Scoring,
    log_sums: Array,
    dout: Array,
    wanted: AttentionGradients,
    scratch: Array,
) -> None:
    """Gradients of `dot_attention`: a launch for queries, and one for keys and values.

    The first does all of sentences with one query.
    """
    args = (scoring.heads, scoring.scales, scoring.sights, log_sums, dout, wanted)
    attend_backward(packed, *args, scratch[: log_sums.size])


def attend(
    packed: PackedAttention,
    heads: int,
    scales: Array,
    sights: Sequence[Mask],
    out: Array,
    log_sums: Array,
) -> None:
    """`dot_attention`; no sights mean that every query sees every key."""
    queries = np.diff(packed.query_offsets)
    tiles, blocks = tile_table(queries)
    arrays = (packed.queries, packed.keys, packed.values, out, log_sums)
    tables = _tables(packed, heads, scales, sights)
    launch(out, "dot_attention", (blocks, heads), _block(queries), (*arrays, tiles, *tables))


def attend_backward(
    packed: PackedAttention, heads: int, scales: Array, sights: Sequence[Mask],
    log_sums: Array, dout: Array, wanted: AttentionGradients, means: Array | None,
) -> None:  # fmt: skip
    """`dot_attention_backward`; no sights mean that every query sees every key.

    Args:
        means: (N_q · heads,) scratch, or None where every sentence has one query.
    """
    queries, keys = np.diff(packed.query_offsets), np.diff(packed.key_offsets)
    arrays = (packed.queries, packed.keys, packed.values, log_sums, dout, means)
    tables = _tables(packed, heads, scales, sights)
    tiles, blocks = tile_table(queries)
    args = (*arrays, wanted.queries, wanted.keys, wanted.values, wanted.accumulate, tiles, *tables)
    launch(dout, "dot_attention_backward", (blocks, heads), _block(queries), args)
    of_several = np.where(queries == 1, 0, keys)
    if of_several.any() and not (wanted.keys is None and wanted.values is None):
        tiles, blocks = tile_table(of_several)
        args = (*arrays, wanted.keys, wanted.values, wanted.accumulate, tiles, *tables)
        launch(dout, "dot_attention_backward_keys", (blocks, heads), (THREADS,), args)


def tile_table(lengths: Array) -> tuple[Array | None, int]:
    """First tile of each sentence, None where each has one, and the number of tiles."""
    counts = -(-lengths // TILE)
    if (counts == 1).all():
        return None, counts.size
    ends = np.cumsum(counts)
    return ends - counts, int(ends[-1])


def sight_tables(sights: Sequence[Mask]) -> tuple[Array | None, Array | None]:
    """What `mask_of` in attention.cuh reads: (K, 4) numbers, and all masks one after the other."""
    if all([sight is NO_MASK for sight in sights]):
        return None, None
    masks = [sight.mask for sight in sights if sight.mask is not None and sight.mask.size]
    table = np.empty((len(sights), 4), np.int64)
    start = 0
    for k, (left, right, mask) in enumerate(sights):
        if mask is None or not mask.size:
            table[k] = min(left, UNBOUNDED), min(right, UNBOUNDED), -1, 0
            continue
        table[k] = (
            min(left, UNBOUNDED),
            min(right, UNBOUNDED),
            start,
            mask.shape[1] if mask.ndim == 2 else 0,
        )
        start += mask.size
    return table, np.concatenate([mask.reshape(-1) for mask in masks]) if masks else None


def _tables(
    packed: PackedAttention, heads: int, scales: Array, sights: Sequence[Mask]
) -> tuple[Argument, ...]:
    """The last parameters of every kernel."""
    count = packed.query_offsets.size - 1
    offsets = (packed.query_offsets, packed.key_offsets)
    widths = (packed.keys.shape[1] // heads, packed.values.shape[1] // heads)
    return (*offsets, np.broadcast_to(scales, count), *sight_tables(sights), count, heads, *widths)


def _block(queries: Array) -> tuple[int]:
    return (ALONE_THREADS if (queries == 1).all() else THREADS,)
