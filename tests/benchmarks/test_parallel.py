"""`benchmarks.parallel`: both sides do the same work, and what travels is counted."""

from benchmarks import parallel
from benchmarks.networks import TaggerSizes
from benchmarks.workloads import Workload
from benchmarks.workloads.tagger import DynbatchTagger
from tests.parallel.ranks import on_ranks


def test_one_and_two_processes_take_the_same_step(monkeypatch):
    small = Workload(TaggerSizes(20, 4, 4, 3), DynbatchTagger, frameworks=(), batch=6)
    monkeypatch.setattr(parallel, "WORKLOADS", {"tagger": small})
    first, second = on_ranks(
        2, lambda communicator: parallel.measure(communicator, "tagger", rounds=2, seed=1)
    )
    for found in (first, second):
        assert found["gradients_differ"] < 1e-5
        assert found["exchanges"] == 5 and found["bytes_sent"] > 4 * 4 * 4 * 4
    assert first["alone_ms"] > 0 and first["ms_of_parts"]["graph"] > 0
    assert "times as fast" in parallel.as_text({"tagger": first}, 2)
