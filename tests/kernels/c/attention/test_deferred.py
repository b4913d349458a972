"""Gradients that steps of a scan leave, added in C and in NumPy."""

from typing import Any

import numpy as np
import pytest

from dynbatch.kernels.attention.deferred import step_products
from tests.kernels.c.compare import assert_same

COUNTS = [1, 1, 2, 4, 5]  # sentences of each step, the last step first
OFFSETS = np.array([0, 9, 10, 10, 14, 19])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 19, 70])
def test_products_of_steps(dtype: Any, width: int) -> None:
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal(OFFSETS[count]).astype(dtype) for count in COUNTS]
    vectors = [rng.standard_normal((count, width)).astype(dtype) for count in COUNTS]
    for steps in (1, len(COUNTS)):
        first = len(COUNTS) - steps
        out = np.full((19, width), 3, dtype)
        assert_same(step_products, weights[first:], vectors[first:], OFFSETS, out)
    before = np.full((19, width), 3, dtype)
    step_products(weights[:3], vectors[:3], OFFSETS, before)
    assert (before[10:] == 3).all()  # of sentences that no step had


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 19, 70])
def test_sums_that_go_on_have_the_bits_of_one_sum(dtype: Any, width: int) -> None:
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal(OFFSETS[count]).astype(dtype) for count in COUNTS]
    vectors = [rng.standard_normal((count, width)).astype(dtype) for count in COUNTS]
    before = rng.standard_normal((19, width)).astype(dtype)
    assert_same(step_products, weights, vectors, OFFSETS, before, before[::-1].copy())
    assert_same(step_products, weights, vectors, OFFSETS, None, before)
    whole = before.copy()
    step_products(weights, vectors, OFFSETS, whole)
    for cut in range(1, len(COUNTS)):
        found, sums = before.copy(), np.zeros_like(before)
        step_products(weights[:cut], vectors[:cut], OFFSETS, None, sums)
        step_products(weights[cut:], vectors[cut:], OFFSETS, found, sums)
        assert found.tobytes() == whole.tobytes()
