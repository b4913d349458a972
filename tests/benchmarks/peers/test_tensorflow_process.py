import ast
import os
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks.lengths import Corpus
from benchmarks.measure import require_agreement
from benchmarks.networks import TaggerSizes, initial_values
from benchmarks.peers import build_peers
from benchmarks.peers.tensorflow_process import TENSORFLOW_PEERS, TensorflowContender
from benchmarks.peers.worker_process import PeerUnavailable
from benchmarks.workloads.tagger import DynbatchTagger

SIZES = TaggerSizes(vocabulary=30, embedding=6, hidden=5, tags=4)
PYTHON = os.environ.get("DYNBATCH_TENSORFLOW", "")


def program(folder, text):
    """An executable to stand in for a Python interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_without_tensorflow_is_left_out_with_the_reason(tmp_path):
    python = program(tmp_path, "echo True")
    built, skipped = build_peers(TENSORFLOW_PEERS, SIZES, {}, 1, tensorflow=python)
    assert not built and list(skipped) == list(TENSORFLOW_PEERS)
    reason = f"{python} has no module tensorflow; pip install tensorflow-cpu in another"
    assert all(said.startswith(reason) for said in skipped.values())


def test_on_a_gpu_it_is_left_out():
    _, skipped = build_peers(TENSORFLOW_PEERS, SIZES, {}, 1, device="cuda")
    assert set(skipped.values()) == {"its wheel runs on the CPU only."}


def test_a_worker_that_dies_is_reported_with_its_status(tmp_path):
    dies = 'if [ "$1" = -c ]; then echo False; else exit 3; fi'
    with pytest.raises(PeerUnavailable, match="the TensorFlow worker ended with status 3"):
        TensorflowContender("tensorflow-padded", {}, 1, program(tmp_path, dies))


def test_the_worker_needs_nothing_of_this_project():
    tree = ast.parse(TensorflowContender.worker.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = [getattr(node, "module", node.names[0].name) for node in imports]
    own = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert own == {"tensorflow", "keras", "numpy"}


@pytest.mark.skipif(
    not PYTHON and find_spec("tensorflow") is None,
    reason="DYNBATCH_TENSORFLOW names no interpreter that has TensorFlow",
)
@pytest.mark.parametrize("name", TENSORFLOW_PEERS)
def test_tensorflow_computes_what_dynbatch_computes(name):
    rng = np.random.default_rng(1)
    values = initial_values(SIZES, rng)
    peer = TensorflowContender(name, values, 1, PYTHON)
    corpus = Corpus(30, 4, is_aligned=True)
    try:
        lengths = rng.integers(1, 12, 7) if peer.is_exact else np.full(7, 9)
        batch = corpus.fill(rng, np.stack([lengths, lengths], axis=1))
        require_agreement(DynbatchTagger(SIZES, values), [peer], batch)
    finally:
        peer.close()
