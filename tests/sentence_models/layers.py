"""Layers of sentences, windows and images."""

from __future__ import annotations

import numpy as np

from dynbatch import models
from dynbatch import nodes as F
from tests.sentence_models.sentence import (
    EMBED,
    HIDDEN,
    TAGS,
    WORDS,
    Build,
    Made,
    Sentence,
    kind,
    squares,
)


@kind
def linear() -> Build:
    words, layer = models.Embedding(WORDS, EMBED, rng=1), models.Linear(EMBED, 300, rng=2)
    return lambda sentence: squares(layer(sentence.words(words)))


@kind
def bags() -> Build:
    words = models.EmbeddingBag(WORDS, EMBED, rng=1)
    layer = models.Linear(EMBED, HIDDEN, rng=2)

    def build(sentence: Sentence) -> Made:
        bags = [each.tolist() for each in np.split(sentence.ids, range(2, len(sentence.ids), 3))]
        return squares(layer(sentence.words(words, [*bags, []])))

    return build


@kind
def norms() -> Build:
    layer, dense = models.LayerNorm(EMBED), models.Linear(EMBED, HIDDEN, rng=2)
    rms = models.RMSNorm(HIDDEN)
    average = models.BatchNorm(HIDDEN).eval()

    def build(sentence: Sentence) -> Made:
        (y,) = average(sentence.graph, [rms(dense(layer(sentence.rows())))])
        return squares(y)

    return build


@kind
def dropout() -> Build:
    layer = models.Linear(EMBED, HIDDEN, rng=2)

    def build(sentence: Sentence) -> Made:
        x = F.dropout(layer(F.dropout(sentence.rows(), 0.3)), 0.4)
        return squares(F.attention(x, x, heads=4, dropout=0.2))

    return build


@kind
def reductions() -> Build:
    def build(sentence: Sentence) -> Made:
        x = sentence.rows(HIDDEN)
        parts = [F.sum(x, dim=0), F.mean(x, dim=0), F.max(x, dim=0), F.logsumexp(x, dim=0)]
        parts += [F.cumsum(x, dim=0)[-1], F.std(x, dim=0, correction=0.5), F.sparsemax(x, dim=0)[0]]
        alone = [F.sum(F.softmax(x) * x), F.mean(F.log_softmax(x, dim=0)), F.logsumexp(x), F.var(x)]
        return squares(F.concat([*parts, *[F.unsqueeze(each, 0) for each in alone]]))

    return build


@kind
def segments() -> Build:
    layer = models.Linear(EMBED, HIDDEN, rng=2)

    def build(sentence: Sentence) -> Made:
        x, count = layer(sentence.rows()), len(sentence.ids)
        lengths = [count // 3, 0, count - count // 3]
        return squares(F.concat([F.segment_sum(x, lengths), F.segment_mean(F.exp(x), lengths)]))

    return build


@kind
def text_cnn() -> Build:
    network = models.TextCNN(EMBED, TAGS, rng=1).eval()
    return lambda sentence: squares(network(sentence.rows()))


@kind
def pools() -> Build:
    layer = models.Conv1d(EMBED, HIDDEN, 3, padding=1, rng=1)

    def build(sentence: Sentence) -> Made:
        x = layer(sentence.rows())
        pooled = [F.max_pool(x, 3, 2), F.mean_pool(x, 3, 2)]
        return squares(F.concat([F.kmax_pool(x, min(2, len(sentence.ids))), *pooled], dim=0))

    return build


@kind
def images() -> Build:
    """Four pixels of six channels a word: as many lines as words."""
    words, output = models.Embedding(WORDS, EMBED, rng=1), models.Linear(9, TAGS, rng=3)
    layers = models.Sequential(
        models.Conv2d(6, 70, 3, padding=1, rng=2), models.MaxPool2d((1, 2)), F.relu,
        models.Conv2d(70, 70, 3, padding=1, groups=35, rng=5),
        models.Conv2d(70, 9, (2, 1), stride=(2, 1), padding=(1, 0), rng=4),
        models.AvgPool2d((1, 2)),
    )  # fmt: skip

    def build(sentence: Sentence) -> Made:
        y = layers(F.reshape(sentence.words(words), (len(sentence.ids), 4, 6)))
        scores = output(F.max(F.reshape(y, (-1, 9)), dim=0))
        return y, F.cross_entropy(scores, int(sentence.ids[0]) % TAGS)

    return build


@kind
def transposed_images() -> Build:
    layer = models.ConvTranspose2d(6, 9, 3, stride=2, rng=1)

    def build(sentence: Sentence) -> Made:
        return squares(layer(F.reshape(sentence.rows(), (len(sentence.ids), 4, 6))))

    return build
