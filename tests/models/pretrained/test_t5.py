"""T5: values and gradients of `transformers`, both versions' files again, refusals."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models import pretrained
from tests.models.pretrained import fixtures
from tests.models.pretrained.parity import assert_gradients, assert_written_again

NAMES = ("t5", "t5-of-2021", "t5-v1_1", "t5-v1_1-bfloat16")


def of(name):
    return pretrained.T5.from_pretrained(fixtures.FOLDER / name)


@pytest.mark.parametrize("name", NAMES)
def test_values_below_the_logits_are_those_of_transformers(name):
    model = of(name)
    with db.Graph() as graph:
        for sentence in fixtures.sentences(name):
            found = model(graph, sentence["input_ids"], sentence["decoder_input_ids"]).value
            np.testing.assert_allclose(found, sentence["hidden"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["t5", "t5-v1_1"])
def test_gradients_are_those_of_transformers(name):
    model = of(name)

    def loss(graph, sentence):
        logits = model.logits(graph, sentence["input_ids"], sentence["decoder_input_ids"])
        return F.cross_entropy(logits, sentence["labels"], reduction="sum")

    assert_gradients(model, name, loss)


@pytest.mark.parametrize("name", ["t5", "t5-v1_1", "t5-v1_1-bfloat16"])
def test_it_is_written_under_the_names_that_were_read(name, tmp_path):
    assert_written_again(of(name), name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_config_json_says_whether_the_output_is_the_table_of_words(name, tmp_path):
    model, is_tied = of(name), "v1_1" not in name
    assert (model.output.weight is model.word.weight) == is_tied
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["tie_word_embeddings"] == is_tied


def test_an_output_beside_the_table_of_words_is_not_taken_for_it(tmp_path):
    of("t5-v1_1").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    with pytest.raises(CheckpointError, match=r"lm_head.weight' differs from 'shared.weight'"):
        pretrained.T5.from_pretrained(tmp_path)


def test_the_decoder_begins_with_the_padding_id_or_the_one_that_is_given():
    model, source, target = of("t5"), [4, 9, 1], [7, 7, 1]
    for given, start in ((None, 0), (5, 5)):
        object.__setattr__(model.config, "decoder_start_token_id", given)
        with db.Graph() as graph:
            logits = model.logits(graph, source, [start, 7, 7])
            expected = F.cross_entropy(logits, target, reduction="sum")
            assert float(model.loss(graph, source, target)) == pytest.approx(float(expected))
            assert float(model.loss(graph, source, [])) == 0


def test_logits_are_not_stored_in_training():
    model = of("t5").train()
    with db.Graph() as graph:
        losses = [model.loss(graph, [4, 1], target) for target in ([5, 1], [6, 7, 8, 1])]
        graph.backward(F.sum(losses))
        assert "LinearCrossEntropy +grad" in graph.explain()


def test_an_unknown_feed_forward_part_is_refused():
    with pytest.raises(ArgumentError, match="feed_forward_proj is 'gated-mish'"):
        pretrained.T5Config(feed_forward_proj="gated-mish")


def test_version_5_of_transformers_ties_the_output_unless_the_files_have_another(tmp_path):
    model = of("t5-unscaled")  # made from tie_word_embeddings=False, and written as tied
    assert model.output.weight is model.word.weight and not model.config.is_scaled
    assert of("t5-v1_1-bfloat16").output.weight is not of("t5-v1_1-bfloat16").word.weight
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tie_word_embeddings"] is True and config["scale_decoder_outputs"] is False
    theirs = load_file(tmp_path / "model.safetensors")
    for head, is_tied in ((theirs["shared.weight"], True), (theirs["shared.weight"] + 1, False)):
        save_file({**theirs, "lm_head.weight": head}, tmp_path / "model.safetensors")
        again = pretrained.T5.from_pretrained(tmp_path)
        assert (again.output.weight is again.word.weight) == is_tied
        assert np.array_equal(again.output.weight.value, head) and not again.config.is_scaled
    with pytest.raises(CheckpointError, match=r"lm_head.weight' differs from 'shared.weight'"):
        pretrained.T5.from_pretrained(tmp_path, tie_word_embeddings=True)


def test_whether_the_output_is_scaled_follows_from_its_tie_unless_it_is_said():
    for scale, tied, is_scaled in (
        (None, True, True), (None, False, False), (False, True, False), (True, False, True)
    ):  # fmt: skip
        config = pretrained.T5Config(tie_word_embeddings=tied, scale_decoder_outputs=scale)
        assert config.is_scaled == is_scaled
        assert config.to_json().get("scale_decoder_outputs") is scale  # never null
        assert ("scale_decoder_outputs" in config.to_json()) == (scale is not None)
