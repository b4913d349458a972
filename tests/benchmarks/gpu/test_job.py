"""A part in a process of its own."""

import sys

from benchmarks.gpu import job
from benchmarks.gpu.job import Job


def test_a_job_gives_its_last_line_and_what_it_said():
    code = "import sys; print('so far'); print('{\"a\": 1}'); print('why', file=sys.stderr)"
    outcome = job.run(Job("one", [sys.executable, "-c", code], 60))
    assert (outcome.state, outcome.found, outcome.said) == ("passed", {"a": 1}, "so far\nwhy")
    failing = job.run(Job("two", [sys.executable, "-c", "print('{}x'); raise SystemExit(3)"], 60))
    assert (failing.state, failing.found, failing.said) == ("failed", {}, "{}x")


def test_a_job_that_is_ended_leaves_the_last_state_that_it_told():
    """Also where it was in the middle of telling the next, and in a process of its own."""
    code = "import time; from benchmarks.gpu.job import tell\n"
    code += "tell({'a': k} for k in range(3)); print('{\"a\": 3, \"b', end='', flush=True)\n"
    code += "import subprocess; subprocess.run(['sleep', '600'])"
    endless = job.run(Job("three", [sys.executable, "-c", code], 2))
    assert (endless.state, endless.found) == ("time ran out", {"a": 2})
    assert endless.said == '{"a": 3, "b'


def test_no_part_is_kept_from_rounding(monkeypatch):
    """Sides and tests ask for TF32; the driver's switch would take it from them unseen."""
    code = "import os, json; print(json.dumps({'is set': 'NVIDIA_TF32_OVERRIDE' in os.environ}))"
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert job.run(Job("tests", [sys.executable, "-c", code], 60)).found == {"is set": False}
