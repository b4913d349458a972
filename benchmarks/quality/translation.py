"""The encoder and decoder with attention of `examples.seq2seq`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

import dynbatch as db
from benchmarks.quality.task import Batch, Task, Weights, bi_lstm, dropped, inside, linear, padded
from dynbatch import nodes as F
from dynbatch import train
from dynbatch.text import Vocabulary, error_rates
from examples.corpora import pairs
from examples.seq2seq.train import Translator, arguments


class Translation(Task):
    """Pairs of texts, with the options of the example's command line."""

    clip = 2.0
    options: ClassVar[str]

    def __init__(self) -> None:
        options = arguments(self.options.split())
        self.corpus = pairs.load(options.data, options.limit)
        known = [(s.source.split(), t.split()) for s in self.corpus.train for t in s.references]
        vocabularies = [Vocabulary.build(side).entries for side in zip(*known, strict=True)]
        self.model = Translator(*vocabularies, options.embed, options.hidden, options.dropout)
        source, target = self.model.source, self.model.target
        examples = [(source.encode(s), target.encode(t, marks=True)) for s, t in known]
        batches = train.SentenceBatches(examples, options.batch_size)
        self.train_on(batches, options)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        loss = F.sum([self.model.loss(graph, source, target) for source, target in batch])
        return loss / sum([len(target) - 1 for _, target in batch])

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        words, lengths = padded([source for source, _ in batch])
        inputs, steps = padded([target[:-1] for _, target in batch])
        labels, _ = padded([target[1:] for _, target in batch])
        x = dropped(weights["embed_source.weight"][words], self)
        memory, last, _ = bi_lstm(x, lengths, weights, "encoder")
        h, c = linear(torch.cat([*last], 1), weights, "bridge").chunk(2, 1)
        h, attended = torch.tanh(h), torch.zeros_like(h)
        keys, values = linear(memory, weights, "attention.key"), linear(memory, weights, "values")
        hidden = ~inside(lengths)
        read = linear(dropped(weights["embed_target.weight"][inputs], self), weights, "read")
        vectors = []
        for t in range(inputs.shape[1]):
            gates = read[:, t] + linear(attended, weights, "feed") + linear(h, weights, "recall")
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            query = linear(h, weights, "attention.query")
            scores = torch.tanh(query[:, None] + keys) @ weights["attention.vector"]
            shares = torch.softmax(scores.masked_fill(hidden, -torch.inf), 1)
            context = (shares[:, None] @ values)[:, 0]
            attended = torch.tanh(context + linear(h, weights, "mix"))
            vectors.append(attended)
        scores = linear(dropped(torch.stack(vectors, 1), self), weights, "project")
        real = inside(steps)
        return torch.nn.functional.cross_entropy(scores[real], labels[real])

    def evaluate(self) -> dict[str, float]:
        test: Any = self.corpus.test
        written = self.model.translate([text.source for text in test])
        rates = error_rates(written, [[one.split() for one in text.references] for text in test])
        return {"tokens wrong, %": 100 * rates.token, "texts wrong, %": 100 * rates.sequence}


class Pronunciation(Translation):
    """`make demo`."""

    name = "cmudict"
    data = "CMUdict, 36,000 words, 2 epochs"
    options = "cmudict --limit 36000 --epochs 2 --embed 64 --hidden 128 --lr 4e-3"


class Scan(Translation):
    """Commands to actions, a random fifth held out."""

    name = "scan"
    data = "SCAN, simple split, 16,728 commands, 12 epochs"
    options = "scan-simple --embed 128 --hidden 128 --epochs 12 --dropout 0.1"
