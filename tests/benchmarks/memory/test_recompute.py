import json

import pytest

from benchmarks.memory import recompute
from benchmarks.memory.recompute import Point, draw, measure, table
from benchmarks.networks import Seq2SeqSizes

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
