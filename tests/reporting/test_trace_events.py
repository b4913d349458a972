"""Chrome trace events of what ran."""

import json
from itertools import pairwise

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.reporting.trace_events import Bar, lanes
from tests.reference_models import trained_graph


def events(graph, tmp_path):
    path = tmp_path / "trace.json"
    graph.to_trace(path)
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]


def test_each_time_a_batch_ran_is_a_complete_event(tmp_path):
    graph = trained_graph()
    rows = graph._executor.rows()
    found = [e for e in events(graph, tmp_path) if e["ph"] == "X" and e["cat"] != "host"]
    assert sorted([(e["args"]["step"], e["cat"], e["name"]) for e in found]) == sorted(
        [(n, what, row.kind) for n, row in enumerate(rows) for what, _, _ in row.spans]
    )
    for event in found:
        row = rows[event["args"]["step"]]
        assert event["dur"] >= 0 and event["ts"] >= 0 and event["pid"] == 1
        assert (event["args"]["nodes"], event["args"]["rows"]) == (row.nodes, row.rows)
        assert event["args"]["bytes copied"] == row.copied_bytes
        assert event["args"]["signature"].startswith(row.kind.removesuffix(" +grad"))


def test_threads_are_named_and_their_events_do_not_overlap(tmp_path):
    found = events(trained_graph(), tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names[0] == "host" and names[1] == "batches 0"
    by_thread = {}
    for event in found:
        if event["ph"] == "X":
            by_thread.setdefault(event["tid"], []).append((event["ts"], event["dur"]))
    assert by_thread.keys() == names.keys()
    for members in by_thread.values():
        for (begin, duration), (following, _) in pairwise(sorted(members)):
            assert begin + duration <= following + 1e-6


def test_the_host_plans_before_it_places_and_runs(tmp_path):
    found = [e for e in events(trained_graph(), tmp_path) if e["ph"] == "X"]
    host = [e["name"] for e in found if e["cat"] == "host"]
    assert host == ["plan", "place in memory"]
    placed = next(e for e in found if e["name"] == "place in memory")
    assert all(e["ts"] >= placed["ts"] + placed["dur"] - 1e-6 for e in found if e["cat"] != "host")


def test_bars_at_one_time_get_lanes_and_give_them_back():
    bars = [
        Bar("forward", step, *times) for step, times in enumerate([(0, 3), (1, 2), (2, 4), (3, 5)])
    ]
    assert lanes(bars) == [0, 1, 1, 0]


def test_names_that_json_must_escape(tmp_path):
    name = 'a"\\\n\u2028</script>'
    with db.Graph() as graph:
        graph.backward(F.sum(F.parameter(graph, db.Parameter(np.ones(2, "float32"), name=name))))
    texts = [e["args"].get("signature", "") for e in events(graph, tmp_path)]
    assert any(repr(name) in text for text in texts)


def test_a_graph_that_ran_nothing_has_a_trace_without_batches(tmp_path):
    with db.Graph() as graph:
        assert {e["ph"] for e in events(graph, tmp_path)} == {"M"}


def test_a_trace_that_cannot_be_made_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old")
    monkeypatch.setattr("dynbatch.reporting.introspection.trace", lambda record: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trained_graph().to_trace(path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["trace.json"]


@db.cell
def halved(x, h):
    return x + h * 0.5


def test_a_region_of_calls_names_its_batches(tmp_path):
    with db.Graph() as graph:
        for length in (3, 1):
            x = h = F.input(graph, [1.0])
            for _ in range(length):
                h = halved(x, h)
        graph.forward()
        graph.to_trace(tmp_path / "trace.json")
        graph.explain(html=tmp_path / "page.html")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (event,) = [event for event in events if event["name"] == "calls of halved"]
    assert event["args"]["nodes"] == 4 and event["args"]["lower bound"] == 3
    assert event["args"]["batches of calls"] == ["halved 2", "halved 1", "halved 1"]
    page = (tmp_path / "page.html").read_text()
    assert "3 batches (lower bound 3): halved 2, halved 1, halved 1" in page
