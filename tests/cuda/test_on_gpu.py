"""The tests for a card are chosen from all, and no crash among them hides the others."""

import ast
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import suite
from tests.cuda import devices, on_gpu

CONFTEST = """
import pytest

@pytest.fixture
def cuda():
    pass

@pytest.fixture(params=["shuffled", "gpu"])
def cupy(request):
    return request.param
"""
TESTS = """
import os, time
import pytest

def test_of_the_host(): pass
def test_fails(cuda): assert 1 == 2
def test_crashes(cuda): os.kill(os.getpid(), 11)
def test_skips(cuda): pytest.skip("for a reason")
def test_hangs(cuda): time.sleep(600)
def test_ways(cupy): assert cupy == "gpu"
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_devices(device): assert device == "cuda"
"""


def last(states):
    *_, state = states
    return state


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text("import no_such_module\n")
    (tmp_path / "test_wrong.py").write_text("1 / 0\n")
    return tmp_path


@pytest.mark.exhaustive
def test_every_test_is_accounted_for(folder, monkeypatch):
    monkeypatch.setattr(suite, "STALL_SECONDS", 20)
    found = last(suite.run([str(folder)], 2, 120, keep=folder / "kept" / "tests.txt"))
    assert not found["time_ran_out"] and found["not_run"] == 0
    assert (found["collected"], found["passed"], found["skipped"]) == (6, 2, 1)
    failures = [failure for failures in found["failures"].values() for failure in failures]
    failed = {failure["test"].split("::")[-1]: failure["why"] for failure in failures}
    wrong = next(name for name in failed if name.endswith("test_wrong.py"))
    assert failed.keys() == {"test_crashes", "test_fails", "test_hangs", wrong}
    assert "ZeroDivisionError" in failed[wrong]
    assert "assert 1 == 2" in failed["test_fails"]
    assert failed["test_crashes"] == "its process ended, or hung"
    assert list(found["files_without"].values()) == ["no_such_module"]
    assert found["skip_reasons"] == ["Skipped: for a reason"]
    kept = folder / "kept" / "tests.txt"
    events = [event for event in on_gpu.read(kept) if "started" in event]
    assert {event["started"].split("::")[-1] for event in events} >= failed.keys() - {wrong}
    assert kept.read_text().count("short test summary") > 1  # of several processes


def test_a_test_that_is_stopped_for_lack_of_time_has_not_failed(folder, monkeypatch):
    """Nor has one that is at it while the counts are told; what had ended is kept on disk."""
    (folder / "test_some.py").write_text(
        "import time\n"
        "def test_a(cuda): pass\n"
        "def test_b(cuda):\n"
        "    open(__file__ + '.begun', 'w').close()\n"
        "    time.sleep(600)\n"
        "def test_c(cuda): pass\n"
    )
    monkeypatch.setattr(suite, "TOLD_SECONDS", 0.01)
    states = suite.run([str(folder / "test_some.py")], 1, 60, keep=folder / "kept")
    for _ in states:
        if (folder / "test_some.py.begun").exists():
            break
    monkeypatch.setattr(suite.time, "monotonic", lambda: float("inf"))
    told, found = itertools.islice(states, 1), last(states)
    for state in (*told, found):
        assert (state["passed"], state["failed"], state["not_run"]) == (1, 0, 2)
        assert state["time_ran_out"] and state["failures"] == {}
        assert state["on"] == ("a GPU" if devices.has_gpu() else "the stand-in")
    assert on_gpu.read(folder / "kept")[-1]["started"].endswith("test_b")


def events(path, count, outcome):
    for k in range(count):
        test = f"{path}::test_{k}"
        yield from ({"started": test}, {"ended": test, "outcome": outcome, "why": "E  no"})


def test_failures_are_told_by_file_up_to_200():
    records = [[*events("tests/a.py", 3, "failed"), *events("tests/b.py", 300, "failed")]]
    found = suite.summary(records)
    assert found["failed"] == 303
    assert {path: len(tests) for path, tests in found["failures"].items()} == {
        "tests/a.py": 3, "tests/b.py": 197,
    }  # fmt: skip


def test_the_kernels_of_all_processes_are_counted_once():
    records = [
        [{"ended": "a", "outcome": "passed", "why": "", "kernels": ["fill", "adam"]}],
        [{"ended": "b", "outcome": "passed", "why": "", "kernels": ["fill"]}],
    ]
    assert suite.summary(records)["kernels"] == 2


@pytest.mark.parametrize(("has_begun", "seconds"), [(False, 150), (True, 75)])
def test_a_process_has_more_time_until_its_first_test(tmp_path, monkeypatch, has_begun, seconds):
    """Its tests are collected first, from a disk that may be cold."""
    shard = object.__new__(suite.Shard)
    shard.record = tmp_path / "0.jsonl"
    shard._first, shard._seen, shard._since = 0, int(has_begun), 0.0
    shard.record.write_text('{"started": "a"}\n' * has_begun)
    shard._process = SimpleNamespace(poll=lambda: None)
    shard._starts = suite._RESTARTS + 1
    stopped = []
    monkeypatch.setattr(shard, "stop", lambda: stopped.append(True))
    for now, is_over in ((seconds, False), (seconds + 1, True)):
        monkeypatch.setattr(suite.time, "monotonic", lambda now=now: now)
        assert shard.is_done() is is_over and bool(stopped) is is_over


def test_what_a_watching_program_says_is_told_with_the_test(tmp_path):
    shard = object.__new__(suite.Shard)
    shard.log = tmp_path / "0.log"
    shard.log.write_text("""========= COMPUTE-SANITIZER
tests/a.py::test_one[gpu] PASSED [ 50%]
tests/a.py::test_two[gpu-float32]
========= Invalid __global__ write of size 4 bytes
=========     at spread+0x10 in spread.cu:12
========= Error: Race reported between Write access at 0x1 and Read access at 0x2
========= ERROR SUMMARY: 2 errors
""")
    assert shard.findings() == [
        "tests/a.py::test_two[gpu-float32]: Invalid __global__ write of size 4 bytes",
        "tests/a.py::test_two[gpu-float32]: Error: Race reported between Write access at 0x1 and "
        "Read access at 0x2",
    ]


@pytest.mark.exhaustive
def test_tests_run_under_another_program(folder):
    """It is started in front of Python, and a finding fails what passed."""
    under = [sys.executable, str(folder / "watcher.py")]
    (folder / "watcher.py").write_text(
        "import subprocess, sys\n"
        "status = subprocess.run(sys.argv[1:]).returncode\n"
        "print('========= Invalid __shared__ read of size 8 bytes', flush=True)\n"
        "raise SystemExit(status)\n"
    )
    (folder / "test_some.py").write_text("def test_passes(cuda): pass\n")
    for name in ("test_other.py", "test_wrong.py"):
        (folder / name).unlink()
    found = last(suite.run([str(folder)], 1, 60, under))
    assert (found["passed"], found["failed"], len(found["findings"])) == (1, 0, 1)
    assert "test_passes: Invalid __shared__ read" in found["findings"][0]


def test_no_time_is_said(folder):
    found = last(suite.run([str(folder)], 1, 0.0))
    assert found["time_ran_out"] and found["collected"] == 0 and "log" in found


def test_a_line_that_was_cut_off_ends_the_record(tmp_path):
    path = tmp_path / "record.jsonl"
    assert on_gpu.read(path) == []
    path.write_text(json.dumps({"collected": 2}) + '\n{"started": "a')
    assert on_gpu.read(path) == [{"collected": 2}]


def test_the_device_says_when_it_is_lost(monkeypatch):
    class Lost(Exception):
        pass

    def synchronize():
        raise Lost("cudaErrorIllegalAddress")

    runtime = SimpleNamespace(deviceSynchronize=synchronize, CUDARuntimeError=Lost)
    fake = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    assert on_gpu.device_error() == "cudaErrorIllegalAddress"
    runtime.deviceSynchronize = lambda: None
    assert on_gpu.device_error() == ""


def test_what_asks_for_the_card_sets_nothing_of_the_stand_in():
    """On a card there is one GPU, whatever is said to a stand-in that nobody uses.

    A fixture or test that looks which of the two it was given may.
    """
    wrong = []
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        if "fake_cupy" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        settings = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "tests.cuda.fake_cupy"
            for alias in node.names
        }
        for function in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
            asked = {arg.arg for arg in function.args.args} & {"cuda", "device", "cupy"}
            sets = [
                node
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute | ast.Name)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node).split(".")[0] in settings
            ]
            if asked and sets:
                wrong.append(f"{path.name}::{function.name} sets {ast.unparse(sets[0])}")
    assert wrong == []
