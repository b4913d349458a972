"""`benchmarks.parallel`: both sides do the same work, and what travels is counted."""

import os
import subprocess
import sys

import pytest

from benchmarks import parallel
from benchmarks.networks import TaggerSizes
from benchmarks.workloads import Workload
from benchmarks.workloads.tagger import DynbatchTagger
from tests.parallel.ranks import on_ranks

SMALL = Workload(TaggerSizes(20, 4, 4, 3), DynbatchTagger, frameworks=(), batch=6)


def test_one_and_two_processes_take_the_same_step(monkeypatch):
    monkeypatch.setattr(parallel, "WORKLOADS", {"tagger": SMALL})
    first, second = on_ranks(
        2, lambda communicator: parallel.measure(communicator, "tagger", rounds=2, seed=1)
    )
    for found in (first, second):
        assert found["gradients_differ"] < 1e-5
        assert found["exchanges"] == 5 and found["bytes_sent"] > 4 * 4 * 4 * 4
    assert first["alone_ms"] > 0 and first["ms_of_parts"]["graph"] > 0
    assert "times as fast" in parallel.as_text({"tagger": first}, 2)


PROGRAM = """
from benchmarks import parallel
from dynbatch.parallel import connect
from tests.benchmarks.test_parallel import SMALL

parallel.WORKLOADS = {"tagger": SMALL}
with connect() as communicator:
    found = parallel.measure(communicator, "tagger", 1, seed=1, peer="pytorch-packed")
    assert found["peer_gradients_differ"] < 1e-5 and found["peer_together_ms"] > 0
    print(parallel.as_text({"tagger": found}, 2))
"""


@pytest.mark.exhaustive
def test_pytorchs_two_processes_have_the_gradients_of_one(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-m", "dynbatch", "launch", "-n", "2", tmp_path / "program.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True, capture_output=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "by DistributedDataParallel" in ran.stdout
