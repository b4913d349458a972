"""Messages of `dynbatch generate` on prompts whose results end early, or that fail."""

import json
import math

import numpy as np
import pytest

from dynbatch.commands.main import main
from dynbatch.commands.writing import Writing
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.requests import Generated
from dynbatch.models.pretrained import GPT2, GPT2Config


@pytest.fixture
def model():
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2(GPT2Config(vocab_size=20, **sizes), rng=0)


@pytest.fixture
def generate(model, tmp_path, monkeypatch):
    """The command, with the model as it is by then; more steps than it needs are an error."""

    def run(*arguments):
        model.save_pretrained(tmp_path / "model")
        folder = str(tmp_path / "model")
        return main(["generate", folder, *arguments, "--tokenizer", "ids", "--quiet"])

    steps, step = [], Engine.step

    def counted(engine):
        steps.append(engine)
        assert len(steps) < 200, "the command goes on for ever"
        return step(engine)

    monkeypatch.setattr(Engine, "step", counted)
    return run


@pytest.mark.parametrize("options", [[], ["--num-beams", "3"], ["--num-beams", "3", "-n", "2"]])
def test_a_result_that_no_token_may_follow_is_written_and_told_of(options, generate, capsys):
    options = [*options, "--max-new-tokens", "30", "--no-repeat-ngram-size", "1"]
    assert generate("1 2", "3", *options, "--json") == 0
    printed = capsys.readouterr()
    objects = [json.loads(line) for line in printed.out.splitlines()]
    for used, found in zip(({1, 2}, {3}), objects, strict=True):
        assert len(found["results"]) == (2 if "-n" in options else 1)
        for one in found["results"]:
            assert one["reason"] == "no token" and {*one["tokens"]} == {*range(20)} - used
    said = "tokens none is left that may follow, so the result ends there\n"
    assert printed.err == f"warning: prompt 1: after 18 {said}warning: prompt 2: after 19 {said}"
    assert generate("1 2", *options) == 0
    assert len(capsys.readouterr().out.split()) == 18 * (2 if "-n" in options else 1)


def test_a_prompt_with_fewer_results_than_asked_for_has_as_many_lines(generate, tmp_path, capsys):
    settings = {"allowed_tokens": [5], "eos_token_id": 5, "num_beams": 3, "max_new_tokens": 4}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    assert generate("1", "2", "-n", "3") == 0
    assert capsys.readouterr().out == "\n" * 6


@pytest.mark.parametrize("options", [[], ["--num-beams", "3"], ["--top-k", "3"]])
def test_weights_that_are_nan_are_an_error(options, model, generate, capsys):
    for parameter in model.parameters():
        parameter.assign(np.full(parameter.shape, np.nan))
    assert generate("1 2", "3", *options, "--json") == 1
    printed = capsys.readouterr()
    assert "NaN" not in printed.out.replace("are NaN or infinite", "")
    assert [json.loads(line)["results"] for line in printed.out.splitlines()] == [[], []]
    message = "error: prompt {0}: Engine: request {1}: the model's logits of token 1 are NaN"
    for k in range(2):
        assert message.format(k + 1, k) in printed.err
    assert generate("1 2", *options) == 1
    assert capsys.readouterr().out == ""


def test_numbers_that_json_does_not_have_are_null():
    impossible = Generated((7, 3), (-math.inf, -0.5), -math.inf, "length")
    line = Writing(None, None, GenerationConfig(), [])._lines("x", [impossible], True, False)
    (one,) = json.loads(line, parse_constant=pytest.fail)["results"]
    assert one["log_probs"] == [None, -0.5] and one["score"] is one["log_prob"] is None
