from argparse import Namespace

import pytest

from benchmarks import goals, one_long, run
from benchmarks.goals import GAINS, MEASUREMENTS
from benchmarks.workloads import WORKLOADS


def measured(arguments):
    """What a benchmark would print: every peer takes 100 ms, we 50 on two threads and 80 on one."""
    if arguments[0] == "benchmarks.one_long":
        return {"time_ratio": 1.05, "memory_ratio": 1.2, "goal": 1.1}
    one_thread = arguments[arguments.index("--threads") + 1] == "1"
    peers = dict.fromkeys(WORKLOADS[arguments[1]].peers, 100.0) | {"pytorch-nested": None}
    return {
        "dynbatch_ms": 80.0 if one_thread else 50.0,
        "peers_ms": peers,
        "host_share": 0.04,
        "nodes_per_sentence": 6.0,
    }


def test_every_goal_has_its_line(monkeypatch, capsys):
    monkeypatch.setattr(goals, "measure", measured)
    assert goals.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "MISSED   tagger, 2 threads: times the speed of pytorch-padded 2.00 (goal >= 2.8)" in lines
    )
    assert (
        "reached  seq2seq, 2 threads: times the speed of pytorch-select 2.00 (goal >= 2.0)" in lines
    )
    assert "told     tree, 1 thread: times the speed of pytorch-nodes 1.25" in lines
    assert "reached  Transformer, 2 threads: times one thread's speed 1.60 (goal >= 1.6)" in lines
    assert "reached  nodes a sentence 6.00 (goal <= 10)" in lines
    assert (
        "MISSED   short sentences and a long one: memory, together over apart 1.20 (goal <= 1.1)"
        in lines
    )
    assert not any("pytorch-nested" in line for line in lines)


def test_one_workload_can_be_asked_for_alone(monkeypatch, capsys):
    monkeypatch.setattr(goals, "measure", measured)
    assert goals.main(["--only", "tree"]) == 0
    assert all(" tree, " in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("against", ["", "/elsewhere"])
def test_the_commands_are_those_of_the_benchmarks(against):
    for command in goals.commands(Namespace(only="", rounds=2, against=against)).values():
        module, *arguments = command
        parsed = {"benchmarks.run": run.parse, "benchmarks.one_long": one_long.parse}[module](
            arguments
        )
        assert parsed.json and parsed.threads in (1, 2)
        assert getattr(parsed, "against", against) == against


def test_every_peer_with_a_goal_is_one_of_its_workload():
    for _, options, faster in MEASUREMENTS:
        assert set(faster) <= set(WORKLOADS[options.split()[0]].peers)
    names = [name for name, _, _ in MEASUREMENTS]
    assert all(two in names and one in names for two, one, _ in GAINS)
