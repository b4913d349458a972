"""Error rates against a definition short enough to be seen right."""

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.errors import ArgumentError, EmptyBatchError, ShapeError
from dynbatch.text import metrics
from dynbatch.text.metrics import (
    ErrorRates,
    edit_distance,
    error_rates,
    translation_scores,
)

words = st.text("ab", max_size=7)


def distance_by_definition(a, b):
    @lru_cache(None)
    def between(i, j):
        if i == 0 or j == 0:
            return i + j
        substituted = between(i - 1, j - 1) + (a[i - 1] != b[j - 1])
        return min(between(i - 1, j) + 1, between(i, j - 1) + 1, substituted)

    return between(len(a), len(b))


@given(a=words, b=words)
def test_edit_distance_equals_its_recursive_definition(a, b):
    assert edit_distance(a, b) == distance_by_definition(a, b)


def test_a_text_in_place_of_references_is_refused():
    with pytest.raises(ArgumentError, match="references of hypothesis 1 are a text"):
        error_rates([["a"], ["b", "c"]], [[["a"]], "b c"])


def test_tokens_are_compared_whole():
    assert edit_distance(["AH", "N"], ["AH0", "N"]) == 1


def test_hitting_any_reference_is_right():
    rates = error_rates([["a", "b"]], [[["x"], ["a", "b"]]])
    assert rates == ErrorRates(token=0.0, sequence=0.0, num_sequences=1)


def test_edits_are_counted_to_the_closest_reference_and_over_its_length():
    hypotheses = [["a", "b", "c"], ["d"]]
    references = [[["x", "y"], ["a", "b", "c", "d"]], [["d"]]]
    rates = error_rates(hypotheses, references)
    assert rates.token == 1 / (4 + 1)
    assert rates.sequence == 1 / 2


def test_an_empty_hypothesis_costs_its_whole_reference():
    assert error_rates([[]], [[["a", "b"]]]).token == 1.0
    assert error_rates([[]], [[[]]]) == ErrorRates(0.0, 0.0, 1)
    assert error_rates([["a"]], [[[]]]) == ErrorRates(1.0, 1.0, 1)


def test_nothing_to_average_over_is_refused():
    with pytest.raises(EmptyBatchError, match="no hypotheses"):
        error_rates([], [])
    with pytest.raises(EmptyBatchError, match="hypothesis 1 has no reference"):
        error_rates([["a"], ["b"]], [[["a"]], []])
    with pytest.raises(ShapeError, match="1 hypotheses, 2 lists of references"):
        error_rates([["a"]], [[["a"]], [["b"]]])


def test_rates_are_told_with_the_number_of_exact_sequences():
    rates = error_rates([["a"], ["b"], ["c"]], [[["a"]], [["b"]], [["d", "e"]]])
    assert str(rates) == "token error rate 50.00%, 2 of 3 sequences exact"


def test_bleu_and_chrf_are_those_of_sacrebleu_with_all_references():
    pytest.importorskip("sacrebleu", reason="scores translations, and is not installed")
    references = [("the cat sat down .", "a cat sat down !"), ("it is on the mat",)]
    right = [each[-1] for each in references]
    assert translation_scores(right, references) == pytest.approx({"BLEU": 100, "chrF": 100})
    scores = translation_scores([right[0], "it is on a mat"], references, tokenize="none")
    assert all([0 < score < 100 for score in scores.values()])


def test_without_sacrebleu_there_are_no_scores(monkeypatch):
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    assert translation_scores(["a"], [("a",)]) == {}
