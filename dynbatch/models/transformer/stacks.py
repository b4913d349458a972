"""Stacks of Transformer layers: encoder, decoder, and both of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from dynbatch.arguments import sizes
from dynbatch.blocks.block import block
from dynbatch.models.initial import generator
from dynbatch.models.module import Module
from dynbatch.models.transformer.layers import (
    LayerOptions,
    Norm,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    norm_of,
)
from dynbatch.nodes.attention.bias import Bias
from dynbatch.nodes.node import Node


class TransformerEncoder(Module):
    """Encoder layers one after the other, as `torch.nn.TransformerEncoder`: (T, D) -> (T, D).

    Called with `causal=True` it is the body of a decoder-only language model (GPT, Llama).

    Args:
        layers:     how many.
        dim, heads, hidden, options: those of `TransformerEncoderLayer`.
        each:       gives the options of layer k, 0 for the first, that are other ones.
        final_norm: whether the last layer's values are normalised; by default if `norm_first`.

    Parameters: layers.0.self_attn.in_proj_weight and so on, norm.weight and norm.bias if there is a
        final norm: PyTorch's names.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> encoder = models.TransformerEncoder(2, 8, 4, norm_first=True)
        >>> with db.Graph() as graph:
        ...     sentences = [F.constant(graph, 1.0, (length, 8)) for length in (3, 0, 7)]
        ...     [encoder(x).value.shape for x in sentences]
        [(3, 8), (0, 8), (7, 8)]
    """

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        final_norm: bool | None = None,
        each: Callable[[int], LayerOptions] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        sizes(self, layers=layers, dim=dim, heads=heads)
        options["rng"] = generator(options.get("rng"))
        self.layers = [
            TransformerEncoderLayer(dim, heads, hidden, **_with(options, each, k))
            for k in range(layers)
        ]
        self.norm = _final_norm(self, dim, final_norm, options)

    @block
    def __call__(
        self, x: Node, *, causal: bool = False, window: int | None = None, mask: Any = None,
        bias: Bias | None = None,
    ) -> Node:  # fmt: skip
        """The last layer's values; the arguments are those of `MultiHeadAttention`."""
        for layer in self.layers:
            x = layer(x, causal=causal, window=window, mask=mask, bias=bias)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """Decoder layers one after the other, as `torch.nn.TransformerDecoder`.

    x (T, D), memory (S, M) -> (T, D).

    Args:
        layers:     how many.
        dim, heads, hidden, options: those of `TransformerEncoderLayer`.
        memory_dim: M, features of the memory; D by default.
        final_norm: whether the last layer's values are normalised; by default if `norm_first`.

    Parameters: layers.0.self_attn.in_proj_weight and so on, norm.weight and norm.bias if there is a
        final norm.
    """

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        memory_dim: int | None = None,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        sizes(self, layers=layers, dim=dim, heads=heads)
        options["rng"] = generator(options.get("rng"))
        self.layers = [
            TransformerDecoderLayer(dim, heads, hidden, memory_dim=memory_dim, **options)
            for _ in range(layers)
        ]
        self.norm = _final_norm(self, dim, final_norm, options)

    @block
    def __call__(
        self,
        x: Node,
        memory: Node,
        *,
        causal: bool = True,
        window: int | None = None,
        mask: Any = None,
        memory_mask: Any = None,
    ) -> Node:
        """The last layer's values; the arguments are those of `TransformerDecoderLayer`."""
        for layer in self.layers:
            x = layer(x, memory, causal=causal, window=window, mask=mask, memory_mask=memory_mask)
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder and a decoder that attends to its values, as `torch.nn.Transformer`.

    `transformer(source, target)` is `decoder(target, encoder(source))`: source (S, D), target
    (T, D) -> (T, D), where each row of the target sees itself and those before it. Embeddings and
    output projection stand outside, as in PyTorch.

    Args:
        dim, heads, hidden, options: those of `TransformerEncoderLayer`.
        encoder_layers, decoder_layers: how many of each.
        final_norm: whether values of encoder and decoder are normalised at the end.

    Parameters: encoder.layers.0.self_attn.in_proj_weight and so on, encoder.norm.weight, …

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        final_norm: bool | None = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        counts = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
        sizes(self, dim=dim, heads=heads, **counts)
        options["rng"] = generator(options.get("rng"))
        self.encoder = TransformerEncoder(
            encoder_layers, dim, heads, hidden, final_norm=final_norm, **options
        )
        self.decoder = TransformerDecoder(
            decoder_layers, dim, heads, hidden, final_norm=final_norm, **options
        )

    def __call__(self, source: Node, target: Node) -> Node:
        return self.decoder(target, self.encoder(source))


def _with(
    options: LayerOptions, each: Callable[[int], LayerOptions] | None, layer: int
) -> LayerOptions:
    """The options of a layer."""
    if each is None:
        return options
    changed = options.copy()
    changed.update(each(layer))
    return changed


def _final_norm(owner: Module, dim: int, wanted: bool | None, options: LayerOptions) -> Norm | None:
    """The norm after the last layer, None if there is none; by default where `norm_first`."""
    if not (options.get("norm_first", False) if wanted is None else wanted):
        return None
    return norm_of(owner, dim, options)
