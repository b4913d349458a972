import math
import os
import signal
import subprocess
import sys

import pytest

from dynbatch.errors import DataError
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
    metrics.write({"metric": math.nan, "norm": math.inf, "step": 1, "epoch": 0})
    metrics.close()
    found = read_metrics(tmp_path / "m")
    assert found == [{"metric": None, "norm": None, "step": 1, "epoch": 0}]


@pytest.mark.parametrize("tail", ["", '{"step": 3, "lo'])
def test_unwanted_and_half_written_lines_are_removed(tmp_path, tail):
    path = tmp_path / "m"
    path.write_text('{"step": 1}\n{"step": 2}\n' + tail)
    metrics = MetricsFile(path)
    metrics.keep(lambda record: record["step"] < 2)
    metrics.write({"step": 9})
    metrics.close()
    assert [record["step"] for record in read_metrics(path)] == [1, 9]


def test_what_a_killed_process_left_of_a_cut_is_removed_though_nothing_is_to_be_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    script = """
import os, signal, sys
from pathlib import Path
from dynbatch.train.metrics import MetricsFile
Path.write_bytes = lambda path, content: os.kill(os.getpid(), signal.SIGKILL)
MetricsFile(sys.argv[1]).keep(lambda record: record["step"] < 2)
"""
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == [".metrics.jsonl.saving", "metrics.jsonl"]
    MetricsFile(path).keep(lambda record: True)
    assert os.listdir(tmp_path) == ["metrics.jsonl"] and len(read_metrics(path)) == 2


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metrics = MetricsFile(None)
    metrics.write({"step": 1})
    metrics.keep(lambda record: False)
    metrics.close()
    assert list(tmp_path.iterdir()) == []


DAMAGED = [
    b"{", b"[]", b"3", b"", b"\xff\xfe", b'{"step": "1"}', b'{"step": -1}', b'{"epoch": 0}',
    b'{"step": 1, "metric": 0.5}', b'{"step": 1, "loss": "x"}', b'{"step": 1, "loss": [1]}',
    b'{"step": 1, "epoch": 0, "metric": 1, "metrics": [1]}',
    b'{"step": 1, "epoch": 0, "metric": 1, "metrics": {"BLEU": "1"}}',
    b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}", b'{"step": 1, "loss": 1' + b"0" * 400 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_named_and_the_file_left_as_it_is(tmp_path, line):
    path = tmp_path / "m"
    content = b'{"step": 1}\n' + line + b'\n{"step": 3}\n'
    path.write_bytes(content)
    for read in (read_metrics, lambda path: MetricsFile(path).keep(lambda record: True)):
        with pytest.raises(DataError, match=f"{path}:2: not a line of a metrics file") as caught:
            read(path)
        assert "fix:  remove the line" in str(caught.value)
    assert path.read_bytes() == content


def test_a_file_that_is_missing_is_one_error_when_it_is_read(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_metrics(tmp_path / "m")


def test_a_last_line_that_was_cut_short_is_not_read(tmp_path):
    (tmp_path / "m").write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_metrics(tmp_path / "m") == [{"step": 1}]


@pytest.mark.parametrize("path", ["/dev/full", "folder", "file/m"])
def test_a_file_that_cannot_be_written_is_one_error(tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    metrics = MetricsFile(tmp_path / path)
    with pytest.raises(DataError, match=r"the metrics cannot be written: .*\n  fix: free space"):
        metrics.write({"step": 1})
    if path == "/dev/full":
        with pytest.raises(DataError):
            metrics.close()
    else:
        with pytest.raises(DataError, match="the metrics cannot be written"):
            metrics.keep(lambda record: True)
