import inspect
import json

import pytest

import dynbatch as db
from benchmarks import unbatched
from benchmarks.unbatched import CASES, COMPARED, Case, Row, measure, table
from benchmarks.workloads.contender import DynbatchContender
from tests.marks import quick

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.mark.parametrize("workload", quick(["tree"], COMPARED))
def test_both_policies_are_timed_on_every_workload(workload):
    row = measure(workload, Case("two", (3, 1), is_tiny=True), rounds=1, seed=0)
    assert (row.workload, row.case) == (workload, "two")
    assert row.batched_ms > 0 and row.one_by_one_ms > 0


def test_what_is_compared_is_the_default_policy():
    default = inspect.signature(db.Graph).parameters["policy"].default
    assert DynbatchContender.policy == default


@pytest.mark.exhaustive
def test_the_command_prints_a_row_a_case(monkeypatch, capsys):
    monkeypatch.setattr(unbatched, "CASES", (Case("one word", (1,), is_tiny=True),))
    assert unbatched.main(["tagger", "tree", "--rounds", "1", "--json"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert [row["workload"] for row in rows] == ["tagger", "tree"]
    assert set(rows[0]) == {"workload", "case", "batched_ms", "one_by_one_ms", "speed"}
    assert "least gain" in printed.err


def test_without_a_name_all_workloads_are_measured(monkeypatch, capsys):
    monkeypatch.setattr(
        unbatched, "measure", lambda workload, case, *_: Row(workload, case.name, 1.0, 1.0)
    )
    assert unbatched.main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["workload"] for row in rows[:: len(CASES)]] == list(COMPARED)


def test_the_last_line_names_the_least_gain():
    rows = [Row("tagger", "long", 2.0, 6.0), Row("tree", "short", 2.0, 1.9)]
    lines = table(rows, "").splitlines()
    assert lines[1].split() == ["tagger", "long", "2.00", "6.00", "3.00"]
    assert lines[-1] == "least gain 0.95: tree, short"
    assert len({len(line) for line in lines[:-1]}) == 1


def test_there_are_cases_in_which_batching_has_little_to_win():
    lengths = [case.lengths for case in CASES]
    assert () in lengths and (1,) in lengths and (22,) * 64 in lengths
