"""The benchmark of memory against padding runs, and all sides get the same batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import padding
from benchmarks.networks import Seq2SeqSizes

SMALL = Seq2SeqSizes(source_vocabulary=40, target_vocabulary=50, embedding=8, hidden=8)


def test_ids_number_the_most_frequent_words_and_share_one_for_the_rest() -> None:
    first, second = padding._ids([["a", "b", "a"], ["c"]], most=5)
    assert first.tolist() == [3, 4, 3]
    assert second.tolist() == [2]


def test_seq2seq_is_measured_beside_pytorch(monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(padding, "Seq2SeqSizes", lambda: replace(SMALL))
    monkeypatch.setattr(padding, "LOGNORMAL_PAIRS", 16)
    arguments = "lognormal --batch 8 --batches 1 --threads 1 --no-curves".split()
    assert padding.main([*arguments, "--peers", "pytorch-padded", "pytorch-bucketed"]) == 0
    out = capsys.readouterr().out
    assert "than pytorch, padded" in out
    assert "compute the same loss" in out
