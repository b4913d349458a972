"""Pairs of texts: the LSTM of `examples.seq2seq`, and the Transformer of `dynbatch train`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import dynbatch as db
from benchmarks.quality.task import (
    Batch,
    Batches,
    LikeLengths,
    Task,
    Weights,
    bi_lstm,
    dropped,
    inside,
    linear,
    padded,
)
from benchmarks.quality.transformer import angles, layer, normed
from dynbatch import nodes as F
from dynbatch import random, train
from dynbatch.tasks.task import Parts
from dynbatch.tasks.translation.settings import TranslationSettings
from dynbatch.tasks.translation.translator import Translator as TransformerTranslator
from dynbatch.text import Vocabulary, error_rates
from dynbatch.text.metrics import translation_scores
from examples.corpora import pairs
from examples.seq2seq.train import Translator, arguments


class Translation(Task):
    """Judged by what the model writes for each source of the test."""

    example = "seq2seq"

    corpus: Parts

    @abstractmethod
    def written(self, sources: Sequence[str]) -> Sequence[Sequence[str]]:
        """The words of each source's translation."""

    def evaluate(self) -> dict[str, float]:
        test: Any = self.corpus.test
        written = self.written([text.source for text in test])
        if "sacrebleu" in self.packages:
            texts = [" ".join(words) for words in written]
            return translation_scores(texts, [text.references for text in test])
        rates = error_rates(written, [[one.split() for one in text.references] for text in test])
        return {"tokens wrong, %": 100 * rates.token, "texts wrong, %": 100 * rates.sequence}


class ByLSTM(Translation):
    """With the options of the example's command line."""

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
        self.train_on(self.batched(examples, options.batch_size), options)

    def batched(self, examples: Sequence[Any], size: int) -> Batches:
        """The mini-batches, of so many pairs as the example has them."""
        return train.SentenceBatches(examples, size)

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
        real = inside(steps)
        scores = linear(dropped(torch.stack(vectors, 1)[real], self), weights, "project")
        return functional.cross_entropy(scores, labels[real])

    def written(self, sources: Sequence[str]) -> Sequence[Sequence[str]]:
        words: list[list[str]] = self.model.translate(sources)
        return words


class Pronunciation(ByLSTM):
    """`make demo`."""

    name = "cmudict"
    data = "CMUdict, 36,000 words, 2 epochs"
    options = "cmudict --limit 36000 --epochs 2 --embed 64 --hidden 128 --lr 4e-3"


class Scan(ByLSTM):
    """Commands to actions, a random fifth held out."""

    name = "scan"
    data = "SCAN, simple split, 16,728 commands, 12 epochs"
    options = "scan-simple --embed 128 --hidden 128 --epochs 12 --dropout 0.1"


class Messages(ByLSTM):
    """English to German, in mini-batches of like lengths."""

    name = "translation LSTM"
    data = "LibreOffice's messages, English to German, 17,090 pairs, 8 epochs"
    options = "libreoffice --embed 128 --hidden 128 --dropout 0.2 --epochs 8"
    packages = ("sacrebleu",)

    def batched(self, examples: Sequence[Any], size: int) -> Batches:
        return LikeLengths(examples, 16 * size, lambda pair: len(pair[0]) + len(pair[1]))


class MessagesByTransformer(Translation):
    """English to German by the model of `dynbatch train FILE --model transformer`."""

    name = "translation Transformer"
    data = "the same messages, 2 layers each, 8 epochs"
    packages = ("sacrebleu",)
    clip = 1.0
    settings: ClassVar[dict[str, Any]] = {"epochs": 8, "hidden": 128, "label_smoothing": 0.0}

    def __init__(self) -> None:
        suited = {**TranslationSettings.transformer, **self.settings}
        usual = TranslationSettings(model="transformer", **suited)
        self.corpus = pairs.load("libreoffice")
        seeded = replace(usual, seed=random.next_seed())
        self._translator = TransformerTranslator.begin(self.corpus, seeded)
        self.model, self._heads = self._translator.model, usual.heads
        examples = self._translator.examples(self.corpus.train)
        self.train_on(LikeLengths(examples, 2048, lambda pair: pair.num_tokens), usual)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        loss = F.sum([self.model.loss(graph, one.source, one.target) for one in batch])
        return loss / sum([len(one.target) + 1 for one in batch])

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        words, lengths = padded([one.source for one in batch])
        inputs, steps = padded([self.model.opened(one.target) for one in batch])
        labels, _ = padded([[*one.target, self.model.end] for one in batch])
        shown, real = inside(lengths)[:, None, None], inside(steps)  # shown to all heads, queries
        memory = self._stacked("encoder", words, weights, attn_mask=shown)
        vectors = self._stacked(
            "decoder", inputs, weights, is_causal=True, memory=memory, memory_mask=shown
        )
        return functional.cross_entropy(linear(vectors[real], weights, "output"), labels[real])

    def _stacked(self, part: str, ids: Tensor, weights: Weights, **how: Any) -> Tensor:
        """The values of the encoder or of the decoder."""
        table = weights[f"{'source' if part == 'encoder' else 'target'}_embedding.weight"]
        turns = angles(ids.shape[1], table.shape[1])
        positions = torch.stack([turns.sin(), turns.cos()], 2).flatten(1)
        x = dropped(table[ids] * self.model.scale + positions, self)
        for number in range(len(getattr(self.model.transformer, part).layers)):
            name = f"transformer.{part}.layers.{number}"
            x = layer(self, x, weights, name, self._heads, activation=torch.relu, **how)
        return normed(x, weights, f"transformer.{part}.norm")

    def written(self, sources: Sequence[str]) -> Sequence[Sequence[str]]:
        return [best.tokens for best, *_ in self._translator.translate(sources)]
