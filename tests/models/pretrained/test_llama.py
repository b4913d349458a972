"""Llama: values and gradients of `transformers`, both forms of its rotary settings, its files."""

import json

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.models import pretrained
from tests.models.pretrained import fixtures
from tests.models.pretrained.parity import assert_gradients, assert_written_again

NAMES = ("llama", "llama-head-dim", "llama-tied-bfloat16")


def of(name, **changes):
    return pretrained.Llama.from_pretrained(fixtures.FOLDER / name, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_values_below_the_logits_are_those_of_transformers(name):
    model = of(name)
    with db.Graph() as graph:
        for sentence in fixtures.sentences(name):
            found = model(graph, sentence["input_ids"]).value
            np.testing.assert_allclose(found, sentence["hidden"], rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_transformers():
    model = of("llama")

    def loss(graph, sentence):
        logits = model.logits(graph, sentence["input_ids"])
        return F.cross_entropy(logits, sentence["labels"], reduction="sum")

    assert_gradients(model, "llama", loss)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_written_under_the_names_that_were_read(name, tmp_path):
    assert_written_again(of(name), name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_rotary_settings_are_read_in_both_forms_and_written_in_that_of_every_version(
    name, tmp_path
):
    model = of(name)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["rope_theta"] == 10000.0 and "rope_parameters" not in written
    assert written["rope_scaling"]["rope_type"] == (
        "default" if name == "llama-head-dim" else "llama3"
    )
    again = pretrained.Llama.from_pretrained(tmp_path).config
    assert (again.rope_theta, again.rope_scaling) == (10000.0, model.config.rope_scaling)


def test_scaling_of_the_rotary_frequencies_shows_in_the_values():
    scaled, plain = of("llama"), of("llama")
    for layer in plain.decoder.layers:
        layer.self_attn.rotary["scaling"] = None
    with db.Graph() as graph:
        long, short = list(range(3, 39)), [3, 4]
        found = [abs(scaled(graph, x).value - plain(graph, x).value).max() for x in (long, short)]
    assert found[0] > 0.1 > found[1]


def test_the_loss_is_that_of_each_token_after_those_before_it():
    model, ids = of("llama"), [3, 9, 4, 4]
    with db.Graph() as graph:
        expected = F.cross_entropy(model.logits(graph, ids)[:3], ids[1:], reduction="sum")
        assert float(model.loss(graph, ids)) == pytest.approx(float(expected), rel=1e-5)
        assert [float(model.loss(graph, short)) for short in ([], [5])] == [0, 0]


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_theta": 0.0},
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
        {"others": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}}},
        {"others": {"rope_parameters": [1]}},
    ],
)
def test_rotary_settings_that_cannot_be_followed_are_refused_when_they_are_read(settings):
    with pytest.raises(ArgumentError, match=r"rope_theta is|scaling of type|rope_parameters is"):
        pretrained.LlamaConfig(**settings)


def test_other_activations_are_refused():
    config = pretrained.LlamaConfig(hidden_act="mish")
    with pytest.raises(ArgumentError, match="the activation is 'mish'"):
        pretrained.Llama(config)
