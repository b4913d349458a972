"""A sentence's results and its input's gradient have the same bits alone and in any mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.kernels.c.runtime.library import reason

pytestmark = pytest.mark.skipif(bool(reason()), reason="NumPy's products round by their size")

WORDS, TAGS, EMBED, HIDDEN = 600, 23, 24, 40
WATCHED = (1, 2, 9, 31)  # lengths of the sentences that are watched
OWN_WORDS = sum(WATCHED)  # only they use these; each word once, so a gradient is one row
Loss = Callable[[db.Graph, np.ndarray], tuple[db.Node, db.Node]]


def linear() -> tuple[models.Embedding, Loss]:
    words, layer = models.Embedding(WORDS, EMBED, rng=1), models.Linear(EMBED, 300, rng=2)

    def loss(graph: db.Graph, ids: np.ndarray) -> tuple[db.Node, db.Node]:
        y = layer(words(graph, ids))
        return y, F.sum(y * y)

    return words, loss


def tagger() -> tuple[models.Embedding, Loss]:
    words = models.Embedding(WORDS, EMBED, rng=1)
    lstm = models.LSTM(EMBED, HIDDEN, bidirectional=True, rng=2)
    output = models.Linear(2 * HIDDEN, TAGS, rng=3)

    def loss(graph: db.Graph, ids: np.ndarray) -> tuple[db.Node, db.Node]:
        y = lstm(words(graph, ids))
        return y, F.cross_entropy(output(y), ids % TAGS)

    return words, loss


def seq2seq() -> tuple[models.Embedding, Loss]:
    model = models.Seq2Seq(WORDS, TAGS, EMBED, HIDDEN, rng=1)

    def loss(graph: db.Graph, ids: np.ndarray) -> tuple[db.Node, db.Node]:
        y = model.loss(graph, ids, ids[: len(ids) // 2 + 1] % TAGS)
        return y, y

    return model.source_embedding, loss


def tree() -> tuple[models.Embedding, Loss]:
    words, network = models.Embedding(WORDS, EMBED, rng=1), models.BinaryTreeLSTM(EMBED, HIDDEN)
    output = models.Linear(HIDDEN, TAGS, rng=3)

    def loss(graph: db.Graph, ids: np.ndarray) -> tuple[db.Node, db.Node]:
        pairs = [(2 * k, 2 * k + 1) for k in range(len(ids) - 1)]
        _, y = network(words(graph, ids), np.array(pairs, np.int64).reshape(-1, 2))
        return y, F.cross_entropy(output(y), int(ids[0]) % TAGS)

    return words, loss


def child_sum_tree() -> tuple[models.Embedding, Loss]:
    words, network = models.Embedding(WORDS, EMBED, rng=1), models.ChildSumTreeLSTM(EMBED, HIDDEN)
    output = models.Linear(HIDDEN, TAGS, rng=3)

    def loss(graph: db.Graph, ids: np.ndarray) -> tuple[db.Node, db.Node]:
        _, y = network(words(graph, ids), [(k - 1) // 3 if k else -1 for k in range(len(ids))])
        return y, F.cross_entropy(output(y), int(ids[0]) % TAGS)

    return words, loss


def transformer() -> tuple[models.Embedding, Loss]:
    words = models.Embedding(WORDS, HIDDEN, rng=1)
    encoder = models.TransformerEncoder(
        2, HIDDEN, 4, 2 * HIDDEN, activation="gelu", dropout=0.0, rng=2
    )
    output = models.Linear(HIDDEN, TAGS, rng=3)

    def loss(graph: db.Graph, ids: np.ndarray) -> tuple[db.Node, db.Node]:
        y = encoder(words(graph, ids), causal=True)
        return y, F.cross_entropy(output(y), ids % TAGS)

    return words, loss


def images() -> tuple[models.Embedding, Loss]:
    """Four pixels of six channels a word: as many lines as words."""
    words, output = models.Embedding(WORDS, EMBED, rng=1), models.Linear(9, TAGS, rng=3)
    layers = models.Sequential(
        models.Conv2d(6, 70, 3, padding=1, rng=2), models.MaxPool2d((1, 2)), F.relu,
        models.Conv2d(70, 70, 3, padding=1, groups=35, rng=5),
        models.Conv2d(70, 9, (2, 1), stride=(2, 1), padding=(1, 0), rng=4),
        models.AvgPool2d((1, 2)),
    )  # fmt: skip

    def loss(graph: db.Graph, ids: np.ndarray) -> tuple[db.Node, db.Node]:
        y = layers(F.reshape(words(graph, ids), (len(ids), 4, 6)))
        scores = output(F.max(F.reshape(y, (-1, 9)), dim=0))
        return y, F.cross_entropy(scores, int(ids[0]) % TAGS)

    return words, loss


MODELS = (images, linear, tagger, seq2seq, tree, child_sum_tree, transformer)
HOLDS = pytest.mark.parametrize("make", MODELS)


def results(
    words: models.Embedding, loss: Loss, sentences: Sequence[np.ndarray]
) -> list[tuple[bytes, ...]]:
    """For each sentence: what it gives, its loss, and the gradient of its words."""
    words.weight.zero_grad()
    with db.Graph() as graph:
        built = [(y.keep(), own.keep()) for y, own in [loss(graph, ids) for ids in sentences]]
        graph.backward(F.sum([own for _, own in built]))
        values = [(y.value.tobytes(), own.value.tobytes()) for y, own in built]
    gradient = words.weight.grad.dense()
    return [(*value, gradient[ids].tobytes()) for value, ids in zip(values, sentences, strict=True)]


def assert_same_bits(make: Callable[[], tuple[models.Embedding, Loss]], companies: int) -> None:
    words, loss = make()
    rng = np.random.default_rng(0)
    own = np.split(rng.permutation(OWN_WORDS), np.cumsum(WATCHED)[:-1])
    alone = [results(words, loss, [ids])[0] for ids in own]
    for _ in range(companies):
        count = rng.integers(1, 12)
        others = [rng.integers(OWN_WORDS, WORDS, n) for n in rng.integers(1, 45, count)]
        watched = rng.integers(len(own))
        place = rng.integers(count + 1)
        found = results(words, loss, [*others[:place], own[watched], *others[place:]])[place]
        for name, mine, expected in zip(
            ("value", "loss", "gradient"), found, alone[watched], strict=True
        ):
            assert mine == expected, f"{name} of the sentence of {len(own[watched])} words"


@HOLDS
def test_a_sentence_has_the_same_bits_in_a_few_companies(make) -> None:
    assert_same_bits(make, 6)


@pytest.mark.exhaustive
@HOLDS
def test_a_sentence_has_the_same_bits_in_200_companies(make) -> None:
    assert_same_bits(make, 200)
