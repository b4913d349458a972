"""Cross-entropy of choices among a sentence's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.indexing import repeat
from dynbatch.kernels.attention.packed import exp_rows, pairs_of
from dynbatch.kernels.runtime.dispatch import HOST, kernel


class Choices(NamedTuple):
    """Packed queries of K sentences and the keys that they choose from.

    queries (N_q, D) · keys (N_k, D) · query_offsets and key_offsets (K + 1,). A sentence with
    queries has keys.
    """

    queries: Array
    keys: Array
    query_offsets: Array
    key_offsets: Array


class ChoiceGradients(NamedTuple):
    """Gradients to compute, overwritten; None for unwanted ones."""

    queries: Array | None
    keys: Array | None


@kernel(cuda=HOST)
def workspace_backward(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int]
) -> int:
    """Elements of scratch for `pointer_loss_backward`.

    A number for each pair of the largest sentence.
    """
    pairs = [a * b for a, b in zip(query_lengths, key_lengths, strict=True)]
    return max(pairs, default=0)


@kernel("queries", cuda=HOST)
def pointer_loss(
    packed: Choices, ids: Array, weights: Array, probabilities: Array, losses: Array
) -> None:
    """losses_i = weights_i (log Σ_j exp(q_i · k_j) - q_i · k_ids_i), over the sentence's own keys.

    Args:
        ids:           (N_q,) of the host: below the number of keys of the sentence.
        weights:       (N_q,) of the host.
        probabilities: (pairs,), overwritten: softmax_j(q_i · k_j), (T_q, T_k) of each sentence.
        losses:        (N_q,), overwritten, in nats.

    Cost: one product a sentence: NumPy has none of matrices of different shapes.
    """
    for rows, keys, p in pairs_of(packed, probabilities):
        if not p.size:
            continue
        np.matmul(packed.queries[rows], packed.keys[keys].T, out=p)
        chosen = p[np.arange(p.shape[0]), ids[rows]]
        peak, total = exp_rows(p)
        np.divide(p, total, out=p)
        np.multiply(np.log(total[:, 0]) + peak[:, 0] - chosen, weights[rows], out=losses[rows])
        losses[rows][weights[rows] == 0] = 0  # whatever the scores are


@kernel("queries", cuda=HOST)
def pointer_loss_backward(
    packed: Choices, ids: Array, weights: Array, probabilities: Array, dy: Array,
    wanted: ChoiceGradients, scratch: Array,
) -> None:  # fmt: skip
    """dq_i = Σ_j ds_ij k_j and dk_j = Σ_i ds_ij q_i, ds_ij = dy_k weights_i (p_ij - [ids_i = j]).

    Args:
        probabilities: as forward left them.
        dy:            (K,) gradient of the sum of each sentence's losses.
        scratch:       `workspace_backward` elements.
    """
    scale = weights * repeat(dy, np.diff(packed.query_offsets))
    for rows, keys, p in pairs_of(packed, probabilities):
        slopes = scratch[: p.size].reshape(p.shape)
        np.multiply(p, scale[rows, None], out=slopes)
        slopes[np.arange(p.shape[0]), ids[rows]] -= scale[rows]
        slopes[weights[rows] == 0] = 0
        if wanted.queries is not None:
            np.matmul(slopes, packed.keys[keys], out=wanted.queries[rows])
        if wanted.keys is not None:
            np.matmul(slopes.T, packed.queries[rows], out=wanted.keys[keys])
