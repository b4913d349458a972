"""Attention of one sentence by dot products: plain, scaled, of many heads, or general (bilinear).

Inside a scan one node stands for every sentence, and all steps share one memory: backward then adds
to the gradients named in `accumulates`, or leaves that to `finish`, and what depends on the memory
alone is kept in `batch.cache`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dynbatch.errors import DtypeError, GraphError
from dynbatch.kernels.attention import dot_product as kernels
from dynbatch.kernels.attention import single_query
from dynbatch.kernels.attention.deferred import DeferredGradients
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.nodes.arguments import require_nodes
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.linear import linear
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import ELEMENT, Operation, Retain
from dynbatch.parameter import Array, Parameter
from dynbatch.ragged import Ragged


class AttentionBase(Operation):
    """What every kind of attention shares: shapes, what each query sees, packing.

    accumulates: inputs whose gradients backward adds to where `batch.accumulate` is set.
    """

    __slots__ = ("mask",)
    retains = Retain(inputs=True)
    accumulates: ClassVar[tuple[int, ...]] = (1, 2)
    mask: Mask

    def infer_shape(self, *shapes: Shape) -> Shape:
        q, k, v = shapes
        self.require(
            len(q) > 0 and len(k) == len(v) == 2,
            f"query {q}, keys {k} and values {v}",
            "query (T_q, D) or (D,), keys (T_k, D), values (T_k, E)",
            "give keys and values one row for each position",
        )
        self.require(
            q[-1] == k[1],
            f"query and key features differ ({q[-1]} != {k[1]})",
            "query.shape[-1] == keys.shape[1]",
            "project them to one width, or use F.general_attention",
        )
        self.require(
            k[0] == v[0],
            f"{k[0]} keys for {v[0]} values",
            "keys.shape[0] == values.shape[0]",
            "take keys and values from the same positions of one sentence",
        )
        pairs = (q[0] if len(q) == 2 else 1, k[0])
        seen = pairs if self.mask.visible is None else self.mask.visible.shape
        self.require(
            seen in (pairs, pairs[1:]),
            f"mask {seen} for {pairs[0]} queries, {pairs[1]} keys",
            "mask.shape is (T_q, T_k) or (T_k,)",
            "give this sentence's own mask, unpadded",
        )
        self.require(
            self.mask.left >= 0,
            f"window {self.mask.left}",
            "0 <= window; 0 sees the own position only",
            "count the tokens to see on each side",
        )
        return (*q[:-1], v[1])

    @classmethod
    def operations(cls, batch: Batch) -> int:
        first = batch.first
        a_pair = ELEMENT + first.inputs[0].width + first.width
        return sum([a_pair * node.inputs[0].rows * node.inputs[1].rows for node in batch.nodes])

    @classmethod
    def masks(cls, batch: Batch, count: int) -> list[Mask]:
        """Each sentence's. In a scan one traced node stands for all."""
        if batch.cache is not None:
            mask: Mask = batch.first.mask
            if mask.visible is not None:
                raise GraphError(
                    f"{cls.__name__} in a cell: a mask belongs to one sentence, a cell to all.\n"
                    "  fix:  take the hidden rows out of the memory before the scan"
                )
            return [mask] * count
        return [node.mask for node in batch.nodes]

    @classmethod
    def lengths(cls, batch: Batch) -> tuple[list[int], list[int]]:
        """T_q and T_k of each sentence."""
        if batch.cache is not None:  # in a scan the inputs are known before anything is asked
            q, k, _ = batch.inputs
            assert q is not None and k is not None
            return list(q.lengths), list(k.lengths)
        inputs = [node.inputs for node in batch.nodes]
        return [q.rows for q, _, _ in inputs], [k.rows for _, k, _ in inputs]

    @classmethod
    def widest(cls, batch: Batch) -> int:
        """Features of keys or of values, whichever has more."""
        _, k, v = batch.first.inputs
        width: int = max(k.width, v.width)
        return width

    @classmethod
    def is_single_query(
        cls, batch: Batch, queries: Sequence[int], keys: Sequence[int], masks: Sequence[Mask]
    ) -> bool:
        """Whether the kernels of `single_query` apply: to all steps of a scan if to the first."""
        cache = {} if batch.cache is None else batch.cache
        if "single" not in cache:
            cache["single"] = (
                max(queries) == min(queries) == 1
                and min(keys) > 0
                and all([mask is NO_MASK for mask in masks])
            )
        single: bool = cache["single"]
        return single

    @classmethod
    def retained(cls, batch: Batch) -> tuple[Ragged, Ragged, Ragged]:
        """Queries, keys and values, in backward."""
        return batch.input(0), batch.input(1), batch.input(2)

    @classmethod
    def packed(cls, xs: Sequence[Ragged]) -> PackedAttention:
        """The inputs as the kernels take them."""
        q, k, v = xs
        return PackedAttention(q.values, k.values, v.values, q.offsets, k.offsets)

    @classmethod
    def wanted(cls, batch: Batch, dxs: Sequence[Ragged | None]) -> AttentionGradients:
        """The gradients to make, as the kernels take them."""
        dq, dk, dv = [None if dx is None else dx.values for dx in dxs]
        later: DeferredGradients | None = None
        cache = batch.cache if batch.accumulate and batch.xp is np else None
        if cache is not None and "offsets" in cache:
            if "later" not in cache:
                cache["later"] = DeferredGradients(int(cache["offsets"][-1]), cache.get("room"))
            later = cache["later"]
        return AttentionGradients(dq, dk, dv, batch.accumulate, later)

    @classmethod
    def finish(cls, batch: Batch, *dxs: Ragged | None) -> None:
        """After the last step of a scan: what its steps left is added to the dxs of the memory."""
        later = None if batch.cache is None else batch.cache.pop("later", None)
        if later is not None:
            _, dk, dv = dxs
            known = dv if dk is None else dk
            if known is None:
                return
            of_keys, of_values = [None if dx is None else dx.values for dx in (dk, dv)]
            vector = getattr(batch.first, "vector", None)
            value = None if vector is None else vector.value
            later.add_to(of_keys, of_values, known.offsets, value)

    @classmethod
    def scratch(cls, batch: Batch) -> Array:
        """Room for backward, which in a scan is the same for all steps."""
        if batch.cache is None:
            return batch.scratch
        elements = cls.workspace_backward(batch)
        found: Array | None = batch.cache.get("scratch")
        if found is None or found.size < elements:
            found = batch.cache["scratch"] = batch.xp.empty(elements, batch.dtype)
        return found[:elements]

    @classmethod
    def sentence_of_rows(cls, batch: Batch, k: Ragged) -> Array:
        """Each key's sentence. The steps of a scan attend to prefixes of the same sentences."""
        if batch.cache is None:
            return single_query.sentence_of_rows(k.offsets)
        known = batch.cache.get("offsets")
        if known is None or not np.array_equal(known[: k.offsets.size], k.offsets):
            batch.cache["offsets"] = k.offsets.copy()
            batch.cache["sentences"] = single_query.sentence_of_rows(k.offsets)
        sentences: Array = batch.cache["sentences"]
        return sentences[: k.values.shape[0]]


class DotProductAttention(AttentionBase):
    """y_i = Σ_j p_ij v_j,  p_ij = softmax_j(scale · q_i · k_j), in each of `heads` heads.

    Shape:  q (T_q, D) or (D,), k (T_k, D), v (T_k, E) -> y (T_q, E) or (E,). A query that sees no
        key (all masked, or T_k = 0) gives zeros.
    Batches with:  every other one of the same heads and widths, whatever the lengths, scales and
        masks.
    Cost:  keeps log Σ exp(score) of each query and head; scores are made again in backward, for a
        bounded block of one sentence at a time.
    """

    stream_name = "DotAttention"
    __slots__ = ("heads", "scale")
    static = ("heads",)
    heads: int
    scale: float

    def infer_shape(self, *shapes: Shape) -> Shape:
        shape = super().infer_shape(*shapes)
        widths = (shapes[0][-1], shape[-1])
        self.require(
            self.heads > 0 and all(width % self.heads == 0 for width in widths),
            f"{self.heads} heads for {widths[0]} key features and {widths[1]} value features",
            "heads divides the features of keys and of values",
            "choose a number of heads that divides both",
        )
        return shape

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        queries = sum([node.inputs[0].rows for node in batch.nodes])
        return {"log_sums": (queries, batch.first.heads)}

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        queries, keys = cls.lengths(batch)
        masks, heads = cls.masks(batch, len(keys)), batch.first.heads
        if heads == 1 and cls.is_single_query(batch, queries, keys, masks):
            return single_query.dot_workspace(batch.scratch, keys)
        return kernels.workspace(batch.scratch, queries, keys, heads, masks)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        queries, keys = cls.lengths(batch)
        masks, heads = cls.masks(batch, len(keys)), batch.first.heads
        if heads == 1 and cls.is_single_query(batch, queries, keys, masks):
            return single_query.workspace_backward(batch.scratch, keys, cls.widest(batch))
        return kernels.workspace_backward(batch.scratch, queries, keys, heads, masks)

    @classmethod
    def scales(cls, batch: Batch) -> Array:
        """(K,) each sentence's; in a scan (1,), since one traced node stands for all."""
        if batch.cache is not None:
            return np.array([batch.first.scale], batch.dtype)
        return batch.array("scale", batch.dtype)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        q, k, _ = xs
        masks, heads = cls.masks(batch, len(k)), batch.first.heads
        packed, scales, scratch = cls.packed(xs), cls.scales(batch), batch.scratch
        log_sums = batch.saved["log_sums"] if batch.keeps else None
        if heads == 1 and cls.is_single_query(batch, q.lengths, k.lengths, masks):
            sentences, scores = cls.sentence_of_rows(batch, k), scratch[: k.values.shape[0]]
            single_query.dot_attention(packed, scales, sentences, y.values, log_sums, scores)
        else:
            scoring = kernels.Scoring(heads, np.broadcast_to(scales, len(k)), masks)
            kernels.dot_attention(packed, scoring, y.values, log_sums, scratch)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        q, k, _ = xs = cls.retained(batch)
        masks, heads = cls.masks(batch, len(k)), batch.first.heads
        packed, wanted, scales = cls.packed(xs), cls.wanted(batch, dxs), cls.scales(batch)
        log_sums = batch.saved["log_sums"]
        if heads == 1 and cls.is_single_query(batch, q.lengths, k.lengths, masks):
            sentences = cls.sentence_of_rows(batch, k)
            single_query.dot_attention_backward(
                packed, scales, sentences, log_sums, dy.values, wanted, cls.scratch(batch)
            )
        else:
            scratch = cls.scratch(batch)
            scoring = kernels.Scoring(heads, np.broadcast_to(scales, len(k)), masks)
            kernels.dot_attention_backward(packed, scoring, log_sums, dy.values, wanted, scratch)


def attention(
    query: Node,
    keys: Node,
    values: Node | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    mask: Any = None,
    heads: int = 1,
) -> Node:
    """Dot-product attention of one sentence, as `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query:  (T_q, D), or one vector (D,).
        keys:   (T_k, D).
        values: (T_k, E); the keys by default.
        scale:  of the scores; 1/√(D/heads) by default, 1.0 for plain dot products.
        causal: query i sees keys j <= i only.
        window: query i sees keys with |i - j| <= window only.
        mask:   boolean (T_q, T_k) or (T_k,); False hides a key.
        heads:  the features are split into so many heads, which attend each for itself.

    Returns:
        (T_q, E) or (E,). A query that sees no key (all are masked, or T_k = 0) gives zeros, where
        PyTorch gives NaN.

    Raises:
        ShapeError: shapes do not fit, heads does not divide the features, or window < 0.
        DtypeError: the mask is not boolean, or the window no integer.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    values = keys if values is None else values
    require_nodes("attention", query, keys, values)
    mask = mask_of("attention", causal, window, mask)
    if scale is None:
        scale = 1 / math.sqrt(query.width / heads) if query.width and heads > 0 else 1.0
    return DotProductAttention(query, keys, values, heads=heads, scale=float(scale), mask=mask)


def general_attention(
    query: Node, keys: Node, values: Node | None, weight: Parameter, mask: Any = None
) -> Node:
    """Attention with bilinear scores, score_ij = k_j · W q_i: `linear`, then plain dot products.

    Args:
        query:  (T_q, I), or one vector (I,).
        keys:   (T_k, O).
        values: (T_k, E); None for the keys.
        weight: (O, I), used as `linear(query, weight)`.
        mask:   boolean (T_q, T_k) or (T_k,); False hides a key.

    Returns:
        (T_q, E) or (E,); zeros for a query that sees no key.

    Raises:
        ShapeError: shapes do not fit.
        DtypeError: the mask is not boolean.

    Source: Luong et al. 2015, arXiv:1508.04025, section 3.1, "general": h_tᵀ W_a h_s, W_a = Wᵀ.
    """
    return attention(linear(query, weight), keys, values, scale=1.0, mask=mask)


def mask_of(what: str, causal: bool, window: int | None, mask: Any) -> Mask:
    """What the queries of a sentence see, from the arguments of the function `what`."""
    if not causal and window is None and mask is None:
        return NO_MASK
    if mask is not None:
        mask = np.array(mask)
        if mask.dtype != np.bool_:
            raise DtypeError.at_caller(
                f"{what}: the mask is {mask.dtype} {mask.shape}; booleans are expected.\n"
                "  rule: True lets a query see a key, False hides it\n"
                "  fix:  pass `mask != 0`, or `mask > -inf` for an added one"
            )
    if window is not None and not isinstance(window, (int, np.integer)):
        raise DtypeError.at_caller(
            f"{what}: window={window!r}; a whole number of tokens is expected.\n"
            "  fix:  round it, or leave it out to see every distance"
        )
    reach = UNBOUNDED if window is None else int(window)
    return Mask(reach, 0 if causal else reach, mask)
