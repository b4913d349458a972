"""The Transformers in PyTorch: padded, in nested tensors, packed by hand, and with flash attention.

All have one product for queries, keys and values, which attention reads as views, and
`scaled_dot_product_attention`, which stores no scores. What differs is how they deal with lengths.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nested._internal.nested_tensor import nested_from_padded
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from benchmarks.lengths import Batch
from benchmarks.networks import Array, BertLayerSizes, TransformerSizes
from benchmarks.peers.pytorch import PyTorchContender, tensors
from dynbatch.padding import IGNORED

Sizes = TransformerSizes | BertLayerSizes
Attend = Callable[[Any], Tensor]
"""From what `SelfAttention.project` gives, queries, keys and values, to what is seen, (…, D)."""


class SelfAttention(nn.Module):
    """The linear maps before and behind attention, under the names of `nn.MultiheadAttention`."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * hidden))
        self.out_proj = nn.Linear(hidden, hidden)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        seen: Tensor = self.out_proj(attend(self.project(x)))
        return seen

    def project(self, x: Tensor) -> Any:
        """Queries, keys and values side by side."""
        return linear(x, self.in_proj_weight, self.in_proj_bias)


class ThreeProducts(SelfAttention):
    """Queries, keys and values as a matrix each."""

    def project(self, x: Tensor) -> Any:
        parts = zip(self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
        return [linear(x, weight, bias) for weight, bias in parts]


class Layer(nn.Module):
    """One layer of a Transformer, under the names of `nn.TransformerEncoderLayer`."""

    def __init__(
        self,
        hidden: int,
        inner: int,
        norm_first: bool = False,
        dropout: float = 0.0,
        attention: type[SelfAttention] = SelfAttention,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.self_attn = attention(hidden)
        self.linear1, self.linear2 = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        if self.norm_first:
            x = x + self.dropout(self.self_attn(self.norm1(x), attend))
            return x + self.inner(self.norm2(x))
        x = self.norm1(x + self.dropout(self.self_attn(x, attend)))
        normal: Tensor = self.norm2(x + self.inner(x))
        return normal

    def inner(self, x: Tensor) -> Tensor:
        made: Tensor = self.dropout(self.linear2(gelu(self.linear1(x))))
        return made


class Encoder(nn.Module):
    """Layers one after the other, and a norm behind them if they are `norm_first`."""

    def __init__(self, count: int, hidden: int, inner: int, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(hidden, inner, **options) for _ in range(count)])
        self.norm = nn.LayerNorm(hidden) if options.get("norm_first") else nn.Identity()

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        for layer in self.layers:
            x = layer(x, attend)
        normal: Tensor = self.norm(x)
        return normal


def attention(
    projected: Tensor, heads: int, is_causal: bool = False, mask: Tensor | None = None
) -> Tensor:
    """(B, T, 3 D) -> (B, T, D); a mask (B, 1, 1, T) is False at padding."""
    query, key, value = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # type: ignore[no-untyped-call]
    seen = scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal)
    return seen.transpose(1, 2).flatten(2)


class Network(nn.Module):
    """The network of `TransformerSizes` or `BertLayerSizes`."""

    def __init__(self, sizes: Sizes, attention: type[SelfAttention] = SelfAttention) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.is_causal = isinstance(sizes, TransformerSizes)
        self.word = nn.Embedding(sizes.vocabulary, sizes.hidden)
        if isinstance(sizes, TransformerSizes):
            self.position = nn.Embedding(sizes.longest, sizes.hidden)
        self.encoder = Encoder(
            sizes.layers, sizes.hidden, sizes.inner, norm_first=self.is_causal, attention=attention
        )
        tags = sizes.vocabulary if isinstance(sizes, TransformerSizes) else sizes.tags
        self.output = nn.Linear(sizes.hidden, tags)

    def attention(self, projected: Tensor, mask: Tensor | None = None) -> Tensor:
        """The function `attention`, as the network has it."""
        return attention(projected, self.heads, self.is_causal, mask)


@dataclass(frozen=True)
class Padded:
    """Ids and targets (B, T), and a mask (B, 1, 1, T) of the words if some are padding."""

    words: Tensor
    targets: Tensor
    mask: Tensor | None


class TransformerContender(PyTorchContender):
    """The common part of all forms: the network and the mean of the sentences' losses."""

    model: Network

    def __init__(
        self,
        name: str,
        sizes: Sizes,
        values: Mapping[str, Array],
        device: str = "cpu",
        attention: type[SelfAttention] = SelfAttention,
    ) -> None:
        super().__init__(name, Network(sizes, attention), values, device)


def total(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of all words' losses."""
    return cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


class PaddedTransformer(TransformerContender):
    """Padded everywhere, from the embedding to the loss, which ignores it.

    Where a word sees earlier ones only, it sees no padding, and no mask is needed.
    """

    def __init__(
        self,
        sizes: Sizes,
        values: Mapping[str, Array],
        is_bucketed: bool = False,
        device: str = "cpu",
    ) -> None:
        name = "pytorch-bucketed" if is_bucketed else "pytorch-padded"
        super().__init__(name, sizes, values, device)
        self.is_bucketed = is_bucketed

    def arrange(self, batch: Batch) -> Padded:
        words = pad_sequence(tensors(batch.sources), batch_first=True)
        targets = pad_sequence(tensors(batch.targets), batch_first=True, padding_value=IGNORED)
        is_word = targets != IGNORED
        masked = not self.model.is_causal and not bool(is_word.all())
        return Padded(words, targets, is_word[:, None, None] if masked else None)

    def forward(self, prepared: Padded) -> Tensor:
        model, words = self.model, prepared.words
        x = model.word(words)
        if model.is_causal:
            x = x + model.position.weight[: words.shape[1]]
        x = model.encoder(x, lambda qkv: model.attention(qkv, prepared.mask))
        logits = model.output(x)
        return total(logits.flatten(0, 1), prepared.targets.flatten()) / len(words)


@dataclass(frozen=True)
class Packed:
    """Ids, places and targets of all words (N,), and the sentences' lengths and offsets."""

    words: Tensor
    places: Tensor
    targets: Tensor
    lengths: list[int]
    offsets: Tensor


class PackedTransformer(TransformerContender):
    """All words as the rows of one matrix; `attend` deals with the sentences."""

    def arrange(self, batch: Batch) -> Packed:
        lengths = [len(words) for words in batch.sources]
        return Packed(
            words=torch.from_numpy(np.concatenate(batch.sources)),
            places=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])),
            targets=torch.from_numpy(np.concatenate(batch.targets)),
            lengths=lengths,
            offsets=torch.from_numpy(np.cumsum([0, *lengths])),
        )

    def forward(self, prepared: Packed) -> Tensor:
        model = self.model
        x = model.word(prepared.words)
        if model.is_causal:
            x = x + model.position(prepared.places)
        logits = model.output(self.states(x, prepared))
        return total(logits, prepared.targets) / len(prepared.lengths)

    @abstractmethod
    def states(self, x: Tensor, prepared: Packed) -> Tensor:
        """All layers, (N, D) -> (N, D)."""


class BySentence(PackedTransformer):
    """Rows of all sentences in one matrix; attention alone goes sentence by sentence."""

    def __init__(self, sizes: Sizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        super().__init__("pytorch-by-sentence", sizes, values, device)

    def states(self, x: Tensor, prepared: Packed) -> Tensor:
        model = self.model

        def attend(qkv: Tensor) -> Tensor:
            parts = qkv.unsqueeze(0).split(prepared.lengths, 1)
            return torch.cat([model.attention(part) for part in parts], 1).squeeze(0)

        states: Tensor = model.encoder(x, attend)
        return states


class NestedTransformer(PackedTransformer):
    """Jagged nested tensors, through every layer.

    On a CPU, PyTorch 2.13 has one kernel for attention in nested tensors, which wants its three
    inputs contiguous, hence three products. It has none that is causal ("No viable backend"): there
    queries, keys and values are padded for attention, and what it returns is nested again, by the
    operator that PyTorch keeps to itself, as no gradient passes `torch.nested.narrow`. On a GPU
    there are causal ones.
    """

    def __init__(self, sizes: Sizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        self.pads = isinstance(sizes, TransformerSizes) and device == "cpu"
        attention = SelfAttention if self.pads else ThreeProducts
        super().__init__("pytorch-nested", sizes, values, device, attention)

    def states(self, x: Tensor, prepared: Packed) -> Tensor:
        model, lengths = self.model, prepared.lengths
        bounds = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)}

        def attend_padded(qkv: Tensor) -> Tensor:
            seen = model.attention(qkv.to_padded_tensor(0.0))
            return nested_from_padded(seen, qkv.offsets(), **bounds, sum_S=sum(lengths))

        def attend(qkv: list[Tensor]) -> Tensor:
            heads = [part.unflatten(-1, (model.heads, -1)).transpose(1, 2) for part in qkv]
            seen = scaled_dot_product_attention(*heads, is_causal=model.is_causal)
            return seen.transpose(1, 2).flatten(-2)

        nested = torch.nested.nested_tensor_from_jagged(x, prepared.offsets, **bounds)
        made = model.encoder(nested, attend_padded if self.pads else attend)
        states: Tensor = made.values()
        return states


class VarlenTransformer(PackedTransformer):
    """Rows of all sentences in one matrix, and flash attention for sequences of any lengths, which
    a GPU alone has, and in 16 bits alone."""

    precision = "bfloat16"

    def __init__(self, sizes: Sizes, values: Mapping[str, Array], device: str = "cuda") -> None:
        super().__init__("pytorch-varlen", sizes, values, device)

    def arrange(self, batch: Batch) -> Packed:
        packed = super().arrange(batch)
        return replace(packed, offsets=packed.offsets.to(torch.int32))

    def states(self, x: Tensor, prepared: Packed) -> Tensor:
        model, longest = self.model, max(prepared.lengths)

        def attend(qkv: Tensor) -> Tensor:
            heads = qkv.unflatten(-1, (3, model.heads, -1)).unbind(1)  # type: ignore[no-untyped-call]
            return flash_attention(*heads, prepared.offsets, longest, model.is_causal).flatten(1)

        states: Tensor = model.encoder(x, attend)
        return states


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, is_causal: bool
) -> Tensor:
    """Attention within each of the sequences that lie behind one another, (N, H, D) each."""
    from torch.nn.attention.varlen import varlen_attn

    # PyTorch 2.10 calls it `is_causal`, later ones a window.
    has_window = "window_size" in inspect.signature(varlen_attn).parameters
    causal = {"window_size": (-1, 0)} if has_window else {"is_causal": True}
    seen: Tensor = varlen_attn(
        query, key, value, offsets, offsets, longest, longest, **(causal if is_causal else {})
    )
    return seen
