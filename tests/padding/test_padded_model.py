"""A padded model computes what its model computes: loss and all gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.padding import (
    IGNORED,
    LanguageModel,
    PaddedModel,
    PaddingError,
    Tagger,
    lengthened,
    pad_ids,
    pad_model,
)

WORDS, TAGS = 20, 6
LENGTHS = ((3, 5), (1, 0), (0, 3), (9, 2))


def loss_and_gradients(
    model: models.Module,
    losses: Callable[[db.Graph], list[db.Node]],
    collect: Callable[[], None] = lambda: None,
) -> tuple[float, dict[str, Any]]:
    found = {}
    with db.Graph(dtype="float64") as graph:
        loss = F.mean(losses(graph))
        graph.backward(loss)
    collect()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.dense() if isinstance(gradient, db.RowSparse) else gradient.copy()  # type: ignore[union-attr]
        parameter.grad = None
    return float(loss.value), found


def assert_equal(model: models.Module, padded: PaddedModel, examples: Sequence[Any]) -> None:
    model.astype("float64")
    own, expected = loss_and_gradients(
        model,
        lambda graph: [model.loss(graph, *example) for example in examples],  # type: ignore[attr-defined]
    )
    examples_padded = padded.batch(examples)
    assert len({tuple([np.shape(part) for part in example]) for example in examples_padded}) == 1
    loss, gradients = loss_and_gradients(
        model,
        lambda graph: [padded.loss(graph, *example) for example in examples_padded],
        padded.collect,
    )
    assert loss == pytest.approx(own, rel=1e-13)
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-10, atol=1e-14, err_msg=name)


def ids(rng: np.random.Generator, size: int, count: int = WORDS) -> Any:
    return rng.integers(count, size=size)


def pairs() -> list[Any]:
    rng = np.random.default_rng(0)
    return [(ids(rng, n), ids(rng, m)) for n, m in LENGTHS]


def test_padded_tagger_of_two_layers_equals_the_unpadded() -> None:
    rng = np.random.default_rng(0)
    examples = [(ids(rng, n), ids(rng, n, TAGS)) for n, _ in LENGTHS]
    model = Tagger(WORDS, TAGS, embed=4, hidden=5, layers=2, rng=1)
    assert_equal(model, pad_model(model, model.loss), examples)


def test_padded_language_model_equals_the_unpadded() -> None:
    model = LanguageModel(WORDS, embed=4, hidden=5, layers=2, rng=1)
    assert_equal(model, pad_model(model, model.loss), [example[:1] for example in pairs()])


@pytest.mark.parametrize("attention", ["additive", "general"])
@pytest.mark.parametrize("bridge", [True, False])
def test_padded_seq2seq_equals_the_unpadded(attention: str, bridge: bool) -> None:
    layers = 2 if bridge else 1
    model = models.Seq2Seq(WORDS, WORDS, 4, 6, layers, attention, bridge=bridge, rng=1)
    assert_equal(model, pad_model(model, model.loss), pairs())


class Encoder(models.Module):
    """A layer of a Transformer; `seen` hides keys that are padding."""

    def __init__(self) -> None:
        self.embedding = models.Embedding(WORDS, 8, rng=1)
        self.qkv = models.Linear(8, 24, rng=2)
        self.norm = models.LayerNorm(8)
        self.up, self.down = models.Linear(8, 16, rng=3), models.Linear(16, 8, rng=4)
        self.output = models.Linear(8, TAGS, rng=5)

    def loss(self, graph: db.Graph, words: Any, tags: Any, seen: Any = None) -> db.Node:
        x = self.embedding(graph, words)
        q, k, v = F.chunk(self.qkv(x), 3)
        x = self.norm(x + F.attention(q, k, v, heads=2, mask=seen))
        x = x + self.down(F.gelu(self.up(x)))
        return F.cross_entropy(self.output(x), tags)


def test_masked_transformer_layer_equals_the_unpadded() -> None:
    rng = np.random.default_rng(0)
    examples = [(ids(rng, n), ids(rng, n, TAGS)) for n in (3, 1, 9)]

    def pad(example: Any, longest: tuple[int, ...]) -> Any:
        seen = np.arange(longest[0]) < len(example[0])
        return (*pad_ids(example, longest), seen)

    model = Encoder()
    assert_equal(model, pad_model(model, model.loss, pad), examples)


def test_default_padding_is_exact_where_nothing_looks_ahead() -> None:
    class Causal(models.Module):
        def __init__(self) -> None:
            self.embedding = models.Embedding(WORDS, 4, rng=1)
            self.lstm = models.LSTM(4, 5, rng=2)
            self.output = models.Linear(5, TAGS, rng=3)

        def loss(self, graph: db.Graph, words: Any, tags: Any) -> db.Node:
            return F.cross_entropy(self.output(self.lstm(self.embedding(graph, words))), tags)

    rng = np.random.default_rng(0)
    examples = [(ids(rng, n).tolist(), ids(rng, n, TAGS).tolist()) for n, _ in LENGTHS]
    model = Causal()
    assert_equal(model, pad_model(model, model.loss), examples)


def test_own_loss_function_of_a_known_model_is_not_replaced_by_its_padded_form() -> None:
    model = Tagger(WORDS, TAGS, embed=4, hidden=5)

    def loss(graph: db.Graph, words: Any, tags: Any) -> db.Node:
        return model.loss(graph, words, tags) * 2.0

    assert pad_model(model, loss).loss is loss


def test_sequences_are_lengthened_by_zeros_and_targets_by_what_does_not_count() -> None:
    words, tags, number = pad_ids(([7, 8], [1, 2], 3.0), (4, 3))
    assert words.tolist() == [7, 8, 0, 0]
    assert tags.tolist() == [1, 2, IGNORED]
    assert number == 3.0
    (alone,) = pad_ids([5], (2,))
    assert alone.tolist() == [5, 0]
    assert lengthened(np.ones((1, 2)), 2, 0).tolist() == [[1, 1], [0, 0]]
    assert lengthened([], 2, 0).dtype == np.int64


def test_tree_cannot_be_padded_and_the_error_says_why() -> None:
    with pytest.raises(PaddingError, match="no sequence of tokens") as error:
        pad_model(Encoder(), Encoder().loss).batch([([1, [2, 3]],)])
    assert "pad=" in str(error.value)
