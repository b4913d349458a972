"""Memory of each side: arenas and pools."""

import json
import threading

from benchmarks.gpu import cases, memory
from dynbatch.memory import pool as pools
from tests.benchmarks.gpu.small import tiny


def test_memory_counts_arenas_and_everything_else(cuda, monkeypatch):
    monkeypatch.setattr(pools, "_device_pools", threading.local())
    found = memory.measure(tiny("tagger"), "dynbatch")
    parameters = sum(p.nbytes for p in tiny("tagger").ours("cpu").values().values())
    assert found["cupy_reserved_bytes"] >= 3 * parameters  # and two slots of Adam
    assert 0 < found["arena_used_bytes"] <= found["arena_reserved_bytes"]
    assert found["used_bytes"] == found["arena_used_bytes"] + found["cupy_reserved_bytes"]


def test_memory_of_a_peer_is_that_of_its_allocator(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 9)
    found = memory.measure(tiny("seq2seq"), "pytorch-select", "cpu")
    assert (found["used_bytes"], found["reserved_bytes"]) == (7, 9)


def test_memory_of_a_peer_that_is_not_there_says_why(capsys, monkeypatch):
    why = {"pytorch-padded": "PyTorch is not installed"}
    monkeypatch.setattr(cases, "build_peers", lambda *args, device: ([], why))
    case = tiny("tagger")
    assert memory.main([*case.arguments(), "--side", "pytorch-padded"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"case": case.name, "side": "pytorch-padded", "skipped": why["pytorch-padded"]}
