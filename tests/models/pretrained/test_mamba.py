"""Mamba-2: a language model of states; `random_configurations` compares it with `transformers`."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models.pretrained import Mamba2Config, Mamba2LanguageModel, load_pretrained

SIZES = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 4,
    "state_size": 3, "n_groups": 2,
}  # fmt: skip
SENTENCES = [[3, 9, 4, 17, 5], [7], [2, 2, 8]]


def logits(model, sentences):
    with db.Graph(grad=False) as graph:
        return graph.values([model.logits(graph, ids) for ids in sentences])


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_folder_of_either_age_is_read_as_it_was_written(is_tied, tmp_path):
    config = Mamba2Config(time_step_limit=[0.01, {"__float__": "Infinity"}], **SIZES,
                          tie_word_embeddings=is_tied, use_bias=True)  # fmt: skip
    model = Mamba2LanguageModel(config, rng=0)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["time_step_limit"] == [0.01, {"__float__": "Infinity"}]
    state = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in state) != is_tied
    state["backbone.embedding.weight"] = state.pop("backbone.embeddings.weight")
    save_file(state, tmp_path / "model.safetensors")  # as in version 4.44 of `transformers`
    read = load_pretrained(tmp_path)
    assert read.layers[0].mixer.dt_limit == (0.01, np.inf)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(read.state_dict()[name], value)


def test_a_sentence_has_its_logits_in_any_company_and_token_by_token():
    config = Mamba2Config(**SIZES | {"num_hidden_layers": 1})
    model = Mamba2LanguageModel(config, rng=0).eval()
    together = logits(model, SENTENCES)
    for ids, values in zip(SENTENCES, together, strict=True):
        np.testing.assert_allclose(logits(model, [ids])[0], values, rtol=0, atol=2e-5)
    results = db.generate(model, SENTENCES, max_new_tokens=5)
    for ids, (best, *_) in zip(SENTENCES, results, strict=True):
        (values,) = logits(model, [[*ids, *best.tokens[:-1]]])
        assert values[len(ids) - 1 :].argmax(1).tolist() == list(best.tokens)


def test_its_projections_are_adapted_and_trained():
    model = Mamba2LanguageModel(Mamba2Config(**SIZES), rng=0).train()
    names = models.add_adapter(model, models.LoraConfig(r=2, target_modules="all-linear"))
    assert names[:2] == ["backbone.layers.0.mixer.in_proj", "backbone.layers.0.mixer.out_proj"]
    with db.Graph() as graph:
        loss = F.sum([model.loss(graph, ids) for ids in SENTENCES])
        assert len(graph) <= 10 * len(SENTENCES) + 1 and "inlined" not in graph.explain()
        graph.backward(loss)
    with_gradients = [name for name, p in model.named_parameters() if p.grad is not None]
    assert len(with_gradients) == 8 and all(["lora_" in name for name in with_gradients])


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"hidden_act": "gelu"}, "choose a checkpoint without it"),
        ({"head_dim": 3}, "num_heads · head_dim is expand · hidden_size"),
        ({"n_groups": 3}, "groups divide heads"),
        ({"time_step_limit": [0.0]}, "dt_limit"),
        ({"time_step_limit": ["a", {}]}, "dt_limit"),
        ({"time_step_limit": [0.0, {"__float__": "b"}]}, "dt_limit"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(settings, fix, tmp_path):
    with pytest.raises(ArgumentError, match=fix):
        Mamba2LanguageModel(Mamba2Config(**SIZES | settings))
    Mamba2LanguageModel(Mamba2Config(**SIZES), rng=0).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(CheckpointError, match=fix):
        load_pretrained(tmp_path)
