"""One query per sentence: launches of the general kernels, with a block for each sentence."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.cuda.attention import additive as general
from dynbatch.kernels.cuda.attention.dot_product import attend, attend_backward


def workspace_backward(spec: ArraySpec, key_lengths: Sequence[int], width: int) -> int:
    """Elements of scratch for both backward kernels; only the additive one uses them."""
    return general.workspace_backward(spec, [1] * len(key_lengths), key_lengths, width, width)


def dot_attention(
    packed: PackedAttention, scales: Array, sentences: Array, out: Array, log_sums: Array,
    scratch: Array,
) -> None:  # fmt: skip
    """out = Σ_j p_j v_j,  p_j = softmax_j(scale · q · k_j): one row a sentence."""
    attend(packed, Scoring(1, scales, ()), out, log_sums)


def dot_attention_backward(
    packed: PackedAttention, scales: Array, sentences: Array,
    log_sums: Array, dout: Array, wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `dot_attention`, in one launch."""
    attend_backward(packed, Scoring(1, scales, ()), log_sums, None, dout, wanted, None)


def additive_attention(
    packed: PackedAttention, vector: Array, sentences: Array, out: Array, weights: Array,
    scratch: Array,
) -> None:  # fmt: skip
    """out = Σ_j w_j v_j,  w_j = softmax_j(vector · tanh(q + k_j)): one row a sentence."""
    general.additive_attention(packed, vector, (), out, weights, scratch)


def additive_attention_backward(
    packed: PackedAttention, vector: Array, sentences: Array,
    weights: Array, dout: Array, wanted: AttentionGradients, scratch: Array,
) -> Array | None:  # fmt: skip
    """Gradients of `additive_attention`, in one launch and a sum; returns dvector (D,)."""
    return general.additive_attention_backward(packed, vector, weights, dout, wanted, scratch)
