"""The attentional sequence-to-sequence model in PyTorch, in four ways of dealing with lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from benchmarks.lengths import Batch
from benchmarks.networks import START_SYMBOL, Array, Seq2SeqSizes
from benchmarks.peers.pytorch import PyTorchContender, longest_first, packed, padded
from dynbatch.padding import IGNORED
from dynbatch.padding.pytorch_networks import decode, mean_loss, seq2seq_network


def seq2seq(sizes: Seq2SeqSizes) -> nn.Module:
    """The network of `Seq2SeqSizes`, at random values."""
    network: nn.Module = seq2seq_network(
        sizes.source_vocabulary, sizes.target_vocabulary, sizes.embedding, sizes.hidden
    )
    return network


@dataclass(frozen=True)
class PreparedPairs:
    """One batch as tensors. `words` is (S, B) ids, or those ids packed."""

    words: Tensor | PackedSequence
    rows: Tensor  # (B,), the decoder's rows in the encoder's numbering
    mask: Tensor  # (B, S), 0 or -inf at padding
    inputs: Tensor  # (T, B)
    alive: list[int]  # rows that step t computes
    outputs: Tensor  # (sum of alive,)


class Seq2SeqContender(PyTorchContender):
    """One way of dealing with lengths.

    Args:
        packs:   the encoder runs on a packed batch (on the CPU ATen's loop), not a padded one
                 (oneDNN's). On a GPU both are cuDNN's.
        selects: rows are sorted by target length; the decoder's loop drops those that are done.
        is_bucketed: timed on length-bucketed batches.
    """

    def __init__(
        self,
        name: str,
        sizes: Seq2SeqSizes,
        values: Mapping[str, Array],
        packs: bool = False,
        selects: bool = False,
        is_bucketed: bool = False,
        device: str = "cpu",
    ) -> None:
        super().__init__(name, seq2seq(sizes), values, device)
        self._packs, self._selects = packs, selects
        self.is_bucketed = is_bucketed
        self.is_exact = packs  # a padded encoder's backward direction starts in the padding

    def arrange(self, batch: Batch) -> PreparedPairs:
        reading = longest_first(batch.sources)
        order = longest_first(batch.targets) if self._selects else reading
        sources = [batch.sources[i] for i in order]
        targets = [batch.targets[i] for i in order]
        lengths = np.array([len(target) for target in targets])
        steps = np.arange(lengths.max())[:, None]
        alive = (lengths > steps).sum(axis=1)
        if not self._selects:
            alive[:] = len(lengths)
        labels = padded(targets, filler=IGNORED)  # (T, B)
        inputs = padded([np.r_[START_SYMBOL, target[:-1]] for target in targets], filler=0)
        empty = padded([np.zeros(len(source)) for source in sources], filler=1).T.bool()
        words = packed([batch.sources[i] for i in reading])
        return PreparedPairs(
            words=words if self._packs else padded([batch.sources[i] for i in reading], filler=0),
            rows=torch.from_numpy(np.argsort(reading)[order]),
            mask=torch.zeros(empty.shape).masked_fill_(empty, -torch.inf),
            inputs=inputs,
            alive=alive.tolist(),
            outputs=torch.cat([row[:rows] for row, rows in zip(labels, alive, strict=True)]),
        )

    def forward(self, prepared: PreparedPairs) -> Tensor:
        model, words = self.model, prepared.words
        if isinstance(words, PackedSequence):
            embedded = words._replace(data=model.source_embedding(words.data))
            states, _ = pad_packed_sequence(model.encoder(embedded)[0])  # (S, B, 2 H)
        else:
            states, _ = model.encoder(model.source_embedding(words))
        memory = states.transpose(0, 1)[prepared.rows]  # (B, S, 2 H), contiguous
        feeds = decode(model, prepared.inputs, memory, prepared.mask, alive=prepared.alive)
        return mean_loss(model.output(feeds), prepared.outputs, prepared.mask.shape[0])
