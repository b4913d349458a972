import math

import pytest

from dynbatch.train.metrics import MetricsFile, read_metrics


def test_every_line_is_on_the_disk_when_it_is_written(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    metrics = MetricsFile(path)
    for step in (1, 2):
        metrics.write({"step": step, "loss": 0.5})
        assert read_metrics(path)[-1] == {"step": step, "loss": 0.5}
    metrics.close()


def test_numbers_that_are_not_finite_are_null(tmp_path):
    metrics = MetricsFile(tmp_path / "m")
    metrics.write({"metric": math.nan, "norm": math.inf, "step": 1})
    metrics.close()
    assert read_metrics(tmp_path / "m") == [{"metric": None, "norm": None, "step": 1}]


@pytest.mark.parametrize("tail", ["", '{"step": 3, "lo'])
def test_unwanted_and_half_written_lines_are_removed(tmp_path, tail):
    path = tmp_path / "m"
    path.write_text('{"step": 1}\n{"step": 2}\n' + tail)
    metrics = MetricsFile(path)
    metrics.keep(lambda record: record["step"] < 2)
    metrics.write({"step": 9})
    metrics.close()
    assert [record["step"] for record in read_metrics(path)] == [1, 9]


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metrics = MetricsFile(None)
    metrics.write({"step": 1})
    metrics.keep(lambda record: False)
    metrics.close()
    assert list(tmp_path.iterdir()) == []
