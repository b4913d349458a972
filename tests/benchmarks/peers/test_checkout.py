"""Another checkout as a contender; here it is this very one."""

import json
from pathlib import Path

import pytest

import benchmarks
from benchmarks import run
from benchmarks.peers.checkout import CheckoutContender
from benchmarks.peers.worker_process import PeerUnavailable

ROOT = Path(benchmarks.__file__).parents[1]


def test_another_checkout_is_timed_beside_and_must_agree(capfd) -> None:
    arguments = "tagger --hidden 8 --batch 2 --batches 1 --rounds 1 --threads 1 --json --peers"
    assert run.main([*arguments.split(), "--against", str(ROOT)]) == 0
    told = capfd.readouterr()
    name = f"dynbatch in {ROOT.name}"
    assert json.loads(told.out)["peers_ms"][name] > 0
    assert f"checked with {name}" in told.err


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="not a checkout of dynbatch"):
        CheckoutContender(str(tmp_path), ["tagger"])


def test_a_process_that_ends_is_told_with_its_status() -> None:
    with pytest.raises(PeerUnavailable, match="ended with status 2"):
        CheckoutContender(str(ROOT), ["no-such-workload"])
