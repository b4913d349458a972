"""Beams against a search that keeps everything in lists."""

from itertools import product

import numpy as np
import pytest

from dynbatch.generation.beams import Beams
from dynbatch.generation.config import GenerationConfig

V = 7


def log_probs_after(tokens, seed):
    """Log-probabilities that follow from the tokens so far."""
    rng = np.random.default_rng([seed, *tokens])
    row = rng.normal(size=V) * 2
    return row - np.log(np.exp(row).sum())


def search(config, limit, seed, **options):
    beams = Beams(config, limit, **options)
    steps = 0
    while not beams.is_done:
        rows = np.array([log_probs_after(tokens, seed) for tokens in beams.tokens])
        every = np.broadcast_to(np.arange(V), rows.shape)
        parents, tokens = beams.extend(every, rows, rows)
        assert len(parents) == len(tokens) == (0 if beams.is_done else len(beams.tokens))
        steps += 1
    return beams.results(), steps


def by_lists(config, limit, seed):
    """The rules of the docstring, one after the other."""
    live, ended = [((), 0.0)], []
    for length in range(1, limit + 1):
        extensions = [
            ((*tokens, token), total + log_probs_after(tokens, seed)[token])
            for tokens, total in live
            for token in range(V)
        ]
        extensions.sort(key=lambda pair: -pair[1])
        stops = [e[0][-1] in config.eos_token_id or length == limit for e in extensions]
        for rank in range(min(config.num_beams, len(extensions))):
            if stops[rank]:
                tokens, total = extensions[rank]
                ended.append((total / length**config.length_penalty, tokens))
        ended = sorted(ended, key=lambda pair: -pair[0])[: config.num_beams]
        live = [e for e, s in zip(extensions, stops, strict=True) if not s][: config.num_beams]
        if not live:
            break
        if len(ended) == config.num_beams:
            at = limit if config.early_stopping == "never" and config.length_penalty > 0 else length
            if (
                config.early_stopping is True
                or live[0][1] / at**config.length_penalty <= ended[-1][0]
            ):
                break
    return ended[: config.num_return_sequences]


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("seed", range(15))
def test_results_are_those_of_the_rules(early_stopping, seed):
    rng = np.random.default_rng(seed)
    beams = int(rng.integers(1, 5))
    config = GenerationConfig(
        num_beams=beams, num_return_sequences=int(rng.integers(1, beams + 1)),
        length_penalty=rng.choice([0.0, 0.7, 1.0, 2.0, -1.0]), early_stopping=early_stopping,
        eos_token_id=(0,) if seed % 2 else (0, 3),
    )  # fmt: skip
    limit = int(rng.integers(1, 9))
    found, _ = search(config, limit, seed)
    wanted = by_lists(config, limit, seed)
    assert [one.tokens for one in found] == [tokens for _, tokens in wanted]
    np.testing.assert_allclose([one.score for one in found], [score for score, _ in wanted])
    for one in found:
        assert one.reason == ("end" if one.tokens[-1] in config.eos_token_id else "length")
        assert sum(one.log_probs) == pytest.approx(
            one.score * len(one.tokens) ** config.length_penalty
        )


def test_as_soon_as_there_are_enough_results_early_stopping_ends():
    options = {"num_beams": 3, "eos_token_id": (0,), "length_penalty": 2.0}
    steps = {
        rule: search(GenerationConfig(early_stopping=rule, **options), 40, 5)[1]
        for rule in (True, False, "never")
    }
    assert steps[True] <= steps[False] <= steps["never"]
    assert steps[True] < steps["never"]


def test_a_search_ends_when_nothing_to_come_can_be_among_its_results():
    steps = {True: 0, False: 0}
    for seed, penalty in product(range(6), (0.0, 1.0, -0.5)):
        config = GenerationConfig(
            num_beams=4, length_penalty=penalty, early_stopping="never", eos_token_id=(1,)
        )
        found = {has_hook: search(config, 25, seed, has_hook=has_hook) for has_hook in steps}
        assert found[True][0] == found[False][0]
        for has_hook in steps:
            steps[has_hook] += found[has_hook][1]
    assert steps[False] < 0.9 * steps[True]
