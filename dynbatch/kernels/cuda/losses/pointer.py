"""Launches of `pointer.cu`: cross-entropy of choices among a sentence's own rows."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels.attention.packed import pair_offsets
from dynbatch.kernels.cuda.runtime.queue import launch
from dynbatch.kernels.cuda.walks import row_grid
from dynbatch.kernels.losses.pointer import ChoiceGradients, Choices

THREADS = 256


def workspace_backward(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int]
) -> int:
    """Elements of scratch for `pointer_loss_backward`: a number for each pair."""
    return sum([a * b for a, b in zip(query_lengths, key_lengths, strict=True)])


def pointer_loss(
    packed: Choices, ids: Array, weights: Array, probabilities: Array, losses: Array
) -> None:
    """losses_i = weights_i (log Σ_j exp(q_i · k_j) - q_i · k_ids_i), in one launch."""
    queries, keys, *_ = packed
    args = (queries, keys, probabilities, losses, ids, weights, *_tables(packed), keys.shape[1])
    launch(losses, "pointer_loss", (queries.shape[0],), (THREADS,), args)


def pointer_loss_backward(
    packed: Choices, ids: Array, weights: Array, probabilities: Array, dy: Array,
    wanted: ChoiceGradients, scratch: Array,
) -> None:  # fmt: skip
    queries, keys, *_ = packed
    (rows, width), tables = keys.shape, _tables(packed)
    slopes = scratch[: probabilities.size]
    args = (keys, probabilities, dy, slopes, wanted.queries, ids, weights, *tables, width)
    launch(keys, "pointer_loss_backward", (queries.shape[0],), (THREADS,), args)
    if wanted.keys is not None:
        grid, block = row_grid(rows, width)
        by_key = (queries, slopes, wanted.keys, *tables, rows, width)
        launch(keys, "pointer_loss_backward_keys", grid, block, by_key)


def _tables(packed: Choices) -> tuple[Array, Array, Array, int]:
    """First query, key and pair of each sentence, and the number of sentences."""
    pairs = pair_offsets(packed)[:-1]
    return packed.query_offsets, packed.key_offsets, pairs, len(pairs)
