"""RoBERTa and its heads: values, losses and gradients of `transformers`, and its files again."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import VocabularyError
from dynbatch.models import pretrained
from tests.models.pretrained import fixtures
from tests.models.pretrained.parity import assert_gradients, assert_written_again

MODELS = {
    "roberta": pretrained.RobertaForMaskedWords,
    "roberta-of-2019": pretrained.RobertaForMaskedWords,
    "roberta-classes-bfloat16": pretrained.RobertaForClassification,
}


def of(name):
    return MODELS[name].from_pretrained(fixtures.FOLDER / name)


@pytest.mark.parametrize("name", MODELS)
def test_values_and_losses_are_those_of_transformers(name):
    model, losses = of(name), []
    with db.Graph() as graph:
        for sentence in fixtures.sentences(name):
            ids = sentence["input_ids"]
            for node, key in ((model(graph, ids), "hidden"), (model.logits(graph, ids), "logits")):
                np.testing.assert_allclose(node.value, sentence[key], rtol=1e-4, atol=1e-4)
            losses.append(model.loss(graph, ids, sentence["labels"]))
        assert float(F.sum(losses)) == pytest.approx(fixtures.loss(name), rel=1e-5)


def test_gradients_are_those_of_transformers():
    model = of("roberta")

    def loss(graph, sentence):
        return model.loss(graph, sentence["input_ids"], sentence["labels"])

    assert_gradients(model, "roberta", loss)


@pytest.mark.parametrize("name", ["roberta", "roberta-classes-bfloat16"])
def test_it_is_written_under_the_names_that_were_read(name, tmp_path):
    assert_written_again(of(name), name, tmp_path)


def test_an_encoder_and_a_tagger_are_read_out_of_a_checkpoint_with_a_head():
    name = "roberta-of-2019"
    encoder = pretrained.Roberta.from_pretrained(fixtures.FOLDER / name)
    tagger = pretrained.RobertaForTokens.from_pretrained(
        fixtures.FOLDER / name, new=["classifier.{}"]
    )
    sentence = fixtures.sentences(name)[0]
    with db.Graph() as graph:
        for model in (encoder, tagger):
            found = model(graph, sentence["input_ids"]).value
            np.testing.assert_allclose(found, sentence["hidden"], rtol=1e-4, atol=1e-4)
        assert tagger.logits(graph, [5, 6, 7]).value.shape == (3, 2)


def test_the_longest_sentence_is_two_shorter_than_the_table():
    model = of("roberta")
    with db.Graph() as graph:
        assert model(graph, [3] * 46).shape == (46, 16)
        with pytest.raises(
            VocabularyError, match=r"Roberta[A-Za-z]*: 47 tokens(.|\n)*most 46(.|\n)*ids\[:45\]"
        ):
            model(graph, [3] * 47)


def test_a_classifier_begins_from_an_encoder_whose_pooler_it_does_without(tmp_path):
    config = pretrained.RobertaConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    encoder = pretrained.Roberta(config)
    encoder.save_pretrained(tmp_path)
    new = ["classifier.{}", "pooler.{}"]
    model = pretrained.RobertaForClassification.from_pretrained(tmp_path, new=new)
    words = [each.embeddings.word.weight.value for each in (model, encoder)]
    assert np.array_equal(*words)
