"""The Transformers in PyTorch: padded, in nested tensors, and packed by hand.

All have one product for queries, keys and values, which attention reads as views, and
`scaled_dot_product_attention`, which stores no scores. What differs is how they deal with lengths.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""From what `Layer.project` gives, queries, keys and values, to what is seen, (…, D)."""


class Layer(nn.Module):
    """One layer of `TransformerSizes` or `BertLayerSizes`."""

    def __init__(self, sizes: Sizes, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.dropout = nn.Dropout(dropout)
        self.norm_first = isinstance(sizes, TransformerSizes)
        self.attention_norm = nn.LayerNorm(hidden)
        self.project = nn.Linear(hidden, 3 * hidden)
        self.merge = nn.Linear(hidden, hidden)
        self.inner_norm = nn.LayerNorm(hidden)
        self.expand = nn.Linear(hidden, sizes.inner)
        self.contract = nn.Linear(sizes.inner, hidden)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        if self.norm_first:
            x = x + self.seen(self.attention_norm(x), attend)
            return x + self.inner(self.inner_norm(x))
        x = self.attention_norm(x + self.seen(x, attend))
        normal: Tensor = self.inner_norm(x + self.inner(x))
        return normal

    def seen(self, x: Tensor, attend: Attend) -> Tensor:
        merged: Tensor = self.dropout(self.merge(attend(self.project(x))))
        return merged

    def inner(self, x: Tensor) -> Tensor:
        contracted: Tensor = self.dropout(self.contract(gelu(self.expand(x))))
        return contracted


class Network(nn.Module):
    """The network of `TransformerSizes` or `BertLayerSizes`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.is_causal = isinstance(sizes, TransformerSizes)
        self.word = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = nn.ModuleList([Layer(sizes) for _ in range(sizes.layers)])
        if isinstance(sizes, TransformerSizes):
            self.position = nn.Embedding(sizes.longest, sizes.hidden)
            self.norm = nn.LayerNorm(sizes.hidden)
            self.output = nn.Linear(sizes.hidden, sizes.vocabulary)
        else:
            self.output = nn.Linear(sizes.hidden, sizes.tags)

    def states(self, x: Tensor, attend: Attend) -> Tensor:
        """All layers on embeddings."""
        for block in self.blocks:
            x = block(x, attend)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Of the last layer's states."""
        found: Tensor = self.output(self.norm(x) if self.is_causal else x)
        return found

    def attention(self, projected: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, 3 D) -> (B, T, D); a mask hides the padding where later words are seen."""
        query, key, value = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, mask, is_causal=self.is_causal)
        return seen.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Padded:
    """Ids and targets (B, T), and a mask (B, 1, 1, T) of the words if some are padding."""

    words: Tensor
    targets: Tensor
    mask: Tensor | None


class TransformerContender(PyTorchContender):
    """What all forms share: the network and the mean of the sentences' losses."""

    model: Network

    def __init__(
        self, name: str, sizes: Sizes, values: Mapping[str, Array], device: str = "cpu"
    ) -> None:
        super().__init__(name, Network(sizes), values, device)


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
        logits = model.logits(model.states(x, lambda qkv: model.attention(qkv, prepared.mask)))
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
        return total(self.logits(x, prepared), prepared.targets) / len(prepared.lengths)

    @abstractmethod
    def logits(self, x: Tensor, prepared: Packed) -> Tensor:
        """(N, D) -> logits of all words."""


class BySentence(PackedTransformer):
    """Rows of all sentences in one matrix; attention alone goes sentence by sentence."""

    def __init__(self, sizes: Sizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        super().__init__("pytorch-by-sentence", sizes, values, device)

    def logits(self, x: Tensor, prepared: Packed) -> Tensor:
        model = self.model

        def attend(qkv: Tensor) -> Tensor:
            parts = qkv.unsqueeze(0).split(prepared.lengths, 1)
            return torch.cat([model.attention(part) for part in parts], 1).squeeze(0)

        return model.logits(model.states(x, attend))


class NestedTransformer(PackedTransformer):
    """Jagged nested tensors, through every layer.

    On a CPU, PyTorch 2.13 has one kernel for attention in nested tensors, which wants its three
    inputs contiguous, hence three products. It has none that is causal ("No viable backend"): there
    queries, keys and values are padded for attention, and what it returns is nested again, by the
    operator that PyTorch keeps to itself, as no gradient passes `torch.nested.narrow`.
    """

    def __init__(self, sizes: Sizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        super().__init__("pytorch-nested", sizes, values, device)
        for block in self.model.blocks:
            if not self.model.is_causal:
                block.project = ThreeProducts(block.project)

    def logits(self, x: Tensor, prepared: Packed) -> Tensor:
        model, lengths = self.model, prepared.lengths
        bounds = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)}

        def attend_padded(qkv: Tensor) -> Tensor:
            seen = model.attention(qkv.to_padded_tensor(0.0))
            return nested_from_padded(seen, qkv.offsets(), **bounds, sum_S=sum(lengths))

        def attend(qkv: list[Tensor]) -> Tensor:
            heads = [part.unflatten(-1, (model.heads, -1)).transpose(1, 2) for part in qkv]
            return scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)

        nested = torch.nested.nested_tensor_from_jagged(x, prepared.offsets, **bounds)
        top = model.states(nested, attend_padded if model.is_causal else attend)
        return model.logits(top.values())


class ThreeProducts(nn.Module):
    """A projection to queries, keys and values, as a matrix each."""

    def __init__(self, project: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = project.weight, project.bias

    def forward(self, x: Tensor) -> list[Tensor]:
        parts = zip(self.weight.chunk(3), self.bias.chunk(3), strict=True)
        return [linear(x, weight, bias) for weight, bias in parts]
