"""Layers of the encoder and of the decoder: attention and feed-forward with norms and residuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict, Unpack, cast

from dynbatch import nodes as F
from dynbatch.arguments import number, refused, size, sizes, switch
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import LayerNorm, RMSNorm
from dynbatch.models.module import Module
from dynbatch.models.transformer.attention import MultiHeadAttention
from dynbatch.models.transformer.biases import Biases, has_bias
from dynbatch.models.transformer.feed_forward import FeedForward
from dynbatch.nodes.attention.bias import Bias, DistanceBias
from dynbatch.nodes.node import Node


class LayerOptions(TypedDict, total=False):
    """The keyword arguments of `TransformerEncoderLayer`, which all stacks pass on."""

    dropout: float
    attention_dropout: float | None
    inner_dropout: float | None
    activation: str
    norm: str
    norm_first: bool
    eps: float
    bias: Biases
    kv_heads: int | None
    head_dim: int | None
    scale: float | None
    rotary: Mapping[str, Any] | None
    qk_norm: float | None
    softcap: float | None
    window: int | None
    input_norm: bool
    output_norm: bool
    position_bias: DistanceBias | None
    gated: bool
    linear_attn: Module | None
    rng: Rng


Norm = LayerNorm | RMSNorm


def norm_of(owner: Module, dim: int, options: LayerOptions) -> Norm:
    """The norm that the options of a layer name.

    Raises:
        ArgumentError: `norm` is neither "layer" nor "rms".
    """
    name, eps = options.get("norm", "layer"), options.get("eps", 1e-5)
    if name == "layer":
        return LayerNorm(dim, eps, bias=has_bias(owner, options.get("bias", True), "norm"))
    if name == "rms":
        return RMSNorm(dim, eps)
    raise refused(
        type(owner).__name__, f"norm is {name!r}", "'layer' or 'rms'",
        "take 'layer' for LayerNorm, 'rms' for RMSNorm",
    )  # fmt: skip


ATTENTION = ("bias", "head_dim", "kv_heads", "rng", "scale", "softcap")
"""The options that are those of attention to a memory too."""


class TransformerEncoderLayer(Module):
    """Self-attention and a feed-forward part, each added to its input: one layer, (T, D) -> (T, D).

        post-norm:  x ← norm(x + part(x));   pre-norm:  x ← x + part(norm(x))

    It is `torch.nn.TransformerEncoderLayer` for one sentence; with `causal=True`, a layer of a
    decoder-only language model.

    Args:
        dim:             D, features of each token.
        heads:           of attention.
        hidden:          features inside the feed-forward part; 4 D by default.
        dropout:         on each part's result, while training.
        attention_dropout, inner_dropout: of attention's probabilities, and after the activation;
                         `dropout` by default, as in PyTorch.
        activation:      of `FeedForward`: "relu", "gelu", "swiglu", …
        norm:            "layer" for LayerNorm, "rms" for RMSNorm.
        norm_first:      pre-norm; post-norm by default, as in PyTorch.
        eps:             of the norms.
        bias:            whether linear maps and LayerNorms have biases; or which of them, some of
                         ("qkv", "out", "feed_forward", "norm").
        kv_heads, head_dim, scale, rotary, qk_norm, softcap, position_bias, gated: of
                         `MultiHeadAttention`.
        window:          a token sees those at most so far away, unless the call says otherwise.
        input_norm:      without, a pre-norm layer reads its input as it is in attention, as the
                         first one of ModernBERT does.
        output_norm:     in a pre-norm layer, also normalise each part's result before it is added,
                         as Gemma 2 does.
        linear_attn:     takes the place of self-attention: a module (T, D) -> (T, D) that sees the
                         tokens so far, such as `GatedDeltaNet` and `Mamba2`.
        rng:             generator or seed of the initial values.

    Parameters: under PyTorch's names, self_attn.in_proj_weight (3 D, D), self_attn.in_proj_bias,
        self_attn.out_proj.weight, self_attn.out_proj.bias, linear1.weight, linear1.bias,
        linear2.weight, linear2.bias, norm1.weight, norm1.bias, norm2.weight, norm2.bias; with
        output_norm also output_norm1.weight, output_norm2.weight and their biases; with linear_attn
        its own in place of self_attn's.

    Raises:
        ArgumentError: a size or a choice is not one; or with linear_attn it is called with a mask
            or a bias.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; pre-norm Xiong et al. 2020,
        arXiv:2002.04745; output_norm: Gemma Team 2024, arXiv:2408.00118, section 2.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        dropout: float = 0.1,
        attention_dropout: float | None = None,
        inner_dropout: float | None = None,
        activation: str = "relu",
        norm: str = "layer",
        norm_first: bool = False,
        eps: float = 1e-5,
        bias: Biases = True,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        rotary: Mapping[str, Any] | None = None,
        qk_norm: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
        input_norm: bool = True,
        output_norm: bool = False,
        position_bias: DistanceBias | None = None,
        gated: bool = False,
        linear_attn: Module | None = None,
        rng: Rng = None,
    ) -> None:
        sizes(self, dim=dim, heads=heads)
        rng = generator(rng)
        self.dropout = number(self, "dropout", dropout, "[0, 1]")
        self.norm_first = switch(self, "norm_first", norm_first)
        self.linear_attn = linear_attn
        self.attention_dropout = self.dropout if attention_dropout is None else attention_dropout
        if linear_attn is None:
            self.self_attn = MultiHeadAttention(
                dim, heads, kv_heads=kv_heads, head_dim=head_dim, bias=bias, qk_norm=qk_norm,
                scale=scale, dropout=self.attention_dropout, rotary=rotary, softcap=softcap,
                position_bias=position_bias, gated=gated, rng=rng,
            )  # fmt: skip
        hidden = 4 * dim if hidden is None else hidden
        inner_dropout = self.dropout if inner_dropout is None else inner_dropout
        inner = FeedForward(
            dim, hidden, activation, bias=has_bias(self, bias, "feed_forward"),
            dropout=inner_dropout, rng=rng,
        )  # fmt: skip
        self.linear1, self.linear2 = inner.linear1, inner.linear2  # first, for PyTorch's names
        self.feed_forward = inner
        options: LayerOptions = {"norm": norm, "eps": eps, "bias": bias}
        self.window = None if window is None else size(self, "window", window, 0)
        is_normed = [switch(self, "input_norm", input_norm), True]
        is_normed += [switch(self, "output_norm", output_norm)] * 2
        if not norm_first and is_normed != [True, True, False, False]:
            raise refused(
                type(self).__name__, "input_norm or output_norm of a post-norm layer",
                "a post-norm layer normalises each sum, and nothing else", "give norm_first=True",
            )  # fmt: skip
        self.norm1, self.norm2, self.output_norm1, self.output_norm2 = [
            norm_of(self, dim, options) if is_there else None for is_there in is_normed
        ]

    @block
    def __call__(
        self, x: Node, *, causal: bool = False, window: int | None = None, mask: Any = None,
        bias: Bias | None = None,
    ) -> Node:  # fmt: skip
        """The layer's values; the arguments are those of `MultiHeadAttention`."""
        attend = self._attend(causal, window, mask, bias)
        x = self.add(x, self.norm1, attend, self.output_norm1)
        return self.add(x, self.norm2, self.feed_forward, self.output_norm2)

    def _attend(
        self, causal: bool, window: int | None, mask: Any, bias: Bias | None = None
    ) -> Callable[[Node], Node]:
        window = self.window if window is None else window
        if self.linear_attn is None:
            return partial(self.self_attn, causal=causal, window=window, mask=mask, bias=bias)
        if not (window is None and mask is None and bias is None):
            raise refused(
                type(self).__name__, "a window, a mask or a bias with linear_attn",
                "a recurrence sees all tokens so far, and has no scores", "leave it out",
            )  # fmt: skip
        return cast(Callable[[Node], Node], self.linear_attn)

    def add(
        self, x: Node, norm: Norm | None, part: Callable[[Node], Node],
        output_norm: Norm | None = None,
    ) -> Node:  # fmt: skip
        """x and what a part makes of it, normalised before or after."""
        made = part(x if norm is None or not self.norm_first else norm(x))
        made = made if output_norm is None else output_norm(made)
        made = x + F.dropout(made, self.dropout, self.training)
        return made if norm is None or self.norm_first else norm(made)


class TransformerDecoderLayer(TransformerEncoderLayer):
    """Self-attention, attention to a memory, and a feed-forward part: `layer(x, memory)`.

    It is `torch.nn.TransformerDecoderLayer` for one sentence x (T, D) and memory (S, M) -> (T, D).
    A token sees itself and those before it, unless `causal=False`; PyTorch wants a mask for that.

    Args:
        dim, heads, hidden, options: those of `TransformerEncoderLayer`.
        memory_dim: M, features of the memory; D by default.

    Parameters: those of `TransformerEncoderLayer`, where norm3 is that of the feed-forward part,
        multihead_attn.q_proj.weight (D, D), multihead_attn.q_proj.bias,
        multihead_attn.kv_proj.weight (2 D, M), multihead_attn.kv_proj.bias,
        multihead_attn.out_proj.weight, multihead_attn.out_proj.bias, norm3.weight and norm3.bias.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        memory_dim: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        options["rng"] = generator(options.get("rng"))
        super().__init__(dim, heads, hidden, **options)
        memory_dim = dim if memory_dim is None else memory_dim
        settings: dict[str, Any] = {
            name: value for name, value in options.items() if name in ATTENTION
        }
        self.multihead_attn = MultiHeadAttention(
            dim, heads, memory_dim=memory_dim, dropout=self.attention_dropout, **settings
        )
        self.norm3 = norm_of(self, dim, options)

    @block
    def __call__(  # type: ignore[override]
        self,
        x: Node,
        memory: Node,
        *,
        causal: bool = True,
        window: int | None = None,
        mask: Any = None,
        memory_mask: Any = None,
    ) -> Node:
        """The layer's values.

        Args:
            x, memory:           (T, D) and (S, M).
            causal, window, mask: of the attention of x to itself, as `MultiHeadAttention` has them.
            memory_mask:         boolean (T, S) or (S,); False hides a row of the memory.
        """
        attend = self._attend(causal, window, mask)
        look = partial(self.multihead_attn, memory=memory, mask=memory_mask)
        x = self.add(x, self.norm1, attend)
        x = self.add(x, self.norm2, look)
        return self.add(x, self.norm3, self.feed_forward)
