"""BERT and its heads: values, losses and gradients of `transformers`, and its files again."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models import pretrained
from tests.models.pretrained import fixtures
from tests.models.pretrained.parity import assert_gradients, assert_written_again

MODELS = {
    "bert": pretrained.BertForMaskedWords,
    "bert-of-2018": pretrained.BertForMaskedWords,
    "bert-encoder-bfloat16": pretrained.Bert,
    "bert-classes": pretrained.BertForClassification,
    "bert-token-classes": pretrained.BertForTokens,
}


def of(name):
    return MODELS[name].from_pretrained(fixtures.FOLDER / name)


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_transformers(name):
    model = of(name)
    with db.Graph() as graph:
        found = []
        for sentence in fixtures.sentences(name):
            given = (graph, sentence["input_ids"], sentence["token_type_ids"])
            hidden = model(*given)
            found.append((hidden, sentence["hidden"]))
            if "pooled" in sentence:
                found.append((model.pooled(hidden), sentence["pooled"]))
            else:
                found.append((model.logits(*given), sentence["logits"]))
        for node, expected in found:
            np.testing.assert_allclose(node.value, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bert-of-2018", "bert-classes", "bert-token-classes"])
def test_losses_are_those_of_transformers(name):
    model = of(name)
    with db.Graph() as graph:
        losses = [
            model.loss(graph, sentence["input_ids"], sentence["labels"], sentence["token_type_ids"])
            for sentence in fixtures.sentences(name)
        ]
        assert float(F.sum(losses)) == pytest.approx(fixtures.loss(name), rel=1e-5)


def test_gradients_are_those_of_transformers():
    model = of("bert")

    def loss(graph, sentence):
        types = sentence["token_type_ids"]
        return model.loss(graph, sentence["input_ids"], sentence["labels"], types)

    assert_gradients(model, "bert", loss)


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"bert-of-2018"}))
def test_it_is_written_under_the_names_that_were_read(name, tmp_path):
    assert_written_again(of(name), name, tmp_path)


def test_words_that_are_not_masked_do_not_count():
    model = of("bert")
    with db.Graph() as graph:
        ids = [3, 4, 5, 6]
        some = model.loss(graph, ids, [-100, 7, -100, 8])
        logits = model.logits(graph, ids)
        expected = F.cross_entropy(logits[[1, 3]], [7, 8], reduction="sum")
        none = model.loss(graph, ids, [-100] * 4)
        assert float(some) == pytest.approx(float(expected), rel=1e-5)
        assert float(none) == 0


def test_a_sentences_vector_is_the_mean_of_its_tokens():
    model = of("bert")
    with db.Graph() as graph:
        vector, hidden = model.vector(graph, [3, 4, 5]), model(graph, [3, 4, 5])
        np.testing.assert_allclose(vector.value, hidden.value.mean(axis=0), rtol=1e-5)
        assert model.vector(graph, []).value.tolist() == [0.0] * 16


def test_an_encoder_is_read_out_of_a_checkpoint_with_a_head():
    encoder = pretrained.Bert.from_pretrained(fixtures.FOLDER / "bert", new=["pooler.{}"])
    sentence = fixtures.sentences("bert")[0]
    with db.Graph() as graph:
        found = encoder(graph, sentence["input_ids"], sentence["token_type_ids"]).value
    np.testing.assert_allclose(found, sentence["hidden"], rtol=1e-4, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"pooler\.dense\.weight"):
        pretrained.Bert.from_pretrained(fixtures.FOLDER / "bert")


def test_relative_positions_and_unknown_activations_are_refused():
    with pytest.raises(ArgumentError, match="relative positions"):
        pretrained.BertConfig(position_embedding_type="relative_key")
    with pytest.raises(ArgumentError, match="the activation is 'mish'"):
        pretrained.Bert(pretrained.BertConfig(hidden_act="mish"))


def test_a_classifiers_labels_come_back_in_the_order_of_their_scores(tmp_path):
    names = [f"kind {k}" for k in range(12)]
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = pretrained.BertConfig(
        vocab_size=5, intermediate_size=4, id2label=dict(enumerate(names)), **sizes
    )
    pretrained.BertForClassification(config).save_pretrained(tmp_path)
    again = pretrained.BertForClassification.from_pretrained(tmp_path)
    assert again.config.labels == config.labels == names and again.config.num_labels == 12
    assert pretrained.BertConfig().labels == ["LABEL_0", "LABEL_1"]
    others = {k: f"type {k}" for k in range(12)}
    again = pretrained.BertForClassification.from_pretrained(tmp_path, id2label=others)
    assert again.config.to_json()["label2id"] == {name: k for k, name in others.items()}
    with pytest.raises(ArgumentError, match=r"num_labels(.|\n)*give id2label=dict\(enumerate"):
        pretrained.BertForClassification.from_pretrained(tmp_path, num_labels=3)
    with pytest.raises(ArgumentError, match=r"id2label is (.|\n)*give id2label=dict\(enumerate"):
        pretrained.BertForClassification.from_pretrained(tmp_path, id2label=["good", "bad"])
    with pytest.raises(ArgumentError, match="target is 'kind 3'"), db.Graph() as graph:
        again.loss(graph, [1, 2], "kind 3")
