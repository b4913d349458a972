"""All workloads in one table."""

import json
import subprocess
import sys

import pytest

from benchmarks import run, together

FOUND = {
    "cnn": {"dynbatch_ms": 10.0, "peers_ms": {"pytorch-padded": 25.0, "dynet": None}},
    "tagger": {"dynbatch_ms": 4.0, "peers_ms": {"pytorch-packed": 6.0}},
}


@pytest.fixture
def commands(monkeypatch):
    """The commands that are run; each finds what stands above, or fails."""
    ran = []

    def answer(command, **settings):
        ran.append(command)
        found = FOUND.get(command[3])
        if found is None:
            return subprocess.CompletedProcess(command, 1, "", "benchmarks.run: they differ\n")
        common = {"workload": command[3], "batch": 64, "threads": 2, "device": "cpu"}
        said = "WARNING: busy\nagreement checked\ndynet   not run: no module\n"
        return subprocess.CompletedProcess(command, 0, json.dumps(common | found), said)

    monkeypatch.setattr(subprocess, "run", answer)
    return ran


def test_the_table_has_all_sides_and_their_ratios(commands, monkeypatch, capsys):
    monkeypatch.setattr(together, "TOGETHER", ("cnn", "tagger"))
    assert run.main(["all", "--batches", "2"]) == 0
    printed = capsys.readouterr()
    assert [line.split() for line in printed.out.splitlines()[1:]] == [
        ["workload", "sentences", "side", "median", "×", "dynbatch"],
        ["cnn", "64", "dynbatch", "10.0", "1.00"],
        ["pytorch-padded", "25.0", "2.50"],
        ["dynet", "not", "run"],
        ["tagger", "64", "dynbatch", "4.0", "1.00"],
        ["pytorch-packed", "6.0", "1.50"],
    ]
    assert "cnn: WARNING: busy\n" in printed.err and "tagger: dynet   not run" in printed.err
    assert "agreement" not in printed.err
    assert commands[0][1:] == ["-m", "benchmarks.run", "cnn", "--json", "--batches", "2"]
    assert commands[0][0] == sys.executable and len(commands) == 2


def test_a_workload_that_fails_is_told_and_the_others_are_shown(commands, monkeypatch, capsys):
    monkeypatch.setattr(together, "TOGETHER", ("tree", "tagger"))
    assert run.main(["all", "--json"]) == 1
    printed = capsys.readouterr()
    assert [found["workload"] for found in json.loads(printed.out)] == ["tagger"]
    assert "tree: benchmarks.run: they differ" in printed.err


def test_every_workload_of_the_table_is_one():
    assert set(together.TOGETHER) <= run.WORKLOADS.keys()
