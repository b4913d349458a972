import json
import sys

import pytest

import dynbatch as db
from benchmarks.files_executed import PACKAGE, calls_by_file, main, warm_step_files
from dynbatch import nodes as F

pytestmark = pytest.mark.usefixtures("same_threads")


def test_a_step_runs_files_of_the_package_and_no_others():
    calls = warm_step_files()
    assert {"graph.py", "models/rnn.py", "optim/adam.py"} <= set(calls)
    assert all((PACKAGE / name).is_file() and n > 0 for name, n in calls.items())


def test_a_warm_step_runs_the_files_of_the_step_before_it():
    assert set(warm_step_files(warm_up=3)) == set(warm_step_files(warm_up=4))


def test_calls_outside_the_package_are_not_counted():
    assert calls_by_file(lambda: json.dumps([1])) == {}


def test_the_profiler_that_was_set_is_put_back_after_an_error():
    def profiler(*_):
        pass

    sys.setprofile(profiler)
    try:
        with db.Graph() as graph, pytest.raises(db.errors.ShapeError):
            calls_by_file(lambda: F.input(graph, [1.0, 2.0]) + F.input(graph, [1.0, 2.0, 3.0]))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_the_last_line_counts_the_files(capsys):
    assert main(["--json"]) == 0
    printed = capsys.readouterr()
    calls = json.loads(printed.out)
    assert printed.err.splitlines()[-1].endswith(f"calls in {len(calls)} files")
