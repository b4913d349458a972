import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import precision

TOLD = """\
test, 2,000 examples that nothing was decided by:
token error rate 10.69%, 1,140 of 2,000 sequences exact
"""


def test_the_table_has_means_and_how_far_they_are_from_float32(monkeypatch, capsys):
    asked = []

    def error_rates(task, matmul, seed, given):
        asked.append((task, matmul, seed))
        assert given == ["--limit", "9", "--quiet"]
        wrong = {"float32": 10.0, "tf32": 9.5, "bfloat16": 12.0}[matmul]
        return [wrong + seed, 2 * wrong]

    monkeypatch.setattr(precision, "error_rates", error_rates)
    assert precision.main(["scan", "--seeds", "2", "--limit", "9"]) == 0
    assert len(asked) == 6 and {task for task, *_ in asked} == {"scan"}
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-3] == ["float32", "10.50", "(+0.00)", "20.00", "(+0.00)"]
    assert lines[-1] == ["bfloat16", "12.50", "(+2.00)", "24.00", "(+4.00)"]


def test_a_training_has_its_pairs_a_precision_and_a_seed(monkeypatch):
    def run(command, **_):
        (path,) = [part for part in command if part.endswith(".tsv")]
        assert "walk\tI_WALK\n" in Path(path).read_text()
        assert command[command.index("--matmul") + 1] == "tf32"
        assert command[command.index("--seed") + 1] == "3"
        return SimpleNamespace(stdout=TOLD)

    monkeypatch.setattr(subprocess, "run", run)
    assert precision.error_rates("scan", "tf32", 3) == pytest.approx([10.69, 43.0])


def test_no_error_rates_and_no_such_task_are_errors(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=""))
    with pytest.raises(ValueError, match="told no error rates"):
        precision.error_rates("scan", "float32", 0)
    with pytest.raises(SystemExit):
        precision.main(["scann"])
    assert "no task scann: give cmudict, scan" in capsys.readouterr().err
