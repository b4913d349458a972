"""Values and bits of a device beside those of the CPU."""

import numpy as np
import pytest

from benchmarks.gpu import correct
from tests.benchmarks.gpu.small import each_workload, tiny


@each_workload
def test_numbers_and_bits_are_compared(cuda, workload):
    *before, found = [dict(state) for state in correct.measure(tiny(workload))]
    assert [(state["repeats"], state["check"]) for state in before] == [(None, None), (True, None)]
    assert found["agrees"] and found["repeats"] and found["check"] == ""
    assert "loss" in found["differences"] and len(found["differences"]) > 5


@pytest.mark.parametrize("value", [2.0, np.nan])
def test_one_wrong_element_is_a_difference(value):
    expected = {"a": np.array([1.0, -4.0]), "b": np.ones(2)}
    found = correct.relative_differences({"a": np.array([value, -4.0]), "c": np.ones(1)}, expected)
    assert found["b"] == found["c"] == float("inf")
    assert not found["a"] <= correct.TOLERANCE
    assert value != 2.0 or found["a"] == 0.25
