import numpy as np
import pytest

from benchmarks import one_long
from benchmarks.lengths import ONE_LONG
from benchmarks.networks import TransformerSizes
from benchmarks.workloads import Workload
from benchmarks.workloads.transformer import DynbatchTransformer


def test_the_long_sentence_is_timed_with_the_others_and_apart(monkeypatch, same_threads):
    small = Workload(TransformerSizes(20, 4, 4, 1, 1), DynbatchTransformer, frameworks=())
    monkeypatch.setattr(one_long, "WORKLOADS", {"transformer": small})
    found = one_long.run(one_long.parse(["--rounds", "1", "--threads", "1"]))
    assert min(found["ms"].values()) > 0 and min(found["peak_bytes"].values()) > 0
    apart = found["peak_bytes"]["short"] + found["peak_bytes"]["long"]
    assert found["memory_ratio"] == pytest.approx(found["peak_bytes"]["together"] / apart, abs=1e-4)
    assert "together over apart: time" in one_long.as_text(found)


def test_the_parts_are_63_sentences_and_one():
    workload = Workload(TransformerSizes(20, 4, 4, 1, 1), DynbatchTransformer).with_lengths(
        "one-long"
    )
    batch = workload.corpus(0.59).random_batches(np.random.default_rng(1), 1, 64)[0]
    parts = one_long.split(batch)
    assert [part.num_sentences for part in parts.values()] == [64, 63, 1]
    assert len(parts["long"].sources[0]) == ONE_LONG == workload.sizes.longest
