import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import demo
from benchmarks.demo import DemoRun


def test_the_table_compares_whole_lives_in_turns(monkeypatch, capsys):
    seconds = iter([20.0, 30.0, 22.0, 36.0])
    lived = []

    def live(root):
        lived.append(root)
        return DemoRun(next(seconds), 11.0)

    monkeypatch.setattr(demo, "live", live)
    assert demo.main(["--rounds", "2", "--against", "/elsewhere"]) == 0
    assert lived == [demo.ROOT, Path("/elsewhere")] * 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == ["dynbatch", "in", "elsewhere", "33.0", "11.00%", "1.57"]


def test_a_life_runs_the_checkouts_own_code_and_tells_its_error_rate(monkeypatch, tmp_path):
    def run(command, cwd, env, **_):
        assert cwd == tmp_path and env["PYTHONPATH"] == str(tmp_path)
        assert "--hidden" in command
        return SimpleNamespace(
            stdout="held out: token error rate 12.00%\ntest: token error rate 10.69%, 9"
        )

    monkeypatch.setattr(subprocess, "run", run)
    assert demo.live(tmp_path).error_rate == 10.69


def test_a_demo_that_tells_no_error_rate_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=""))
    with pytest.raises(ValueError, match="told no error rate"):
        demo.live(tmp_path)


def test_a_life_is_that_of_make_demo():
    makefile = (demo.ROOT / "Makefile").read_text().replace("\\\n", " ")
    assert demo.COMMAND in " ".join(makefile.split())
