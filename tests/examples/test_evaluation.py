"""Error rates of a model, and what is said of the memory of its training."""

import pytest

from dynbatch.text import Vocabulary
from examples.seq2seq import evaluation
from examples.seq2seq.corpus import Example
from examples.seq2seq.evaluation import bleu, evaluate, memory_saved
from examples.seq2seq.translator import Translator


@pytest.fixture
def translator():
    sizes = {"embed": 8, "hidden": 16}
    return Translator(sizes, Vocabulary("abc"), Vocabulary("xy"), "words", "words", 5)


def test_targets_are_scored_against_their_references(translator):
    translator.model.output.bias.value[translator.model.end] = 1e4  # it says nothing at all
    examples = [Example(("a", "b"), (("x",), ())), Example(("c",), (("x", "y"),))]
    rates, found = evaluate(translator, examples)
    assert found == [(), ()]
    assert (rates.token, rates.sequence) == (1.0, 0.5)


def test_the_memory_of_a_training_is_told_beside_that_of_padded_batches():
    records = [
        {"peak_bytes": 2_000_000, "planned_bytes": 2_000_000, "padded_bytes": 6_000_000},
        {"peak_bytes": 7_000_000},
        {"peak_bytes": 4_000_000, "planned_bytes": 4_000_000, "padded_bytes": 10_000_000},
        {"step": 3, "metric": 0.5},
    ]
    assert memory_saved(records) == (
        "3.0 MB on average (4.0 at most), padded 8.0 (10.0): 62% saved; "
        "2 of 2 looked at took what was planned before they ran"
    )
    assert memory_saved(records[1:2]) == ""


def test_bleu_is_that_of_sacrebleu_on_tokens_with_all_references():
    pytest.importorskip("sacrebleu", reason="scores translations, and is not installed")
    examples = [
        Example(("x",), (("the", "cat", "sat", "down", "."), ("a", "cat", "sat", "down", "!"))),
        Example(("y",), (("it", "is", "on", "the", "mat"),)),
    ]
    right = [example.references[-1] for example in examples]
    assert bleu(right, examples) == "100.0"
    assert 0 < float(bleu([right[0], ("it", "is", "on", "a", "mat")], examples)) < 100


def test_bleu_says_what_to_install(monkeypatch):
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    assert bleu([], []) == "not measured: pip install 'dynbatch[translation]'"
