"""Baselines: counts of words and tags, a compressor."""

import sys

import numpy as np

from dynbatch.tasks.baselines import (
    MostFrequentTag,
    NaiveBayes,
    compressed_bits,
    most_frequent,
)
from dynbatch.text import TaggedSentence


def test_the_baseline_knows_each_words_usual_tag():
    baseline = MostFrequentTag(
        [
            TaggedSentence(("the", "cat", "sat"), ("at", "nn", "vb")),
            TaggedSentence(("cat", "cat"), ("nn", "vb")),
        ]
    )
    assert baseline.tag(["the", "cat", "zap"]) == ["at", "nn", "nn"]
    assert "cat" in baseline and "zap" not in baseline


def test_naive_bayes_is_that_of_the_formula():
    bayes = NaiveBayes([np.array([0, 0, 1]), np.array([1])], [0, 1], num_words=2)
    # P(0) (3/5)(3/5) = .18 and P(1) (1/3)(1/3) = .06; of word 1 alone .2 and .33
    assert bayes.classify(np.array([0, 0])) == 0 and bayes.classify(np.array([1])) == 1
    assert bayes.classify(np.zeros(0, np.int64)) == 0
    assert most_frequent([2, 1, 2]) == 2


def test_a_compressor_needs_few_bits_for_what_it_knows_and_the_entropy_of_noise():
    rng = np.random.default_rng(0)
    known, new = ["".join(rng.choice(list("abcd"), 4000)) for _ in range(2)]
    assert compressed_bits([known], [known[1000:3000]]) < 0.1
    assert 2 < compressed_bits([known], [new]) < 2.4  # log2 of four letters is 2
    assert compressed_bits([known], []) is None and compressed_bits([known], [""]) is None


def test_without_lzma_there_is_no_such_baseline(monkeypatch):
    monkeypatch.setitem(sys.modules, "lzma", None)
    assert compressed_bits(["abc"], ["abc"]) is None
