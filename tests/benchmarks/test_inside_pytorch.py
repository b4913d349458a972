import json
from functools import partial

import pytest

pytest.importorskip("torch")

from benchmarks import inside_pytorch
from benchmarks.inside_pytorch import Row, measure, table
from benchmarks.measure import Disagreement
from benchmarks.networks import TreeSizes

pytestmark = pytest.mark.usefixtures("same_threads")

SMALL = partial(measure, sizes=TreeSizes(hidden=4, embedding=3), num_batches=1, trees=2)


def test_all_three_models_agree_and_are_timed():
    row = SMALL(threads=1, rounds=1, seed=0)
    assert row.threads == 1
    assert min(row.before_ms, row.after_ms, row.by_hand_ms) > 0


def test_a_model_that_computes_something_else_is_not_timed(monkeypatch):
    from benchmarks.peers import pytorch_inside

    right = pytorch_inside.all_states
    monkeypatch.setattr(pytorch_inside, "all_states", lambda *given: -right(*given))
    with pytest.raises(Disagreement, match="pytorch-dynbatch"):
        SMALL(threads=1, rounds=1, seed=0)


def test_the_command_prints_a_line_for_each_number_of_threads(monkeypatch, capsys):
    monkeypatch.setattr(inside_pytorch, "measure", lambda threads, *_: Row(threads, 50.0, 4.0, 2.0))
    assert inside_pytorch.main(["--threads", "1", "3", "--json"]) == 0
    printed = capsys.readouterr()
    assert [(row["threads"], row["speed"]) for row in json.loads(printed.out)] == [
        (1, 12.5),
        (3, 12.5),
    ]
    assert printed.err.splitlines()[-1].split() == ["3", "50.0", "4.0", "12.5", "2.0"]


def test_a_warning_stands_above_the_table():
    assert table([Row(1, 1.0, 1.0, 1.0)], "busy").startswith("busy\n")
