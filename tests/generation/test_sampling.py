"""Cut distributions, and draws from a counter."""

import numpy as np
import pytest

from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.sampling import cut, draw, streams, uniforms


def softmax(row):
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def expected(row, config):
    """One row, sorted as a whole."""
    row = row / config.temperature
    order = np.argsort(-row, kind="stable")
    kept = np.ones(row.size, bool)
    if config.top_k:
        kept &= row >= row[order[min(config.top_k, row.size) - 1]]
    if config.top_p < 1:
        weights = np.exp(np.where(kept, row, -np.inf) - row.max())
        before = np.cumsum(weights[order]) - weights[order]
        kept[order[max(1, int((before < config.top_p * weights.sum()).sum())) :]] = False
    if config.min_p:
        p = softmax(np.where(kept, row, -np.inf))
        kept &= p >= config.min_p * p.max()
    return np.where(kept, row, -np.inf)


@pytest.mark.parametrize("seed", range(40))
def test_each_row_is_cut_as_if_it_was_sorted(seed):
    rng = np.random.default_rng(seed)
    config = GenerationConfig(
        temperature=rng.choice([0.5, 1.0, 1.7]), top_k=int(rng.choice([0, 1, 7, 5000])),
        top_p=rng.choice([1.0, 0.95, 0.5, 0.01]), min_p=rng.choice([0.0, 0.05, 0.4]),
    )  # fmt: skip
    logits = rng.normal(size=(5, int(rng.choice([4, 300, 3000])))) * rng.choice([0.1, 1, 6])
    if seed % 4 == 0:
        logits = np.round(logits)  # equal ones: the first of them stay
    found = cut(logits.copy(), config)
    for row, result in zip(logits, found, strict=True):
        np.testing.assert_allclose(result, expected(row, config), rtol=1e-12)


def test_a_row_does_not_depend_on_the_rows_beside_it():
    rng = np.random.default_rng(0)
    config = GenerationConfig(temperature=0.7, top_k=40, top_p=0.9, min_p=0.01)
    logits = rng.normal(size=(6, 500)).astype(np.float32)
    together = cut(logits.copy(), config)
    for k in range(6):
        alone = cut(logits[k : k + 1].copy(), config)
        assert alone.tobytes() == together[k : k + 1].tobytes()


@pytest.mark.parametrize("by_stream", [False, True])
def test_draws_have_the_distribution(by_stream):
    count, tokens = 100_000, 50
    row = np.random.default_rng(1).normal(size=tokens) * 1.5
    numbers = np.array(streams(3, count if by_stream else 1) * (1 if by_stream else count))
    steps = np.zeros(count, np.int64) if by_stream else np.arange(count)
    drawn = draw(np.broadcast_to(row, (count, tokens)), uniforms(numbers, steps))
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


def test_what_was_cut_off_is_never_drawn():
    row = np.array([-np.inf, 0.0, -np.inf, 3.0, -np.inf])
    ends = np.array([0.0, np.nextafter(1, 0)])
    assert draw(np.stack([row, row]), ends).tolist() == [1, 3]
