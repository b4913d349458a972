"""`benchmarks.memory.planned`: a step on a GPU as it was planned, and as the simulator ran it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.memory import planned
from tests.cuda import devices


def test_a_model_is_planned_and_measured(capsys: Any) -> None:
    with devices.device("shuffled"):  # or a skip
        pass
    assert planned.main(["crf"]) == 0
    head, columns, row = capsys.readouterr().out.splitlines()
    assert head == "32 sentences, 490 words" and columns.split()[-3:] == ["device", "/", "planned"]
    name, *numbers, share, verdict = row.split()
    assert (name, verdict) == ("crf", "equal") and 1 <= float(share) < 1.2
    assert numbers[0] == numbers[1] and len(numbers) == 10


def test_a_plan_that_differs_is_said() -> None:
    own = planned.StepBytes(100, 10, 5, 5, 10)
    found = planned.Compared("one", own, replace(own, tables=20), 143)
    assert found.is_equal and found.share == 1.1  # tables are estimated
    other = replace(found, measured=replace(own, gradients=6))
    assert not other.is_equal
    assert planned.table([found, other]).count("equal") == 1
    assert "1.100  DIFFERS" in planned.table([found, other])
