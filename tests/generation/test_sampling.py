"""Draws from a counter."""

import numpy as np
import pytest

from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.sampling import cut_of, streams, uniforms
from dynbatch.kernels.choosing.draws import draw_rows


def softmax(row):
    weights = np.exp(row - row.max())
    return weights / weights.sum()


@pytest.mark.parametrize("by_stream", [False, True])
def test_draws_have_the_distribution(by_stream):
    count, tokens = 100_000, 50
    row = np.random.default_rng(1).normal(size=tokens) * 1.5
    numbers = np.array(streams(3, count if by_stream else 1) * (1 if by_stream else count))
    steps = np.zeros(count, np.int64) if by_stream else np.arange(count)
    drawn = np.empty(count, np.int64)
    draw_rows(np.tile(row, (count, 1)), uniforms(numbers, steps), drawn)
    times = np.bincount(drawn, minlength=tokens)
    wanted = softmax(row) * count
    chi_squared = ((times - wanted) ** 2 / wanted).sum()
    assert chi_squared < 85.35  # p = 0.001 at 49 degrees of freedom


def test_a_draw_follows_from_its_stream_and_step_alone():
    numbers = np.array(streams(7, 4))
    steps = np.array([0, 5, 5, 2])
    together = uniforms(numbers, steps)
    assert [float(uniforms(numbers[k : k + 1], steps[k : k + 1])[0]) for k in range(4)] == [
        *together.tolist()
    ]
    assert (together >= 0).all() and (together < 1).all() and np.unique(together).size == 4
    assert streams(7, 4) == streams(7, 9)[:4] != streams(8, 4)


def test_what_cuts_nothing_is_known_as_such():
    assert cut_of(GenerationConfig(do_sample=True)) is None
    assert cut_of(GenerationConfig(temperature=2.0)) is None
    config = GenerationConfig(do_sample=True, temperature=2.0, top_k=3, top_p=0.5, min_p=0.1)
    assert cut_of(config) == (2, 3, 0.5, 0.1)
