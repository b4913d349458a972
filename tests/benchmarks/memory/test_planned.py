"""`benchmarks.memory.planned`: a step on a GPU as it was planned, and as the simulator ran it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.memory import planned
from tests.cuda import devices


def test_a_model_is_planned_and_measured(capsys: Any) -> None:
    with devices.device("shuffled"):  # or a skip
        pass
    assert planned.main(["crf"]) == 0
    head, columns, row = capsys.readouterr().out.splitlines()
    assert head == "32 sentences, 490 words" and columns.split()[-1] == "device"
    name, *numbers, verdict = row.split()
    assert (name, verdict) == ("crf", "equal")
    assert numbers[0::2] == numbers[1::2] and len(numbers) == 12


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
@pytest.mark.parametrize("name", planned.MODELS)
def test_all_bytes_of_a_step_are_as_planned(name: str, device: str) -> None:
    with devices.device("shuffled"):  # or a skip
        pass
    with devices.simulated(devices=2), ThreadPoolExecutor(1) as thread:
        compared = thread.submit(planned.compare, name, (5, 3, 1, 11, 4), device).result()
    assert compared.planned == compared.measured


@pytest.mark.parametrize("part", ["arena", "tables", "parameters", "gradients", "device"])
def test_a_plan_that_differs_is_said(part: str) -> None:
    step = planned.StepBytes(100, 10, 5, 5, 10, 143)
    same = planned.Compared("one", step, step)
    other = replace(same, measured=replace(step, **{part: 6}))
    assert same.is_equal and not other.is_equal
    assert planned.table([same, other]).count("equal") == 1
    assert planned.table([same, other]).endswith("DIFFERS")
