"""The tagger in PyTorch: `nn.LSTM` over padded and over packed batches (on a GPU, cuDNN's)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from benchmarks.lengths import Batch
from benchmarks.networks import Array, TaggerSizes
from benchmarks.peers.pytorch import PyTorchContender, longest_first, packed, padded
from dynbatch.padding import IGNORED
from dynbatch.padding.pytorch_networks import labelling_network, mean_loss


def tagger(sizes: TaggerSizes) -> nn.Module:
    """The network of `TaggerSizes`, at random values."""
    network: nn.Module = labelling_network(
        sizes.vocabulary, sizes.tags, sizes.embedding, sizes.hidden, bidirectional=True
    )
    return network


class PaddedTagger(PyTorchContender):
    """Padded batches, padding read as words: the plain form, on which oneDNN's LSTM runs.

    The backward direction starts in the padding, so a short sentence's tags depend on what it is
    batched with. Undoing that takes two gathers more; the peer is timed without.
    """

    is_exact = False

    def __init__(
        self,
        sizes: TaggerSizes,
        values: Mapping[str, Array],
        is_bucketed: bool = False,
        device: str = "cpu",
    ) -> None:
        name = "pytorch-bucketed" if is_bucketed else "pytorch-padded"
        super().__init__(name, tagger(sizes), values, device)
        self.is_bucketed = is_bucketed

    def arrange(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        words = padded(batch.sources, filler=0)
        return words, padded(batch.targets, filler=IGNORED), batch.num_sentences

    def forward(self, prepared: tuple[Tensor, Tensor, int]) -> Tensor:
        words, tags, num_sentences = prepared
        states, _ = self.model.encoder(self.model.embedding(words))  # (T, B, 2 hidden)
        logits = self.model.output(states).flatten(0, 1)  # (T B, tags)
        return mean_loss(logits, tags.flatten(), num_sentences)


class PackedTagger(PyTorchContender):
    """Packed from the ids on, so that embedding, output layer and loss see no padding either."""

    def __init__(
        self, sizes: TaggerSizes, values: Mapping[str, Array], device: str = "cpu"
    ) -> None:
        super().__init__("pytorch-packed", tagger(sizes), values, device)

    def arrange(self, batch: Batch) -> tuple[PackedSequence, Tensor, int]:
        order = longest_first(batch.sources)
        words = packed([batch.sources[i] for i in order])
        tags = packed([batch.targets[i] for i in order])
        return words, tags.data, batch.num_sentences

    def forward(self, prepared: tuple[PackedSequence, Tensor, int]) -> Tensor:
        words, tags, num_sentences = prepared
        embedded = PackedSequence(self.model.embedding(words.data), words.batch_sizes)
        states, _ = self.model.encoder(embedded)  # .data (N, 2 hidden)
        logits = self.model.output(states.data)  # (N, tags)
        return mean_loss(logits, tags, num_sentences)
