"""The command that replays logs, on networks small enough for a test."""

import json

import pytest

from benchmarks.memory import allocators
from benchmarks.memory.allocators import Row, best, one_by_one
from dynbatch.memory import Event, Interval
from tests.benchmarks.test_run import SMALL

pytestmark = pytest.mark.usefixtures("same_threads")
RMM = """Thread,Time,Action,Pointer,Size,Stream
1,15:47:02.841961,allocate,0x1000,1000,0
1,15:47:02.841977,free,0x1000,1000,0
"""


def test_blocks_are_allocated_when_written_and_freed_after_they_are_read():
    blocks = [Interval(10, 0, 1), Interval(0, 0, 5), Interval(20, 1, 1 << 60), Interval(5, 2, 2)]
    assert one_by_one(blocks, 7) == [
        Event(True, 7, 40), Event(True, 8, 80), Event(False, 7, 40),
        Event(True, 9, 20), Event(False, 9, 20), Event(False, 8, 80),
    ]  # fmt: skip


def row(allocator, overhead, after):
    return Row("log", allocator, 1, 1, overhead, 0, 0, 1, after, 1.0)


def test_the_best_asks_the_upstream_least_and_then_reserves_least():
    rows = [row("a", 1.0, 1), row("b", 4.0, 0), row("c", 1.5, 0), row("a", 1.0, 0),
            row("b", 1.0, 0), row("c", 1.5, 0)]  # fmt: skip
    name, judged = best(rows)
    assert name == "c" and judged["a"] == (1, 1.0) and judged["b"] == (0, pytest.approx(2.0))


def test_training_is_recorded_and_replayed_on_every_allocator(monkeypatch, capsys):
    monkeypatch.setattr(allocators, "WORKLOADS", SMALL)
    arguments = ["tagger", "decoding", "--steps", "6", "--sentences", "4", "--json"]
    assert allocators.main(arguments) in (0, 1)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    logs = ("tagger", "tagger blocks", "decoding")
    assert [(r["log"], r["allocator"]) for r in found["replays"]] == [
        (log, allocator) for log in logs for allocator in allocators.ALLOCATORS
    ]
    for log in logs:
        rows = [r for r in found["replays"] if r["log"] == log]
        assert len({r["requested_bytes"] for r in rows}) == 1
        assert all(r["reserved_bytes"] >= r["requested_bytes"] > 0 for r in rows)
        alone = rows[-1]
        assert alone["reserved_bytes"] == alone["requested_bytes"] and alone["external_bytes"] == 0
    assert [(s["name"], s["used_bytes"]) for s in found["steady"]] == [
        ("tagger", 0), ("decoding", 0),
    ]  # fmt: skip
    assert "best: " in printed.err


def test_a_log_of_another_program_is_replayed(tmp_path, capsys):
    path = tmp_path / "service.csv"
    path.write_text(RMM)
    allocators.main([str(path)])
    assert "service             buddy                    0.0" in capsys.readouterr().out
