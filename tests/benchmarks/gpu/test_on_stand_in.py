"""The whole check on the stand-in: all parts end, and what had ended outlives any end of it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.gpu import check
from benchmarks.gpu.job import ROOT
from tests.cuda import simulator
from tests.marks import quick


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(simulator.missing()), reason=str(simulator.missing()))
def test_every_part_ends_on_the_stand_in_and_is_on_disk_when_it_has(stand_in_python, tmp_path):
    out = tmp_path / "out"
    command = [stand_in_python, "-m", "benchmarks.gpu.check", "--keep", out, "--limit", "900"]
    seen = [0]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"OUT": str(out)}, text=True, stdout=subprocess.PIPE
    ) as running:
        while running.poll() is None:
            for path in out.glob("gpu-*.json"):
                seen.append(len(json.loads(path.read_text())["parts"]))
            time.sleep(0.05)
        text = running.stdout.read()
    (path,) = out.glob("gpu-*.json")
    report = json.loads(path.read_text())
    jobs = [
        *check.at_the_beginning(check.PARTS, 2), *check.side_by_side(check.PARTS, 2, 1.0),
        *check.one_by_one(check.PARTS),
    ]  # fmt: skip
    kinds = {job.name.split(",")[0] for job in jobs}
    assert {name.split(",")[0] for name in report["parts"]} == kinds
    states = {name: part["state"] for name, part in report["parts"].items()}
    assert set(states.values()) <= {"passed", "skipped"}, states
    assert sorted(seen) == seen and len(set(seen)) > len(states) - 5  # those skipped are one
    assert report["parts"]["tests"]["found"]["passed"] > 5
    assert report["parts"]["tests"]["found"]["on"] == "the stand-in"
    assert '{"ended"' in (out / "tests.txt").read_text()
    assert "written to" in text and running.returncode == 0


# The check itself with parts that do nothing: JSON after each, of what it says it had written.
DRIVER = """
import json, sys
from benchmarks.gpu import check

def module(name, *arguments):
    found = {"card": "A Card", "cores": 2} if name == "machine" else {}
    return [sys.executable, "-ISc", f"print({json.dumps(json.dumps(found))})"]

def write(report, folder, write=check.write):
    path = write(report, folder)
    print(json.dumps(list(report["parts"])), flush=True)
    return path

check.module, check.write, check.GENERATION = module, write, module("generation")
check.as_text = lambda report: ""
check.main(["--results", sys.argv[1]])
"""


@pytest.mark.parametrize("moment", quick([1, 17], range(1, 50, 2)))
def test_a_check_that_is_killed_leaves_the_parts_that_had_ended(tmp_path, moment):
    command = [sys.executable, "-c", DRIVER, tmp_path]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        said = [running.stdout.readline() for _ in range(moment)]
        time.sleep(0.002 * moment)  # into the next
        running.send_signal(signal.SIGKILL)
        said += running.stdout.readlines()
    assert running.returncode == -signal.SIGKILL
    told = [json.loads(line) for line in said if line[:1] == "[" and line[-1:] == "\n"]
    (path,) = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert list(report["parts"])[: len(told[-1])] == told[-1]
    assert len(report["parts"]) - len(told[-1]) <= 1 and report["machine"]["card"] == "A Card"
    assert len(told) >= moment and len(told[-1]) >= moment - 1
