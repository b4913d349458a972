"""Equal bits alone and in company, where no C kernels run."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch.errors import ArgumentError, BackendError
from dynbatch.generation.engine import Engine
from dynbatch.generation.model import Continuation
from dynbatch.kernels import blas
from dynbatch.kernels.c.runtime import library
from dynbatch.models import TransformerTranslation
from tests.generation.test_engine import GREEDY, SAMPLES, numbers
from tests.generation.tiny_models import VOCAB, tiny
from tests.marks import quick

NAMES = ["gpt2", "llama", "t5", "marian", "alibi", "lstm", "writer", "seq2seq"]


@pytest.fixture
def no_c():
    with library.reference_only():
        yield


def invariant(model, config, **options):
    return Engine(model, config, batch_invariant=True, **options)


def results(engine, given):
    added = [engine.add(prompt) for prompt in given]
    list(engine.run())
    return numbers([engine.results(k) for k in added])


@pytest.mark.parametrize("name", quick(["gpt2", "t5", "lstm"], NAMES))
def test_without_c_results_have_the_same_bits_alone_and_in_company(no_c, capfd, name):
    config = SAMPLES if name == "gpt2" else GREEDY
    rng = np.random.default_rng(3)
    given = [rng.integers(0, VOCAB, length) for length in (30, 1, 8, 3)]
    engine = invariant(tiny(name), config, step_tokens=11)
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("batch_invariant: ") and "x the time of a step" in line
    alone = [results(engine, [prompt])[0] for prompt in given]
    assert results(engine, given) == alone and len({row[0][0] for row in alone}) > 1
    assert not blas.has_fixed_rows()


def test_a_product_that_looks_at_its_company_is_refused(no_c, monkeypatch):
    product = blas._matmul_fixed_rows

    def rounded(a, b, out):
        product(a, b, out)
        out *= 1 + 1e-6 * (a.shape[-2] > 3)

    monkeypatch.setattr(blas, "_matmul_fixed_rows", rounded)
    with pytest.raises(BackendError, match="batch_invariant=True does not hold"):
        invariant(tiny("gpt2"), GREEDY)


@pytest.mark.parametrize("width", [8, 32, 100])
def test_additive_attention_of_any_width_holds(no_c, capfd, width):
    invariant(models.Seq2Seq(40, 60, embed=width, hidden=width), GREEDY)
    assert "batch_invariant: " in capfd.readouterr().err


def test_the_transformer_of_the_examples_holds(no_c, capfd):
    invariant(TransformerTranslation(20, 30, hidden=32), GREEDY)
    assert "batch_invariant: " in capfd.readouterr().err


def test_a_model_with_few_source_words_is_tested_with_them(no_c, capfd):
    model = models.Seq2Seq(source_vocab=4, target_vocab=60, embed=4, hidden=4)
    invariant(model, GREEDY)
    assert "batch_invariant: " in capfd.readouterr().err


def test_a_model_that_fails_in_the_test_is_not_taken_for_one_that_passed(no_c, monkeypatch):
    def failing(*_):
        raise ValueError("of the model")

    monkeypatch.setattr(Continuation, "run", failing)
    with pytest.raises(ValueError, match="of the model"):
        invariant(tiny("gpt2"), GREEDY)


def test_with_c_nothing_is_tested_and_nothing_printed(capfd):
    if library.reason():
        pytest.skip(library.reason())
    model = tiny("gpt2")
    engine = invariant(model, GREEDY)
    assert not capfd.readouterr().err
    assert results(engine, [[1, 2]]) == numbers(db.generate(model, [[1, 2]], GREEDY))


def test_it_is_refused_where_large_products_go_to_a_blas():
    db.set_batch_invariant(False)
    try:
        with pytest.raises(ArgumentError, match="set_batch_invariant"):
            invariant(tiny("gpt2"), GREEDY)
    finally:
        db.set_batch_invariant(True)


def test_a_model_of_few_positions_is_tested_within_them(no_c):
    invariant(tiny("gpt2"), GREEDY, positions=3)
