"""A sentence's loss and gradients, with dropout on, whatever sentences stand beside it.

In float64: in float32 a row of a product has other last bits in batches of other sizes.
"""

from collections import Counter

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from tests.marks import quick

VOCABULARY, WIDTH, COPIES = 7, 8, 3
RANDOM = np.random.default_rng(0)
SENTENCES = [
    (RANDOM.integers(VOCABULARY, size=n), RANDOM.integers(VOCABULARY, size=m))
    for n, m in ((0, 2), (1, 1), (2, 0), (5, 3), (9, 1), (3, 12), (17, 6), (1, 1), (0, 0))
]


class Translator(models.Module):
    def __init__(self):
        self.embed = models.Embedding(VOCABULARY, WIDTH, rng=0)
        self.transformer = models.Transformer(
            WIDTH, 2, 12, encoder_layers=1, decoder_layers=1, dropout=0.3, norm_first=True, rng=1
        )

    def loss(self, graph, source, target):
        """The mean over the words, and the nodes whose gradients are compared."""
        x, y = (self.embed(graph, ids).keep() for ids in (source, target))
        hidden = self.transformer(x, y)
        return F.cross_entropy(F.linear(hidden, self.embed.weight), target), x, y


def results(model, batch, seed):
    """The loss and gradients of each sentence of a batch, by its number and which copy it is."""
    copies: Counter[int] = Counter()
    with db.Graph(dtype="float64", seed=seed) as graph:
        built = {}
        for number in batch:
            built[number, copies[number]] = model.loss(graph, *SENTENCES[number])
            copies[number] += 1
        for loss, _, _ in built.values():
            loss.keep()
        graph.backward(F.sum([loss for loss, _, _ in built.values()]))
        return {key: (loss.value, x.gradient, y.gradient) for key, (loss, x, y) in built.items()}


@pytest.fixture(scope="module")
def model():
    return Translator().astype("float64")


@pytest.fixture(scope="module")
def alone(model):
    """The results of each sentence in a batch of nothing but copies of it."""
    return {
        seed: {
            key: found
            for number in range(len(SENTENCES))
            for key, found in results(model, [number] * COPIES, seed).items()
        }
        for seed in range(2)
    }


@pytest.mark.parametrize("block", quick([0], range(101)))
def test_a_sentence_does_not_depend_on_those_beside_it(model, alone, block):
    rng = np.random.default_rng(block)
    for _ in range(100 if block else 12):
        seed = int(rng.integers(2))
        chosen = [number for number in range(len(SENTENCES)) for _ in range(COPIES)]
        batch = rng.permutation(chosen)[: rng.integers(1, 12)].tolist()
        for key, own in results(model, batch, seed).items():
            for found, expected in zip(own, alone[seed][key], strict=True):
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_copies_of_a_sentence_and_other_seeds_draw_other_masks(alone):
    losses = [alone[seed][6, copy][0].item() for seed in range(2) for copy in range(COPIES)]
    assert len(set(losses)) == len(losses)
