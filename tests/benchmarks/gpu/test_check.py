"""The command `make gpu-check`: its parts, their times, and what it writes."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import check, job
from benchmarks.gpu.job import Job, Outcome
from tests.benchmarks.gpu.parsing import parsed
from tests.benchmarks.gpu.small import Serial
from tests.cuda import devices


def test_without_a_gpu_one_sentence_and_status_2(capsys, tmp_path):
    if devices.has_gpu():
        pytest.skip("there is one")
    assert check.main(["--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gpu-check needs an NVIDIA GPU and CuPy. CUDA is not available: ")
    assert list(tmp_path.iterdir()) == []


def test_an_absent_program_is_skipped_and_no_time_left_is_said():
    assert check.attempt(Job("x", ["no-such-program"], 1), float("inf")).state == "skipped"
    assert check.attempt(Job("x", [sys.executable], 1), 0.0).state == "time ran out"


def test_the_sanitizer_that_refuses_the_machine_is_skipped(monkeypatch):
    refusal = Outcome("memcheck", "failed", said="========= Error: Device not supported")
    monkeypatch.setattr(check, "run", lambda job: refusal)
    monkeypatch.setattr(check.shutil, "which", lambda name: name)
    sanitizer = Job("memcheck", ["compute-sanitizer"], 1)
    assert check.attempt(sanitizer, float("inf")).state == "skipped"
    assert check.attempt(Job("tests", ["python3"], 1), float("inf")).state == "failed"


def test_what_has_ended_is_on_disk_when_the_next_part_ends_the_machine(tmp_path, monkeypatch):
    """Also where it was in the middle of writing: the file before stays whole."""
    found = {"card": "A Card", "cores": 1}
    monkeypatch.setattr(check, "run", lambda job: Outcome(job.name, "passed", found=found))
    monkeypatch.setattr(check, "ThreadPoolExecutor", Serial)
    names = []

    def attempted(job, deadline):
        if len(names) == 3:
            raise KeyboardInterrupt
        names.append(job.name)
        return Outcome(job.name, "passed", 1.0, {"a": 1})

    monkeypatch.setattr(check, "attempt", attempted)
    with pytest.raises(KeyboardInterrupt):
        check.main(["--results", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert list(report["parts"]) == names and report["seconds"] > 0
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("no machine any more"))
    with pytest.raises(pytest.fail.Exception):
        check.write(report | {"parts": {}}, tmp_path)
    assert json.loads(path.read_text()) == report


@pytest.mark.parametrize("found", [{}, {"card": "A Card", "cores": 3}])
def test_a_machine_that_takes_long_to_answer_ends_no_check(tmp_path, monkeypatch, found, capsys):
    def run(job):
        state = "time ran out" if job.name == "machine" else "passed"
        return Outcome(job.name, state, found=found if job.name == "machine" else {})

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "ThreadPoolExecutor", Serial)
    assert check.main(["--only", "micro", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert report["parts"].keys() == {"prewarm", "micro"}
    assert report["machine"]["card"] == found.get("card", "unknown")
    assert f"card       {report['machine']['card']}" in capsys.readouterr().out


def test_results_go_to_the_folder_that_comes_back(tmp_path, monkeypatch):
    """`OUT`, where it is set, unless another is named; what tests print and how they end, too."""
    monkeypatch.setenv("OUT", str(tmp_path))
    assert parsed("benchmarks.gpu.check", []).results == tmp_path
    assert parsed("benchmarks.gpu.check", ["--results", "x"]).results == Path("x")
    monkeypatch.delenv("OUT")
    assert parsed("benchmarks.gpu.check", []).results == job.ROOT / "benchmarks" / "results"
    jobs = check.side_by_side(check.PARTS, 16, 300.0, tmp_path)
    suites = [one for one in jobs if "benchmarks.gpu.suite" in one.command]
    kept = [one.command[one.command.index("--keep") + 1] for one in suites]
    assert [Path(name).name for name in kept] == [
        "tests.txt",
        "memcheck-kernels.txt",
        "racecheck-kernels.txt",
    ]
    assert {Path(name).parent for name in kept} == {tmp_path}


@pytest.mark.parametrize("wanted", check.CALLS)
def test_what_one_command_does_fits_into_its_time(wanted):
    """With what is expected of the timed parts, and the most that the others may take."""
    beginning, timed = check.at_the_beginning(wanted, 16), check.one_by_one(wanted)
    expected = check.expected_seconds([*beginning, *timed])
    left = check.LIMIT_SECONDS - expected
    others = [job.limit_seconds for job in check.side_by_side(wanted, 16, left)]
    assert expected + max(others, default=0) <= check.LIMIT_SECONDS <= 8 * 60 - 20
    assert beginning[0].name == "prewarm"
    (switches,) = [parsed(job.command[2], job.command[3:]).switches for job in beginning[:1]]
    assert switches == len([job for job in timed if job.name.startswith("switches")])
