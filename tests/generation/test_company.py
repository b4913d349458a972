"""Results do not depend on the prompts beside them, nor on when these come and go."""

import numpy as np
import pytest

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
from tests.generation.tiny_models import VOCAB, tiny

pytestmark = pytest.mark.slow

CONFIGS = {"greedy": GREEDY, "samples": SAMPLES, "beams": BEAMS}


@pytest.fixture
def no_c():
    with reference_only():
        yield


def assert_all_alike(model, config, given, room, seeds):
    with Engine(model, config, batch_invariant=True)._products():  # without C tested once
        assert_all_equal(model, config, given, room, seeds)


def assert_all_equal(model, config, given, room, seeds):
    expected = alone(model, config, given)
    assert len({one.tokens for found in expected for one in found}) >= 2
    for found in [
        together(model, config, given),
        together(model, config, given, step_tokens=40),
        continuously(model, config, given, room),
        *[joining(model, config, given, seed) for seed in seeds],
    ]:
        assert numbers(found) == numbers(expected)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    "name", ["gpt2", "marian", "lstm", "matrix states", "writer", "seq2seq", "window"]
)
def test_results_are_the_same_alone_together_and_joined_at_random(name, config):
    assert_all_alike(tiny(name), CONFIGS[config], prompts(), room=3, seeds=range(2))


@pytest.mark.parametrize("name", ["gpt2", "seq2seq", "t5"])
def test_without_c_results_are_the_same_where_prompts_join_at_random(no_c, name):
    model, given = tiny(name), prompts(3)
    with Engine(model, batch_invariant=True)._products():
        assert numbers(joining(model, GREEDY, given, 0)) == numbers(alone(model, GREEDY, given))


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "seq2seq", "t5"])
def test_results_of_64_prompts_are_the_same_in_any_company(name, config):
    if reason():
        pytest.skip(reason())
    assert_all_alike(tiny(name), CONFIGS[config], prompts_64(), room=8, seeds=range(4))


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "seq2seq", "t5"])
def test_without_c_results_of_64_prompts_are_the_same_in_any_company(no_c, name, config):
    assert_all_alike(tiny(name), CONFIGS[config], prompts_64(), room=8, seeds=range(4))


def prompts_64():
    rng = np.random.default_rng(64)
    lengths = [1, 200, *rng.integers(1, 201, 62)]
    return [rng.integers(0, VOCAB, n) for n in lengths]
