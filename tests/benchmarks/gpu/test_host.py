"""The host's time of a launch is measured without a card, in a process of its own."""

import json

import pytest

from benchmarks.gpu import host
from tests.cuda import simulator

if simulator.missing():
    pytest.skip(simulator.missing(), allow_module_level=True)


@pytest.mark.exhaustive  # it starts Python anew
def test_each_kind_of_launch_has_a_figure(capsys):
    host.main(["--rounds=1", "--turns=1", "--json"])
    printed = capsys.readouterr()
    (figures,) = json.loads(printed.out).values()
    assert figures.keys() == {"loop_in_turn", "loop", "ordinary"}
    assert all(figure > 0 for figure in figures.values())
    assert "ordinary" in printed.err
