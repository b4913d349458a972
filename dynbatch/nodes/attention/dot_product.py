"""Attention by dot products: plain, scaled, of many heads, or general (bilinear)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dynbatch.arguments import number, shown
from dynbatch.backend import Array
from dynbatch.errors import DtypeError, GraphError
from dynbatch.kernels.attention import dot_product as kernels
from dynbatch.kernels.attention.bias import PairStarts, ScoreBias
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import Mask
from dynbatch.kernels.attention.steps import StepScores
from dynbatch.nodes.arguments import check_parameter, nodes_of
from dynbatch.nodes.attention.base import AttentionBase, mask_of
from dynbatch.nodes.attention.bias import (
    Bias,
    BiasRule,
    DistanceBias,
    FeatureBias,
    PairFeature,
    checked_features,
    heads_of,
    score_bias,
)
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.linear import linear
from dynbatch.nodes.node import Node, Owner, Shape
from dynbatch.nodes.recorded import LENGTH
from dynbatch.nodes.sources import input
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class DotProductAttention(AttentionBase):
    """y_i = Σ_j p_ij v_j,  p_ij = softmax_j(scale · q_i · k_j + b_ij), in each of `heads` heads.

    b_ij is a number of the distance j - i, or of the pair's feature, or 0. With a softcap c scaled
    products s are c · tanh(s / c). A query that sees no key (all masked, or S = 0) gives zeros.

    Batches with:  every other one of the same heads, widths, bias and softcap, whatever the
        lengths, scales and masks.
    Cost:  keeps log Σ exp(score) of each query and head; scores are recomputed in backward, for a
        bounded block of one sentence at a time.
    """

    stream_name = "DotAttention"
    __slots__ = ("bias", "features", "heads", "kv_heads", "scale", "softcap", "table")
    static: ClassVar[tuple[str, ...]] = ("heads", "kv_heads", "bias", "table", "softcap")
    given_attributes: ClassVar[tuple[str, ...]] = ("mask", "features")
    shape_rule = (
        "q (T, heads · d)|(heads · d,), k (S, kv_heads · d), v (S, kv_heads · e)"
        " -> (T, heads · e)|(heads · e,)"
    )
    heads: int
    kv_heads: int
    scale: float
    bias: BiasRule | None
    table: Parameter | None
    softcap: float
    features: Array | None

    def given(self, array: Array) -> tuple[Any, ...]:
        if self.table is None or array.dtype == np.bool_:
            return (*super().given(array), self.features)
        return self.mask, checked_features(array, self.table)

    def check_shape(self, *shapes: Shape) -> None:
        heads = self.heads
        if heads % self.kv_heads:
            self.refuse(
                f"{heads} heads for {self.kv_heads} kv_heads",
                "kv_heads divides heads: as many of queries read each head of keys and values",
                "choose kv_heads among the divisors of heads",
            )
        if self.bias is not None and (count := heads_of(self.bias, self.table)) not in (0, heads):
            self.refuse(
                f"a bias of {count} heads for {heads}",
                "the bias has a number for each head of queries",
                "give F.alibi the number of heads, or a table as many columns",
            )
        self._check_pairs(self.inputs[0].rows, self.inputs[1].rows)
        super().check_shape(*shapes)

    def _check_pairs(self, queries: int, keys: int) -> None:
        if self.features is not None and self.features.shape != (queries, keys):
            self.refuse(
                f"features {self.features.shape} for {queries} queries, {keys} keys",
                "features.shape is (T_q, T_k)",
                "give this sentence's own features, unpadded",
            )
        heads, matrices = self.heads, self.inputs[3:]
        shapes = (queries, keys), (heads, queries, keys), (heads * queries, keys)
        if matrices and matrices[0].shape not in shapes:
            self.refuse(
                f"bias {matrices[0].shape} for {queries} queries, {keys} keys, {heads} heads",
                "bias.shape is (T_q, T_k), or (heads, T_q, T_k)",
                "give this sentence's own matrix, unpadded; F.alibi, F.relative_bias and F.t5_bias "
                "make biases by distance",
            )

    def strided(self) -> tuple[int, ...]:
        # One query of one head takes a shorter way, over rows that are packed.
        return (0, 1, 2) if self.heads > 1 else ()

    def shared_by(self) -> int:
        return 1 if self.heads == self.kv_heads else self.heads // self.kv_heads

    @classmethod
    def flops_a_pair(cls, first: Any) -> int:
        return int(first.heads)

    @classmethod
    def comes_again(cls, batch: Batch) -> bool:
        first = batch.first
        is_biased = first.bias is not None or len(first.inputs) > 3
        return cls.is_built_in and first.heads > 1 and not is_biased and not cls.draws

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return {"log_sums": (sum(batch.input_rows(0)), batch.first.heads)}

    @classmethod
    def uses_output(cls, batch: Batch) -> bool:
        return batch.device.is_cuda and max(batch.input_rows(0)) > 1

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        queries, keys = cls.lengths(batch)
        return kernels.workspace(batch.spec, queries, keys, cls.scoring(batch))

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        queries, keys = cls.lengths(batch)
        return kernels.workspace_backward(batch.spec, queries, keys, cls.scoring(batch))

    @classmethod
    def scales(cls, batch: Batch) -> Array:
        """(K,) the scale of each sentence; in a scan (1,), since one traced node stands for all."""
        if batch.cache is not None:
            return np.array([batch.first.scale], batch.dtype)
        return batch.array("scale", batch.dtype)

    @classmethod
    def scoring(cls, batch: Batch, xs: Sequence[Ragged] = ()) -> Scoring:
        """The way scores are computed, in the form that the kernels take.

        Args:
            xs: the packed inputs; while memory is planned there are none.
        """
        first, masks, scales = batch.first, cls.masks(batch), cls.scales(batch)
        if len(scales) != len(masks):
            scales = np.broadcast_to(scales, len(masks))
        features = () if first.features is None else batch.column("features")
        bias = score_bias(first.bias, first.table, features, batch.dtype)
        if len(first.inputs) > 3:
            numbers, starts = (xs[3].flat, xs[3].starts) if xs else (np.empty(0), np.zeros(1, int))
            bias = ScoreBias(numbers, PairStarts(starts))
        shared = first.shared_by()
        return Scoring(first.heads, scales, masks, shared, bias, softcap=first.softcap)

    @classmethod
    def masks(cls, batch: Batch) -> list[Mask]:
        first = batch.first
        is_biased = first.bias is not None or len(first.inputs) > 3
        if batch.cache is not None and (is_biased or cls.draws):
            raise GraphError(
                "attention in a cell has a bias or dropout.\n"
                "  rule: both go by the position of a query, which a cell's step does not tell\n"
                "  fix:  leave them out in the cell, or attend from the whole sentence outside it"
            )
        return super().masks(batch)

    def unmasked_scores(self) -> StepScores | None:
        is_biased = self.bias is not None or len(self.inputs) > 3
        if self.heads > 1 or is_biased or self.draws or self.softcap:
            return None
        return StepScores(None, self.scale)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        log_sums = batch.saved["log_sums"] if batch.keeps else None
        scoring = cls.scoring(batch, xs)
        kernels.dot_attention(cls.packed(xs), scoring, y.values, log_sums, batch.scratch)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        table, wanted = batch.first.table, cls.wanted(batch, dxs)
        if table is not None and not table.frozen:
            gradient = batch.parameter_gradients().buffer(table)
            wanted = wanted._replace(bias=gradient.reshape(table.shape[0], -1))
        xs = cls.retained(batch)
        packed, scoring = cls.packed(xs), cls.scoring(batch, xs)
        out = None if batch.output is None else batch.output.values
        kernels.dot_attention_backward(
            packed, scoring, batch.saved["log_sums"], out, dy.values, wanted, cls.scratch(batch)
        )


class DropoutAttention(DotProductAttention):
    """y_i = Σ_j m_ij p_ij v_j, with m_ij = 0 with probability p, else 1 / (1 - p).

    The rest is that of `DotProductAttention`. The mask is a hash of the node's stream
    (`Graph.stream`) and of head, query and key. It is not stored: backward draws it again, for a
    block at a time.

    Batches with:  every other one that its base batches with, of the same p.
    """

    __slots__ = ("p", "stream")
    static: ClassVar[tuple[str, ...]] = (*DotProductAttention.static, "p")
    draws = True
    p: float
    stream: int

    def rebuild(self, *inputs: Node) -> Node:
        node = type(self)(*inputs, **self.attributes())
        node.stream = node.graph.stream(node)  # another node draws other numbers
        return node

    @classmethod
    def scoring(cls, batch: Batch, xs: Sequence[Ragged] = ()) -> Scoring:
        streams = batch.array("stream", np.uint32)
        return super().scoring(batch, xs)._replace(p=batch.first.p, streams=streams)


class BiasedAttention(DotProductAttention):
    """y_i = Σ_j p_ij v_j,  p_ij = softmax_j(scale · q_i · k_j + b_ij), with a matrix b of a node.

    b is (T_q, T_k), for all heads, or a matrix for each head, (heads, T_q, T_k) or one below the
    other, (heads · T_q, T_k). db_ij = p_ij (dp_ij - Σ_j p_ij dp_ij), with dp_ij = dy_i · v_j.

    Batches with:  every other one of the same heads and widths, whatever the lengths, scales and
        masks.
    """

    __slots__ = ()
    shape_rule = DotProductAttention.shape_rule.replace(" ->", ", b (…) ->")

    def signature_widths(self) -> list[int | str]:
        return [*[node.width for node in (self, *self.inputs[:3])], LENGTH]


class BiasedDropoutAttention(DropoutAttention):
    """`BiasedAttention` with the dropout of `DropoutAttention`.

    Batches with:  every other one that its base batches with, of the same p.
    """

    __slots__ = ()
    shape_rule = BiasedAttention.shape_rule
    signature_widths = BiasedAttention.signature_widths


def attention(
    query: Node,
    keys: Node,
    values: Node | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    mask: Any = None,
    heads: int = 1,
    kv_heads: int | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> Node:
    """Dot-product attention of one sentence, as `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query:    (T_q, D), or one vector (D,).
        keys:     (T_k, D).
        values:   (T_k, E); the keys by default.
        scale:    of the scores; 1/√(D/heads) by default, 1.0 for plain dot products.
        causal:   query i sees keys j <= i only.
        window:   query i sees keys with |i - j| <= window only.
        mask:     boolean (T_q, T_k) or (T_k,); False hides a key.
        heads:    the features are split into so many heads, which attend each for itself.
        kv_heads: heads of keys and values, as many as `heads` by default. With fewer, called
            grouped queries, head h reads head h // (heads / kv_heads) of keys (T_k, D/heads ·
            kv_heads) and of values. It is PyTorch's `enable_gqa`; nothing is repeated.
        bias:     added to the scaled scores: a matrix b_ij (T_q, T_k), or (heads, T_q, T_k) with
            one for each head, an array or a node, which gets its gradient; for each head a number
            for each feature of a pair, `F.feature_bias(table, features)`; or for each distance
            j - i, `F.relative_bias(table)`, `F.t5_bias(table)` or `F.alibi(heads)`.
        dropout:  the probability with which a softmax's probability is set to 0; the others are
            scaled by 1 / (1 - dropout). What is dropped follows from the graph's seed and from the
            sentence, as in `F.dropout`, and never from the mini-batch. Give 0.0 in evaluation.
        softcap:  c > 0 bounds the scaled scores s by c · tanh(s / c), before a bias is added.

    Query i stands at position i, key j at position j, for `causal`, `window` and `bias` alike.

    Returns:
        (T_q, E) or (E,), with heads / kv_heads times the features of values. A query that sees no
        key (all are masked, or T_k = 0) gives zeros, where PyTorch gives NaN.

    Raises:
        ShapeError: shapes do not fit, heads does not divide the features, kv_heads does not divide
            heads, the bias is for another number of heads or tokens, or window < 0.
        DtypeError: the mask is not boolean, the window no integer, the bias no such value, or its
            table not of the graph's dtype.
        ArgumentError: dropout is not between 0 and 1, or softcap not above 0.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1; grouped queries: Ainslie et al. 2023,
        arXiv:2305.13245, section 2.2; softcap: Gemma Team 2024, arXiv:2408.00118, section 2.
    """
    values = keys if values is None else values
    query, keys, values = nodes_of("attention", query, keys, values)
    mask = mask_of("attention", causal, window, mask)
    if scale is None:
        scale = 1 / math.sqrt(query.width / heads) if query.width and heads > 0 else 1.0
    kv_heads = heads if kv_heads is None else kv_heads
    graph, inputs = query.graph, [query, keys, values]
    attributes = {
        "heads": heads, "kv_heads": kv_heads, "scale": float(scale), "mask": mask,
        "bias": None, "table": None, "features": None,
        "softcap": 0.0 if softcap is None else number("attention", "softcap", softcap, "(0, inf)"),
    }  # fmt: skip
    if isinstance(bias, DistanceBias | FeatureBias):
        attributes |= _of_table(bias, graph)
    elif bias is not None:
        inputs.append(_matrix(bias, graph))
    p = number("attention", "dropout", dropout, "[0, 1]") if dropout else 0.0
    if not p:
        kind = DotProductAttention if len(inputs) < 4 else BiasedAttention
        return kind(*inputs, **attributes)
    dropping = DropoutAttention if len(inputs) < 4 else BiasedDropoutAttention
    node = dropping(*inputs, **attributes, p=p, stream=0)
    node.stream = graph.stream(node)
    return node


def _of_table(bias: DistanceBias | FeatureBias, graph: Owner) -> dict[str, Any]:
    """The attributes of a bias that is no matrix, once its table suits the graph."""
    if bias.table is not None:
        check_parameter("attention", bias.table, graph)
    if isinstance(bias, DistanceBias):
        return {"bias": bias.rule, "table": bias.table}
    rule = PairFeature(bias.features.itemsize)
    return {"bias": rule, "table": bias.table, "features": bias.features}


def _matrix(bias: Any, graph: Owner) -> Node:
    """The bias as a node, once it is known to be a matrix of numbers."""
    if isinstance(bias, Node):
        return bias
    if getattr(getattr(bias, "dtype", None), "kind", "") != "f":
        said = f"{bias.dtype} {bias.shape}" if isinstance(bias, np.ndarray) else shown(bias)
        raise DtypeError.at_caller(
            f"attention: the bias is {said}.\n"
            "  rule: numbers (T_q, T_k) or (heads, T_q, T_k) of an array or a node; or one of\n"
            "        F.feature_bias, F.relative_bias, F.t5_bias and F.alibi\n"
            "  fix:  an array of floats; hide keys with `mask`"
        )
    return input(graph, bias)


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
