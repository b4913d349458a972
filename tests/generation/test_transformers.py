"""Tokens and logits are those of `transformers`: see `make_fixtures.py`."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch.generation.processing import LogitsProcessing
from dynbatch.generation.sampling import cut_of
from dynbatch.kernels.choosing.draws import cut_rows
from dynbatch.models.pretrained import GPT2, T5, Llama, Marian
from tests.generation.test_processing import applied

FOLDER = Path(__file__).parent / "fixtures"
CHECKPOINTS = Path(__file__).parents[1] / "models/pretrained/fixtures"
FAMILIES = {"gpt2": GPT2, "llama": Llama, "t5": T5, "marian": Marian}
SEARCHES = json.loads((FOLDER / "beams.json").read_text())


@cache
def model(name):
    return FAMILIES[name].from_pretrained(CHECKPOINTS / name)


def as_expected(found, case):
    """Whether results are those of the case; where it has more, they are no sentences at all."""
    scores = case["scores"]
    real = len(found) if scores is None else sum([score > -1e8 for score in scores])
    assert [list(one.tokens) for one in found] == case["results"][:real]
    if scores is not None:
        np.testing.assert_allclose([one.score for one in found], scores[:real], rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_searches_find_the_same_tokens_alone_and_in_a_batch(name):
    cases = [case for case in SEARCHES if case["model"] == name]
    engine = db.Engine(model(name))
    folder = CHECKPOINTS / name
    configs = [db.GenerationConfig.from_pretrained(folder, **case["settings"]) for case in cases]
    added = [
        engine.add(case["prompt"], config) for case, config in zip(cases, configs, strict=True)
    ]
    list(engine.run())
    assert engine.caches.lent_bytes == 0
    for number, case, config in zip(added, cases, configs, strict=True):
        as_expected(engine.results(number), case)
        if number % 5 == 0:
            as_expected(db.generate(model(name), [case["prompt"]], config)[0], case)


def test_logits_are_processed_in_the_same_way():
    with np.load(FOLDER / "logits.npz") as stored:
        logits, after = stored["logits"], stored["after"]
        cases = json.loads(str(stored["settings"]))
    for row, expected, case in zip(logits, after, cases, strict=True):
        config = db.GenerationConfig(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in case["settings"].items()},
            eos_token_id=(0,),
            do_sample=True,
        )
        processing = LogitsProcessing(config, case["context"], row.size, limit=99)
        for token in case["result"]:
            processing.take(token)
        found = applied(processing, row)[None]
        if cut_of(config) is not None:
            cut_rows(found, np.array([cut_of(config)]))
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-6)
