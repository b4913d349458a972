import json
from itertools import combinations

import pytest

from benchmarks.memory import recompute
from benchmarks.memory.recompute import Point, draw, fill, measure, table
from benchmarks.networks import Seq2SeqSizes
from dynbatch.padding.picture import new_figure

pytestmark = pytest.mark.usefixtures("same_threads")

TINY = Seq2SeqSizes(8, 8, 8, 8)


def test_settings_are_measured_against_keeping_everything():
    first, sqrt = measure(1, 1, 0, TINY, 3, (None, "sqrt"))
    assert (first.times_less, first.times_longer) == (1, 1)
    assert sqrt.peak_bytes == pytest.approx(first.peak_bytes / sqrt.times_less)
    assert sqrt.ms == pytest.approx(first.ms * sqrt.times_longer)
    assert sqrt.peak_bytes < first.peak_bytes


def test_the_table_names_the_fastest_setting_that_saves_enough():
    points = [
        Point(1, None, 100, 10.0),
        Point(1, 8, 52, 12.0, 100 / 52, 1.2),
        Point(1, 1, 50, 14.0, 2.0, 1.4),
        Point(3, None, 100, 10.0),
        Point(3, 4, 50, 13.0, 2.0, 1.3),
    ]
    *_, usual, long = table(points, "").splitlines()
    assert usual.endswith("recompute=8, 1.92 × less at 1.20 × the time, within 1.25")
    assert long.endswith("recompute=4, 2.00 × less at 1.30 × the time, NOT within 1.25")
    assert table(points[:1], "").endswith("no setting")
    assert table(points, "busy").startswith("busy")


def test_the_command_prints_points_and_draws_them(monkeypatch, capsys, tmp_path):
    points = [Point(1, None, 100, 10.0), Point(1, "sqrt", 50, 12.0, 2.0, 1.2)]
    monkeypatch.setattr(recompute, "measure", lambda factor, *_: points)
    monkeypatch.setattr(recompute, "FACTORS", (1,))
    assert recompute.main(["--json"]) == 0
    printed = capsys.readouterr()
    assert [point["recompute"] for point in json.loads(printed.out)] == [None, "sqrt"]
    assert "2.00" in printed.err


def test_the_curve_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.png"
    draw([Point(1, None, 100, 10.0), Point(1, "sqrt", 50, 12.0, 2.0, 1.2)], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_label_of_the_curve_lies_on_another_or_on_a_point():
    pytest.importorskip("matplotlib")
    near = {None: (100, 1.0), recompute.WHOLE: (97.7, 1.157), 32: (97.6, 1.135), 16: (68, 1.162),
            8: (45.4, 1.14), "sqrt": (45.4, 1.173), 4: (45.2, 1.178), 2: (45.2, 1.178),
            1: (52.6, 1.25)}  # fmt: skip
    points = [
        Point(factor, setting, 1, 1.0, 100 / memory, time)
        for factor in (1, 3)
        for setting, (memory, time) in near.items()
    ]
    figure = new_figure(7.2, 5.0)
    fill(figure, points)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert len(axes.texts) == 8  # that of "2" and "4" is one point
    assert {"keep all", "whole scan", "√T", "32"} <= set(boxes)
    inside = figure.bbox
    for (text, box), (other, there) in combinations(boxes.items(), 2):
        assert not box.overlaps(there), (text, other)
    for text, box in boxes.items():
        assert box.x0 >= inside.x0 and box.x1 <= inside.x1, text
        for x, y in axes.transData.transform(axes.lines[0].get_xydata()):
            assert not box.contains(x, y), text
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[2:] == ["at most 1/1.9 of the memory", "at most 1.25 × the time"]
