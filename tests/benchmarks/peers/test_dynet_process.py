import ast
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks.lengths import Corpus
from benchmarks.measure import require_agreement
from benchmarks.networks import Seq2SeqSizes, TaggerSizes, TreeSizes, initial_values
from benchmarks.peers.dynet_process import DynetContender
from benchmarks.peers.worker_process import PeerUnavailable
from benchmarks.trees import TreeCorpus

CASES = {
    "tagger": TaggerSizes(vocabulary=30, embedding=6, hidden=5, tags=4),
    "seq2seq": Seq2SeqSizes(source_vocabulary=30, target_vocabulary=4, embedding=6, hidden=5),
    "tree": TreeSizes(vocabulary=30, embedding=6, hidden=5, classes=4),
}


def program(folder, text):
    """An executable to stand in for a Python interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_without_dynet_is_a_reason_not_a_crash(tmp_path):
    with pytest.raises(PeerUnavailable, match=r"has no module dynet; pip install dyNET38"):
        DynetContender("tagger", {}, program(tmp_path, "echo True"))


def test_an_interpreter_that_does_not_exist_is_a_reason_too(tmp_path):
    with pytest.raises(PeerUnavailable, match="has no module dynet"):
        DynetContender("tagger", {}, str(tmp_path / "nowhere"))


def test_a_worker_that_dies_is_reported_with_its_status(tmp_path):
    dies = 'if [ "$1" = -c ]; then echo False; else exit 3; fi'
    with pytest.raises(PeerUnavailable, match="the DyNet worker ended with status 3"):
        DynetContender("tagger", {}, program(tmp_path, dies))


def test_the_worker_needs_nothing_of_this_project():
    tree = ast.parse(DynetContender.worker.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = [getattr(node, "module", node.names[0].name) for node in imports]
    own = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert own == {"dynet", "dynet_config", "numpy"}


@pytest.mark.skipif(find_spec("dynet") is None, reason="DyNet (dyNET38) is not installed")
@pytest.mark.parametrize("workload", sorted(CASES))
def test_dynet_computes_what_pytorch_computes(workload):
    pytest.importorskip("torch", reason="the other side is PyTorch's")
    from benchmarks.peers.pytorch_seq2seq import Seq2SeqContender
    from benchmarks.peers.pytorch_tagger import PackedTagger
    from benchmarks.peers.pytorch_tree import LevelTree

    sizes, rng = CASES[workload], np.random.default_rng(1)
    values = initial_values(sizes, rng)
    corpus = TreeCorpus(30, 4) if workload == "tree" else Corpus(30, 4, workload == "tagger")
    batch = corpus.random_batches(rng, 1, 7)[0]
    if isinstance(sizes, TaggerSizes):
        reference = PackedTagger(sizes, values)
    elif isinstance(sizes, TreeSizes):
        reference = LevelTree(sizes, values)
    else:
        reference = Seq2SeqContender("packed", sizes, values, packs=True)
    dynet = DynetContender(workload, values)
    try:
        require_agreement(reference, [dynet], batch)
    finally:
        dynet.close()
