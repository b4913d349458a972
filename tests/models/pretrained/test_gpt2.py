"""GPT-2: values and gradients of `transformers`, its files again, refusals."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, VocabularyError
from dynbatch.models import pretrained
from tests.models.pretrained import fixtures
from tests.models.pretrained.parity import assert_gradients, assert_written_again

NAMES = ("gpt2", "gpt2-bfloat16", "gpt2-of-2019")


def of(name):
    return pretrained.GPT2.from_pretrained(fixtures.FOLDER / name)


@pytest.mark.parametrize("name", NAMES)
def test_values_below_the_logits_are_those_of_transformers(name):
    model = of(name)
    with db.Graph() as graph:
        for sentence in fixtures.sentences(name):
            found = model(graph, sentence["input_ids"]).value
            np.testing.assert_allclose(found, sentence["hidden"], rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_transformers():
    model = of("gpt2")

    def loss(graph, sentence):
        logits = model.logits(graph, sentence["input_ids"])
        return F.cross_entropy(logits, sentence["labels"], reduction="sum")

    assert_gradients(model, "gpt2", loss)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-bfloat16"])
def test_it_is_written_under_the_names_that_were_read(name, tmp_path):
    assert_written_again(of(name), name, tmp_path)


def test_published_files_without_a_prefix_are_written_as_transformers_does(tmp_path):
    of("gpt2-of-2019").save_pretrained(tmp_path)
    assert_written_again(pretrained.GPT2.from_pretrained(tmp_path), "gpt2", tmp_path)


def test_the_loss_is_that_of_each_token_after_those_before_it():
    model, ids = of("gpt2"), [3, 9, 4, 4]
    with db.Graph() as graph:
        logits = model.logits(graph, ids)
        expected = F.cross_entropy(logits[:3], ids[1:], reduction="mean")
        found = model.loss(graph, ids, reduction="mean")
        assert float(found) == pytest.approx(float(expected), rel=1e-5)
        assert [float(model.loss(graph, short)) for short in ([], [5])] == [0, 0]


def test_logits_are_not_stored_in_training():
    model = of("gpt2").train()
    with db.Graph() as graph:
        graph.backward(F.sum([model.loss(graph, ids) for ids in ([3, 4, 5], [6, 7])]))
        assert "LinearCrossEntropy +grad" in graph.explain()


def test_a_sentence_above_the_longest_is_refused():
    with db.Graph() as graph, pytest.raises(VocabularyError, match="48"):
        of("gpt2")(graph, [3] * 49)


@pytest.mark.parametrize(
    "variant",
    [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"add_cross_attention": True},
    ],
)
def test_variants_of_attention_are_refused(variant):
    with pytest.raises(ArgumentError, match="a variant of attention"):
        pretrained.GPT2Config(**variant)
