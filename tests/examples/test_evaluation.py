"""BLEU of what a model wrote."""

import pytest

from dynbatch.tasks.translation.pairs import ParallelText
from examples.seq2seq import evaluation
from examples.seq2seq.evaluation import bleu


def test_bleu_is_that_of_sacrebleu_on_tokens_with_all_references():
    pytest.importorskip("sacrebleu", reason="scores translations, and is not installed")
    examples = [
        ParallelText("x", ("the cat sat down .", "a cat sat down !")),
        ParallelText("y", ("it is on the mat",)),
    ]
    right = [tuple(example.references[-1].split()) for example in examples]
    assert bleu(right, examples) == "100.0"
    assert 0 < float(bleu([right[0], ("it", "is", "on", "a", "mat")], examples)) < 100


def test_bleu_says_what_to_install(monkeypatch):
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    assert bleu([], []) == "not measured: pip install 'dynbatch[translation]'"
