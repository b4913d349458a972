"""Marian: values, losses and gradients of `transformers`, and its files again."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.models.pretrained import Marian, MarianConfig
from tests.models.pretrained import fixtures
from tests.models.pretrained.parity import assert_gradients, assert_written_again

NAMES = ("marian", "marian-bfloat16", "marian-of-2020")


def of(name):
    return Marian.from_pretrained(fixtures.FOLDER / name)


def loss_of(model):
    def loss(graph, sentence):
        logits = model.logits(graph, sentence["input_ids"], sentence["decoder_input_ids"])
        return F.cross_entropy(logits, sentence["labels"], reduction="sum")

    return loss


@pytest.mark.parametrize("name", NAMES)
def test_values_and_losses_are_those_of_transformers(name):
    model = of(name)
    with db.Graph() as graph:
        for sentence in fixtures.sentences(name):
            given = (graph, sentence["input_ids"], sentence["decoder_input_ids"])
            for node, key in ((model(*given), "hidden"), (model.logits(*given), "logits")):
                np.testing.assert_allclose(node.value, sentence[key], rtol=1e-4, atol=1e-4)
        losses = [loss_of(model)(graph, sentence) for sentence in fixtures.sentences(name)]
        assert float(F.sum(losses)) == pytest.approx(fixtures.loss(name), rel=1e-5)


def test_gradients_are_those_of_transformers():
    model = of("marian")
    start = {"model.shared.weight": model.config.decoder_start_token_id}
    assert_gradients(model, "marian", loss_of(model), padding=start)


@pytest.mark.parametrize("name", ["marian", "marian-bfloat16"])
def test_it_is_written_under_the_names_that_were_read(name, tmp_path):
    assert_written_again(of(name), name, tmp_path)


def test_the_decoder_begins_with_the_padding_word():
    model = of("marian")
    source, target = [5, 6, 0], [7, 8, 0]
    with db.Graph() as graph:
        logits = model.logits(graph, source, [39, 7, 8])
        expected = F.cross_entropy(logits, target, reduction="sum")
        assert float(model.loss(graph, source, target)) == pytest.approx(float(expected), rel=1e-6)
        assert float(model.loss(graph, source, [])) == 0


def test_two_tables_of_words_are_refused():
    with pytest.raises(ArgumentError, match="several tables of words"):
        MarianConfig(share_encoder_decoder_embeddings=False)
    with pytest.raises(ArgumentError, match="several tables of words"):
        MarianConfig(decoder_vocab_size=7)
