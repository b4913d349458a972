"""The tagger of `examples.tagging` and the parser of `examples.biaffine`: words read alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import dynbatch as db
from benchmarks.quality.task import Batch, Task, Weights, bi_lstm, dropped, inside, linear, padded
from dynbatch import nodes as F
from dynbatch import train
from dynbatch.text import Vocabulary
from examples.biaffine import train as biaffine
from examples.corpora import brown, petrogold
from examples.parser.evaluation import scores
from examples.tagging import train as tagging


def word_vectors(
    vectors: tagging.WordVectors, weights: Weights, sentences: Sequence[Sequence[str]]
) -> Tensor:
    """Vectors (words of all sentences, features): of a table, or of a bi-LSTM over the letters."""
    words = [word for sentence in sentences for word in sentence]
    ids = torch.tensor(vectors.words.encode(words))
    x = weights["vectors.word.weight"][ids]
    rare = [number for number, word in enumerate(words) if word not in vectors.words]
    if not rare:
        return x
    letters, lengths = padded([vectors.letters.encode(words[number]) for number in rare])
    spelled = weights["vectors.letter.weight"][letters]
    _, last, _ = bi_lstm(spelled, lengths, weights, "vectors.spelling")
    return x.index_copy(0, torch.tensor(rare), torch.cat([*last], 1))


def in_sentences(rows: Tensor, lengths: Tensor) -> Tensor:
    """Rows of all sentences as (B, T, features), with zeros behind."""
    real = inside(lengths)
    return rows.new_zeros(*real.shape, rows.shape[1]).masked_scatter(real[:, :, None], rows)


class Tagging(Task):
    """Parts of speech, a softmax for each word."""

    name = "tagging"
    data = "Brown, 51,698 sentences, 2 epochs"
    example = "tagging"

    def __init__(self) -> None:
        options = tagging.arguments([])
        known, self._test = brown.split(brown.load(options.data))
        np.random.default_rng(0).shuffle(known)  # type: ignore[arg-type]
        sentences = [sentence.words for sentence in known]
        tags = sorted({tag for sentence in known for tag in sentence.tags})
        number = {tag: k for k, tag in enumerate(tags)}
        self._known = {word for words in sentences for word in words}
        self.model = tagging.Tagger(
            Vocabulary.build(sentences, min_count=5).entries,
            Vocabulary.build([word for words in sentences for word in words]).entries,
            tags, options.features, options.features // 2, options.hidden, options.dropout, False,
        )  # fmt: skip
        examples = [(s.words, [number[tag] for tag in s.tags]) for s in known]
        batches = train.SentenceBatches(examples, options.batch_size)
        self.train_on(batches, options)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        loss = F.sum([self.model.loss(graph, words, tags) for words, tags in batch])
        return loss / sum([len(tags) for _, tags in batch])

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        lengths = torch.tensor([len(words) for words, _ in batch])
        rows = word_vectors(self.model.vectors, weights, [words for words, _ in batch])
        x = in_sentences(dropped(rows, self), lengths)
        context, _, _ = bi_lstm(x, lengths, weights, "context")
        tags = torch.tensor([tag for _, tags in batch for tag in tags])
        found = linear(dropped(context[inside(lengths)], self), weights, "project")
        return functional.cross_entropy(found, tags)

    def evaluate(self) -> dict[str, float]:
        tagged = self.model.tag([sentence.words for sentence in self._test])
        right: list[bool] = []
        unseen: list[bool] = []
        for tags, sentence in zip(tagged, self._test, strict=True):
            for tag, word, gold in zip(tags, sentence.words, sentence.tags, strict=True):
                right.append(tag == gold)
                if word not in self._known:
                    unseen.append(tag == gold)
        return {
            "tags right, %": 100 * float(np.mean(right)),
            "of unseen words, %": 100 * float(np.mean(unseen)),
        }


class Parsing(Task):
    """Dependency trees by biaffine scores."""

    name = "parsing"
    data = "PetroGold, 7,314 sentences, 5 epochs"
    example = "biaffine"

    def __init__(self) -> None:
        options = biaffine.arguments([])
        known, self._test = petrogold.load("train"), petrogold.load("test")
        np.random.default_rng(0).shuffle(known)  # type: ignore[arg-type]
        sentences = [sentence.words for sentence in known]
        self._layers = options.layers
        self.model = biaffine.Parser(
            Vocabulary.build(sentences, min_count=3).entries,
            Vocabulary.build([word for words in sentences for word in words]).entries,
            sorted({tag for one in known for tag in one.tags}),
            sorted({label for one in known for label in one.labels}),
            options.features, options.hidden, options.layers, options.dropout,
        )  # fmt: skip
        batches = train.SentenceBatches(known, options.batch_size)
        self.train_on(batches, options)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        loss = F.sum([self.model.loss(graph, sentence) for sentence in batch])
        return loss / sum([len(sentence.words) for sentence in batch])

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        model = self.model
        lengths = torch.tensor([len(sentence.words) for sentence in batch])
        rows = word_vectors(model.vectors, weights, [sentence.words for sentence in batch])
        tags = torch.tensor([k for one in batch for k in model.tags.encode(one.tags)])
        rows = torch.cat([rows, weights["tag.weight"][tags]], 1)
        x = in_sentences(dropped(rows, self), lengths)
        context, _, _ = bi_lstm(
            x, lengths, weights, "context", self._layers, model.dropout.p, model.training
        )
        states, real = dropped(context, self), inside(lengths)
        root = weights["scores.root"].expand(len(batch), 1, -1)
        candidates = torch.cat([root, states], 1)  # (B, 1 + T, states)

        def projected(name: str, states: Tensor) -> Tensor:
            return dropped(
                functional.leaky_relu(linear(states, weights, f"scores.{name}"), 0.1), self
            )

        dependents = linear(projected("arc_dependent", states), weights, "scores.arc_scores")
        arcs = dependents @ projected("arc_head", candidates).transpose(1, 2)
        hidden = ~inside(lengths + 1)
        arcs = arcs.masked_fill(hidden[:, None], -torch.inf)[real]
        heads, _ = padded([sentence.heads for sentence in batch])
        loss = functional.cross_entropy(arcs, heads[real], reduction="sum")

        rows = torch.gather(candidates, 1, heads[:, :, None].expand(-1, -1, states.shape[2]))
        heads_of = projected("label_head", rows[real])
        words = projected("label_dependent", states[real])
        bilinear = linear(words, weights, "scores.label_scores.bilinear")
        products = bilinear.unflatten(1, (-1, words.shape[1])) @ heads_of[:, :, None]
        beside = linear(torch.cat([words, heads_of], 1), weights, "scores.label_scores.linear")
        labels = torch.tensor([model.labels.index(k) for one in batch for k in one.labels])
        found = products[:, :, 0] + beside
        loss = loss + functional.cross_entropy(found, labels, reduction="sum")
        return loss / lengths.sum()

    def evaluate(self) -> dict[str, float]:
        reached = scores(self.model.parse(self._test), self._test)
        return {"LAS, %": 100 * reached.las, "UAS, %": 100 * reached.uas}
