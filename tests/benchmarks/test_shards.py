"""The benchmark of shards runs all of them; ranks that are only reckoned are cut as real ones."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import many_ranks, shards
from benchmarks.networks import Seq2SeqSizes
from dynbatch.parallel import Cost, cost


def test_a_model_is_cut_in_three_ways_and_run(monkeypatch, capsys, tmp_path):
    small = Seq2SeqSizes(source_vocabulary=40, target_vocabulary=50, embedding=4, hidden=4)
    workload = replace(shards.WORKLOADS["seq2seq"], sizes=small)
    monkeypatch.setattr(shards, "WORKLOADS", {"seq2seq": workload})
    monkeypatch.setattr(shards, "POOL", 16)
    path = tmp_path / "found.json"
    monkeypatch.setattr(shards, "COUNT", 4)
    monkeypatch.setattr(cost, "COUNT", 4)
    arguments = "seq2seq --lengths lognormal --ranks 2 --sentences 2 --batches 1 --rounds 1"
    assert shards.main([*arguments.split(), "--json", str(path)]) == 0
    (found,) = json.loads(path.read_text())["found"]
    assert len(found["errors"]) == 6 and set(found["imbalance"]) == {"cost", "tokens", "sentences"}
    assert all(1 <= each[0] <= 2 for each in found["imbalance"].values())
    assert "seq2seq      lognormal" in capsys.readouterr().out


def test_an_unknown_model_is_refused(capsys):
    with pytest.raises(SystemExit):
        shards.parse(["taggre"])
    assert "taggre: tagger, seq2seq, transformer" in capsys.readouterr().err


def test_each_way_of_cutting_is_even_in_what_it_is_cut_by():
    lengths = np.array([[40], [1], [2], [3], [10], [10], [10], [10]])
    ways = shards.cuts(Cost(token=(1.0,), longest=(2.0,)), lengths, 2)
    assert ways["sentences"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [sum(lengths[shard]) for shard in ways["tokens"]] == [43, 43]
    assert [len(shard) for shard in ways["cost"]] == [1, 7]


def test_gradients_of_a_machine_pass_nvlink_and_others_infiniband():
    size = 4 * many_ranks.MODELS["BERT-base"]
    inside = many_ranks.way("BERT-base", 8)
    assert inside.sent == pytest.approx(2 * size * 7 / 8)
    assert inside.seconds == pytest.approx(2 * size * 7 / 8 / 450e9)
    across = many_ranks.way("BERT-base", 64)
    assert across.sent == pytest.approx(2 * size * 63 / 64)
    assert across.seconds == pytest.approx(2 * size * 56 / 64 / 50e9)
    assert across.messages == 126


def test_ranks_are_reckoned(capsys):
    arguments = "--lengths lognormal --ranks 4 --sentences 8 --batches 1"
    assert many_ranks.main(arguments.split()) == 0
    out = capsys.readouterr().out
    assert "recurrence   lognormal        4          8" in out and "BERT-base" in out
