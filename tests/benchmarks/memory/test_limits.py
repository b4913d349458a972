"""The benchmark of memory limits."""

import json

import pytest

from benchmarks.memory import limits


@pytest.mark.parametrize("workload", ["tagger", "tree"])
def test_points_hold_their_limits_and_say_what_was_done(workload, capsys):
    size = ["--batch", "6", "--hidden", "8", "--rounds", "1"]
    assert limits.main([workload, *size, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert points[0]["share"] == points[0]["held"] == 1 and not points[0]["saving"]
    assert all(point["held"] <= point["share"] for point in points)
    shares = [point["share"] for point in points]
    assert shares == sorted(shares, reverse=True) and len(shares) > 5
    assert "micro-batches" in points[-1]["saving"]


def test_the_table_has_a_line_for_each_limit():
    points = [
        limits.Point(1, 1, 1, 0.01, ""),
        limits.Point(0.5, 0.45, 1.25, 0.03, "2 micro-batches"),
    ]
    *_, first, second = limits.table(points, "").splitlines()
    assert first.split() == ["1.00", "1.000", "1.00", "1.0%", "nothing"]
    assert second.split() == ["0.50", "0.450", "1.25", "3.0%", "2", "micro-batches"]
