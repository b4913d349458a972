"""The attentional sequence-to-sequence model in PyTorch, in four ways of dealing with lengths.

The decoder is a loop of `nn.LSTMCell`, as input feeding demands. What can leave the loop has left
it: keys and values are projected once, and so are all logits, with one cross entropy over all
steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from benchmarks.lengths import Batch
from benchmarks.networks import START_SYMBOL, Array, Seq2SeqSizes
from benchmarks.peers.pytorch import IGNORED, PyTorchContender, longest_first, packed, padded


class Seq2Seq(nn.Module):
    """The network of `Seq2SeqSizes`."""

    def __init__(self, sizes: Seq2SeqSizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.source_embedding = nn.Embedding(sizes.source_vocabulary, sizes.embedding)
        self.target_embedding = nn.Embedding(sizes.target_vocabulary, sizes.embedding)
        self.encoder = nn.LSTM(sizes.embedding, hidden, bidirectional=True)
        self.cell = nn.LSTMCell(sizes.embedding + hidden, hidden)
        self.key = nn.Linear(2 * hidden, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Parameter(torch.empty(hidden))
        self.context = nn.Linear(2 * hidden, hidden, bias=False)
        self.state = nn.Linear(hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, sizes.target_vocabulary)

    def attend(self, state: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """The feed of one step, from the decoder's state (B, H)."""
        # tanh_ in place: neither the sum nor tanh's backward needs the sum.
        scores = (keys + self.query(state).unsqueeze(1)).tanh_() @ self.score  # (B, S)
        weights = torch.softmax(scores + mask, dim=1)
        context = torch.bmm(weights.unsqueeze(1), values).squeeze(1)  # (B, H)
        return torch.tanh(context + self.state(state))

    def decode(self, inputs: Tensor, alive: Sequence[int], memory: Tensor, mask: Tensor) -> Tensor:
        """Feeds of all steps, one below the other, (sum of alive, H).

        Args:
            inputs: (T, B) ids that the decoder reads.
            alive:  number of leading rows that step t computes, never rising.
            memory: (B, S, 2 H);  mask: (B, S), 0 or -inf at padding.
        """
        keys, values = self.key(memory), self.context(memory)  # (B, S, H)
        # Not indexed in the loop: the backward of that would fill a (T, B, E) with zeros a step.
        embedded = self.target_embedding(inputs).unbind()  # T of (B, E)
        state = cell_state = feed = memory.new_zeros(memory.shape[0], self.query.in_features)
        feeds = []
        for read, rows in zip(embedded, alive, strict=True):
            if rows < state.shape[0]:  # cut only when rows finish: each cut costs a copy backward
                state, cell_state, feed = state[:rows], cell_state[:rows], feed[:rows]
                keys, values, mask = keys[:rows], values[:rows], mask[:rows]
            step_input = torch.cat((read[:rows], feed), dim=1)
            state, cell_state = self.cell(step_input, (state, cell_state))
            feed = self.attend(state, keys, values, mask)
            feeds.append(feed)
        return torch.cat(feeds)


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

    model: Seq2Seq

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
        super().__init__(name, Seq2Seq(sizes), values, device)
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
        feeds = model.decode(prepared.inputs, prepared.alive, memory, prepared.mask)
        logits = model.output(feeds)  # (N, V)
        total = cross_entropy(logits, prepared.outputs, reduction="sum")
        return total / prepared.mask.shape[0]
