"""The sides of `benchmarks.small_data` learn the same task; the parent process tells them apart."""

import json

import numpy as np
import pytest

from benchmarks import small_data


def test_tags_follow_from_a_word_and_the_one_before():
    data = small_data.corpus(np.random.default_rng(3), 50)
    known: dict[tuple[int, ...], int] = {}
    for words, tags in data.sentences():
        pairs = zip(words[:-1].tolist(), words[1:].tolist(), strict=True)
        for pair, tag in zip(pairs, tags[1:].tolist(), strict=True):
            assert known.setdefault(pair, tag) == tag


def test_bucketed_batches_hold_neighbours_by_length_and_all_sentences_once():
    rng = np.random.default_rng(3)
    data = small_data.corpus(rng, 100)
    spread = {}
    for is_bucketed in (False, True):
        batches = list(small_data.batches(data, rng, is_bucketed))
        assert sum(batch.num_sentences for batch in batches) == 100
        spread[is_bucketed] = np.mean([np.ptp([len(x) for x in b.sources]) for b in batches])
    assert spread[True] < spread[False] / 2


@pytest.mark.parametrize("side", small_data.SIDES)
def test_each_side_learns_the_task(side, monkeypatch, capsys):
    if side != "dynbatch":
        pytest.importorskip("torch")
    monkeypatch.setattr(small_data, "OTHERS", 40)
    monkeypatch.setattr(small_data, "BATCH", 8)
    monkeypatch.setattr(small_data, "RATE", 0.01)
    monkeypatch.setattr(small_data, "MOST_EPOCHS", 6)
    monkeypatch.setattr(small_data, "ACCURACY", 0.3)
    small_data.main(["--side", side, "--sentences", "400"])
    assert json.loads(capsys.readouterr().out)["accuracy"] >= 0.3


def test_the_table_compares_whole_lives(monkeypatch, capsys):
    lives = {"dynbatch": 2.0, "pytorch-padded": 5.0, "pytorch-bucketed": 3.0}
    monkeypatch.setattr(
        small_data,
        "measured",
        lambda side, sentences: {"seconds": lives[side], "epochs": 3, "accuracy": 0.98},
    )
    assert small_data.main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "1.50"
