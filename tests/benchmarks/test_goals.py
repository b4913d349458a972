from argparse import Namespace

from benchmarks import goals, one_long, run
from benchmarks.peers import TRANSFORMER_PEERS


def test_every_goal_has_its_line(monkeypatch, capsys):
    asked = []

    def measured(arguments):
        asked.append(arguments)
        if arguments[0] == "benchmarks.one_long":
            return {"time_ratio": 1.05, "memory_ratio": 1.2, "goal": 1.1}
        one_thread = "1" in arguments[arguments.index("--threads") + 1 :][:1]
        peers = dict.fromkeys(TRANSFORMER_PEERS, 100.0) | {"pytorch-nested": None}
        return {
            "dynbatch_ms": 80.0 if one_thread else 50.0,
            "peers_ms": peers,
            "host_share": 0.04,
            "nodes_per_sentence": 6.0,
        }

    monkeypatch.setattr(goals, "measure", measured)
    assert goals.main(["--heads", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "reached  two threads: times the speed of pytorch-padded 2.00 (goal >= 1.7)" in lines
    assert "told     two threads: times the speed of pytorch-by-sentence 2.00" in lines
    assert "reached  two threads, times one 1.60 (goal >= 1.5)" in lines
    assert "reached  nodes a sentence 6.00 (goal <= 10)" in lines
    assert lines[-10:-8] == [
        "MISSED   short sentences and a long one: memory, together over apart 1.20 (goal <= 1.1)",
        "told     lengths alike: times the speed of pytorch-padded 2.00",
    ]
    assert not any("pytorch-nested" in line for line in lines)
    assert sum(["8" in command for command in asked]) == 3


def test_the_commands_are_those_of_the_benchmarks():
    for command in goals.commands(Namespace(heads=4, rounds=2)).values():
        module, *arguments = command
        parsed = {"benchmarks.run": run.parse, "benchmarks.one_long": one_long.parse}[module](
            arguments
        )
        assert parsed.json and parsed.threads in (1, 2)
