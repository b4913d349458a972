from argparse import Namespace
from types import SimpleNamespace

import pytest

from benchmarks import demo, goals, one_long, parallel, run, small_data
from benchmarks.goals import GAINS, MEASUREMENTS, WITHOUT_C
from benchmarks.workloads import WORKLOADS

OTHER = "dynbatch in elsewhere"


def measured(name, arguments):
    """The output of a benchmark: every peer takes 100 ms, we 50 on two threads and 80 on one."""
    if arguments[0] == "benchmarks.one_long":
        return {"time_ratio": 1.05, "memory_ratio": 1.2, "goal": 1.1}
    if arguments[0] == "benchmarks.parallel":
        return {name: {"times_as_fast": 1.7} for name in parallel.PEERS}
    if arguments[0] == "benchmarks.small_data":
        return {side: {"seconds": 4.0 + k} for k, side in enumerate(small_data.SIDES)}
    if arguments[0] == "benchmarks.demo":
        return {"dynbatch": {"seconds": 20.0}, OTHER: {"seconds": 30.0}}
    one_thread = arguments[arguments.index("--threads") + 1] == "1"
    names = () if arguments[-1] == "--peers" else WORKLOADS[arguments[1]].peers
    peers = dict.fromkeys(names, 100.0) | {"pytorch-nested": None}
    if "--against" in arguments:
        peers[OTHER] = 72.0
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
        "MISSED   tagger, 2 threads: times the speed of pytorch-padded 2.00 (goal >= 2.8, aim 4.0)"
        in lines
    )
    assert (
        "reached  seq2seq, 2 threads: times the speed of pytorch-select 2.00 (goal >= 2.0, aim 3.0)"
        in lines
    )
    assert "told     tree, 1 thread: times the speed of pytorch-nodes 1.25" in lines
    assert (
        "reached  Transformer, 2 threads: times one thread's speed 1.60 (goal >= 1.6, aim 1.8)"
        in lines
    )
    assert "reached  nodes a sentence 6.00 (goal <= 10)" in lines
    assert (
        "MISSED   short sentences and a long one: memory, together over apart 1.20 (goal <= 1.1)"
        in lines
    )
    told = "two processes of one thread, transformer: times one's speed 1.70"
    assert f"reached  {told} (goal >= 1.6, aim 1.8)" in lines
    best = "little data, 1 thread: times the best peer's speed 1.25 (goal >= 1)"
    assert f"reached  {best}" in lines
    assert not any("pytorch-nested" in line or "without C" in line for line in lines)


def test_another_checkout_is_compared_without_c_and_by_the_demo(monkeypatch, capsys):
    monkeypatch.setattr(goals, "measure", measured)
    assert goals.main(["--against", "/elsewhere"]) == 0
    lines = capsys.readouterr().out.splitlines()
    numpy = f"tree, 1 thread, without C: times the speed of {OTHER} 0.90 (goal >= 0.85)"
    assert f"reached  {numpy}" in lines
    assert "MISSED   the demo, whole: times as fast 1.50 (goal >= 1.6, aim 2.0)" in lines


def test_what_runs_without_c_is_told_so_by_its_environment(monkeypatch):
    told = []

    def run(command, **options):
        told.append(options["env"].get("DYNBATCH_NATIVE"))
        return SimpleNamespace(stdout="{}")

    monkeypatch.delenv("DYNBATCH_NATIVE", raising=False)
    monkeypatch.setattr(goals.subprocess, "run", run)
    goals.measure("tree, 1 thread", ["benchmarks.run"])
    goals.measure("tree, 1 thread, without C", ["benchmarks.run"])
    assert told == [None, "0"]


def test_one_workload_can_be_asked_for_alone(monkeypatch, capsys):
    monkeypatch.setattr(goals, "measure", measured)
    assert goals.main(["--only", "tree"]) == 0
    assert all(" tree, " in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("against", ["", "/elsewhere"])
def test_the_commands_are_those_of_the_benchmarks(against):
    for command in goals.commands(Namespace(only="", rounds=2, against=against)).values():
        module, *arguments = command
        parsers = (run, one_long, parallel, small_data, demo)
        parsed = {parser.__name__: parser.parse for parser in parsers}[module](arguments)
        assert parsed.json and getattr(parsed, "threads", 1) in (1, 2)
        assert getattr(parsed, "against", against) == against


def test_every_peer_with_a_goal_is_one_of_its_workload():
    for _, options, faster in MEASUREMENTS:
        assert set(faster) <= set(WORKLOADS[options.split()[0]].peers)
    names = [name for name, _, _ in MEASUREMENTS]
    assert all(two in names and one in names for two, one, _ in GAINS)
    assert set(WITHOUT_C) <= set(names)
