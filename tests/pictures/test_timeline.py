import re

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, GraphError
from dynbatch.kernels.runtime.workers import ThreadSpan
from dynbatch.pictures.palette import BLUE, VERMILION
from tests.pictures.svg import SVG, require_clear_text, root_of, texts_of
from tests.reference_models import trained_graph


def hints_of(picture):
    found = [element.find(f"{SVG}title") for element in root_of(picture).iter(f"{SVG}rect")]
    return [title.text for title in found if title is not None]


def profiled(*spans):
    """A graph of one batch after another, with what a further thread did in shares of the time."""
    with db.Graph(profile=True) as graph:
        x = F.input(graph, np.ones((50, 4))).keep()
        graph.backward(F.sum(F.tanh(x)))
    record = graph._record()
    tanh = next(row for row in record.rows if row.kind == "Tanh")
    (_, begin, end), *_ = tanh.spans
    graph._executor.threads += [
        ThreadSpan(7, 0, begin + a * (end - begin), begin + b * (end - begin)) for a, b in spans
    ]
    return graph


def test_each_time_a_batch_ran_is_a_bar_that_tells_its_rows():
    graph = trained_graph()
    hints = hints_of(db.pictures.timeline(graph))
    spans = [(n, what) for n, row in enumerate(graph._record().rows) for what, *_ in row.spans]
    assert len(hints) == len(spans)
    for number, what in spans:
        row = graph._record().rows[number]
        assert any(
            hint.startswith(f"batch {number}: {row.kind}, {what}, ")
            and f" {row.rows:,} rows " in hint
            for hint in hints
        )


def test_rows_are_the_height_of_bars():
    with db.Graph() as graph:
        for rows in (100, 25):
            F.elu(F.input(graph, np.ones((rows, 2))), rows)
        graph.forward()
        picture = db.pictures.timeline(graph)
    heights = {}
    for element in root_of(picture).iter(f"{SVG}rect"):
        title = element.find(f"{SVG}title")
        if title is not None and "Elu" in title.text:
            rows = int(re.search(r"(\d+) rows", title.text)[1])
            heights[rows] = float(element.get("height"))
    assert heights[100] == pytest.approx(4 * heights[25], rel=0.02)


def test_low_neighbours_of_one_kind_are_named_together(monkeypatch):
    with db.Graph() as graph:
        F.tanh(F.input(graph, np.ones((1000, 2))))
        for alpha in range(1, 9):
            F.elu(F.input(graph, np.ones((1, 2))), alpha)
        graph.forward()
    record = graph._record()
    begin = record.runs[0].begin
    rows = [
        row._replace(spans=[("forward", begin + number, begin + number + 1)])
        for number, row in enumerate(record.rows)
    ]
    monkeypatch.setattr(graph, "_record", lambda: record._replace(rows=rows))
    picture = db.pictures.timeline(graph)
    assert {"Input", "Tanh", "8 × Elu"} <= set(texts_of(picture))
    require_clear_text(picture)


def test_the_time_of_planning_is_a_band_with_its_name(monkeypatch):
    graph = profiled()
    record = graph._record()
    (run,) = record.runs
    moved = run._replace(planned=run.begin + 1, placed=run.begin + 2)
    rows = [
        row._replace(spans=[("forward", run.begin + 2 + k, run.begin + 3 + k)])
        for k, row in enumerate(record.rows)
    ]
    monkeypatch.setattr(graph, "_record", lambda: record._replace(runs=[moved], rows=rows))
    picture = db.pictures.timeline(graph)
    assert texts_of(picture).count("planning") == 1
    (bands,) = [
        element.get("d")
        for element in root_of(picture).iter(f"{SVG}path")
        if element.get("class") == "fill-panel"
    ]
    lane = next(
        element for element in root_of(picture).iter(f"{SVG}rect")
        if element.get("class") == "fill-panel"
    )  # fmt: skip
    (width,) = [float(width) for width in re.findall(r"h([\d.]+)v", bands)]
    assert width == pytest.approx(2 / (2 + len(rows)) * float(lane.get("width")), abs=0.1)
    require_clear_text(picture)


def test_another_thread_has_a_lane_with_its_work_and_its_idle_time():
    texts = texts_of(db.pictures.timeline(profiled((0.1, 0.2), (0.5, 0.9))))
    (lane,) = [text for text in texts if text.startswith("thread 2: ")]
    busy, idle = [int(n) for n in re.findall(r"(\d+) %", lane)]
    assert busy + idle in (99, 100, 101) and idle > 0
    without = texts_of(db.pictures.timeline(profiled()))
    assert not any(text.startswith("thread 2: ") for text in without)


def test_many_threads_are_counted():
    graph = profiled((0.1, 0.9))
    (span,) = graph._executor.threads
    graph._executor.threads += [span._replace(thread=8 + k) for k in range(20)]
    picture = db.pictures.timeline(graph)
    assert "… 13 more threads" in texts_of(picture)
    require_clear_text(picture)


@pytest.mark.parametrize("count", [1, 500])
def test_pictures_of_few_and_of_many_batches_have_clear_text(count):
    with db.Graph() as graph:
        x = F.input(graph, np.ones(4))
        for _ in range(count):
            x = F.tanh(x)
        graph.backward(F.sum(x.keep()))
    picture = db.pictures.timeline(graph)
    require_clear_text(picture)
    assert f"fill-{BLUE}" in picture.svg and f"fill-{VERMILION}" in picture.svg


def test_the_page_of_a_timeline_is_that_of_explain(tmp_path):
    graph = profiled((0.1, 0.9))
    db.pictures.timeline(graph).save(tmp_path / "timeline.html")
    graph.explain(html=tmp_path / "explain.html")
    text = (tmp_path / "timeline.html").read_text()
    assert text == (tmp_path / "explain.html").read_text()
    assert "thread 2, which helps" in text


def test_malicious_names_cannot_leave_their_place(tmp_path):
    name = "</title></text><script>alert(1)</script>"

    def layer(x):
        return F.tanh(x * 2.0)

    layer.__name__ = layer.__qualname__ = name
    with db.Graph() as graph:
        _ = F.sum(db.block(layer)(F.input(graph, np.ones((3, 4))))).value
        pictures = [db.pictures.timeline(graph), db.pictures.sentence(graph, 0)]
        pictures.append(db.pictures.memory(graph))
    for picture in pictures:
        root_of(picture)  # well-formed
        assert "<script" not in picture.svg
    assert any("alert(1)" in hint for hint in hints_of(pictures[0]))


def test_without_a_run_there_is_no_timeline():
    with db.Graph() as graph, pytest.raises(GraphError, match=r"not run(.|\n)*rule(.|\n)*fix"):
        db.pictures.timeline(graph)
    with pytest.raises(ArgumentError, match="graph is None"):
        db.pictures.timeline(None)
