"""Generation whose pages keep bfloat16."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch.errors import ArgumentError
from dynbatch.generation.engine import Engine
from dynbatch.kernels.c.runtime.library import reason, reference_only
from tests.generation.companies import (
    BEAMS,
    GREEDY,
    SAMPLES,
    alone,
    continuously,
    joining,
    numbers,
    prompts,
    together,
)
from tests.generation.tiny_models import tiny

SHORT = {"precision": "bfloat16"}
FEW = GREEDY.changed(max_new_tokens=3)


@pytest.mark.skipif(bool(reason()), reason="without C products depend on their company")
@pytest.mark.parametrize(
    ("name", "config"),
    [("gpt2", BEAMS), ("window", SAMPLES), ("writer", GREEDY), ("t5", GREEDY)],
)
def test_results_are_the_same_alone_and_joined_at_random(name, config):
    model, given = tiny(name), prompts(3)
    expected = numbers(alone(model, config, given, **SHORT))
    assert numbers(continuously(model, config, given, 3, **SHORT)) == expected
    assert numbers(joining(model, config, given, 0, **SHORT)) == expected


@pytest.mark.parametrize("name", ["gpt2", "writer", "t5"])
def test_logits_are_near_those_of_float32_with_and_without_c(name):
    model, given = tiny(name, scale=0.2), prompts(3)
    found = [together(model, FEW, given, **options) for options in ({}, SHORT)]
    with reference_only():
        found.append(together(model, FEW, given, **SHORT))
    exact, short, in_numpy = [
        np.concatenate([one.log_probs for (one,) in results]) for results in found
    ]
    assert (exact != short).any()
    np.testing.assert_allclose(short, exact, rtol=0, atol=0.02)
    np.testing.assert_allclose(short, in_numpy, rtol=0, atol=1e-3)


def test_a_model_keeps_half_the_bytes_in_bfloat16():
    peaks = []
    for options in ({}, SHORT):
        engine = Engine(tiny("gpt2"), GREEDY, **options)
        engine.add(np.zeros(100, int))
        list(engine.run())
        peaks.append(engine.memory_use().peak)
    assert peaks[1] * 2 == peaks[0]


def test_only_numbers_of_float32_are_kept_in_bfloat16():
    with pytest.raises(ArgumentError, match="precision is 'float16'"):
        Engine(tiny("gpt2"), precision="float16")
    with pytest.raises(ArgumentError, match="precision='bfloat16' for numbers of float64"):
        db.generate(tiny("gpt2").astype("float64"), [[1]], **SHORT)
