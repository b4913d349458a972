"""Attention with additive scores: a small network compares query and key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dynbatch.kernels import arrays
from dynbatch.kernels.attention import additive as kernels
from dynbatch.kernels.attention.packed import AttentionGradients
from dynbatch.kernels.attention.steps import StepScores
from dynbatch.nodes.arguments import check_parameter, nodes_of
from dynbatch.nodes.attention.base import AttentionBase, mask_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class BahdanauAttention(AttentionBase):
    """y_i = Σ_j w_ij v_j,  w_ij = softmax_j(vector · tanh(q_i + k_j)).

    A query that sees no key (all masked, or S = 0) gives zeros.

    Batches with:  every other one of the same vector and value width, whatever the lengths and
        masks.
    Cost:  keeps the weights, one number for each query and key; tanh is recomputed in backward,
        for a bounded block at a time.
    """

    stream_name = "AdditiveAttention"
    __slots__ = ("vector",)
    static = ("vector",)
    shape_rule = "q (T, D)|(D,), k (S, D), v (S, E), vector (D,) -> (T, E)|(E,)"
    shape_fix = AttentionBase.shape_fix | {
        "vector": "make {self.vector.name!r} a vector of {q[-1]} elements",
        "D": "project queries and keys to one width, as many as {self.vector.name!r} has elements",
    }
    vector: Parameter

    def strided(self) -> tuple[int, ...]:
        return (0,)

    @classmethod
    def flops_a_pair(cls, first: Any) -> int:
        return int(1 + 2 * first.vector.size)

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        """Products of the vector and of values; the sums of q_i + k_j have one gradient."""
        pairs, first, (query, key, value) = cls._pairs(sizes.batch), sizes.batch.first, wanted
        width, trained = first.vector.size, not first.vector.frozen
        products = width * ((query or key) + trained)
        products += first.width * ((query or key or trained) + value)
        return Flops(2 * pairs * products, pairs * (1 + width))

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return {"weights": (_pairs(*cls.lengths(batch)), 1)}

    @classmethod
    def narrow_saved(cls, batch: Batch) -> Collection[str]:
        return cls.saved(batch)

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        queries, keys = cls.lengths(batch)
        weights = 0 if batch.keeps else _pairs(queries, keys)
        width = batch.first.vector.size
        return weights + kernels.workspace(batch.spec, queries, keys, width)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        queries, keys = cls.lengths(batch)
        width, values = batch.first.vector.size, batch.first.inputs[2].width
        return kernels.workspace_backward(batch.spec, queries, keys, width, values)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        q, k, _ = xs
        packed, vector, masks = cls.packed(xs), batch.first.vector.value, cls.masks(batch)
        scratch = batch.scratch
        if batch.keeps:
            weights = batch.saved["weights"].reshape(-1)
        else:
            pairs = _pairs(q.lengths, k.lengths)
            weights, scratch = scratch[:pairs], scratch[pairs:]
        kernels.additive_attention(packed, vector, masks, y.values, weights, scratch)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        packed, vector = cls.packed(cls.retained(batch)), batch.first.vector
        weights = batch.saved["weights"].reshape(-1)
        dvector = kernels.additive_attention_backward(
            packed, vector.value, weights, dy.values, cls.wanted(batch, dxs), cls.scratch(batch)
        )
        if dvector is not None:
            batch.parameter_gradients().add(vector, dvector)

    def unmasked_scores(self) -> StepScores | None:
        return StepScores(self.vector.value)

    @classmethod
    def wanted(cls, batch: Batch, dxs: Sequence[Ragged | None]) -> AttentionGradients:
        """On a GPU the vector's gradient is summed over the steps of a scan by the kernel."""
        wanted, cache = super().wanted(batch, dxs), cls.cache(batch)
        if not batch.accumulate or not batch.device.is_cuda:
            return wanted
        assert cache is not None  # only a scan accumulates
        if cache.vectors is None:
            shape = (cache.sentences, batch.first.vector.size)
            cache.vectors = batch.xp.empty(shape, batch.dtype)
            arrays.fill(cache.vectors, 0)
        return wanted._replace(vectors=cache.vectors)

    @classmethod
    def finish(cls, batch: Batch, *dxs: Ragged | None) -> None:
        cache = cls.cache(batch)
        assert cache is not None  # only a scan asks
        if cache.vectors is not None:
            dvector = batch.first.vector.empty_like()
            arrays.sum_rows(cache.vectors, dvector)
            batch.parameter_gradients().add(batch.first.vector, dvector)
            cache.vectors = None  # another loss begins anew


def _pairs(queries: Sequence[int], keys: Sequence[int]) -> int:
    return sum([a * b for a, b in zip(queries, keys, strict=True)])


def additive_attention(
    query: Node, keys: Node, values: Node | None, vector: Parameter, mask: Any = None
) -> Node:
    """Attention with additive scores, score_ij = vector · tanh(q_i + k_j).

    Args:
        query:  (T_q, D), or one vector (D,), already projected: W_a s.
        keys:   (T_k, D), already projected: U_a h.
        values: (T_k, E); None for the keys.
        vector: (D,).
        mask:   boolean (T_q, T_k) or (T_k,); False hides a key.

    Returns:
        (T_q, E) or (E,); zeros for a query that sees no key (all are masked, or T_k = 0).

    Raises:
        ShapeError: shapes do not fit.
        DtypeError: the mask is not boolean, or the vector is not of the graph's dtype.

    Source: Bahdanau et al. 2015, arXiv:1409.0473, appendix A.1.2; their v_a is our `vector`.
    """
    values = keys if values is None else values
    query, keys, values = nodes_of("additive_attention", query, keys, values)
    check_parameter("additive_attention", vector, query.graph)
    mask = mask_of("additive_attention", False, None, mask)
    return BahdanauAttention(query, keys, values, vector=vector, mask=mask)
