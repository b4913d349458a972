"""Gradients that steps of a scan leave, summed in C."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.c.attention.steps import StepProducts
from tests.kernels.c.compare import TOLERANCE

COUNTS = [1, 1, 2, 4, 5]  # sentences of each step, the last step first
OFFSETS = np.array([0, 9, 10, 10, 14, 19])


def summed(dtype: Any, width: int, *cuts: int) -> tuple[Array, Array]:
    """The sums of C, which goes on after each of the cuts, and those of NumPy."""
    rng = np.random.default_rng(1)
    products, edges = StepProducts(), [0, *cuts, len(COUNTS)]
    out, expected = np.full((2, 19, width), 3, dtype)
    for first, end in pairwise(edges):
        for count in COUNTS[first:end]:
            weights = rng.standard_normal(OFFSETS[count]).astype(dtype)
            vectors = rng.standard_normal((count, width)).astype(dtype)
            products.add(weights, vectors)
            rows = np.repeat(vectors, np.diff(OFFSETS[: count + 1]), axis=0)
            expected[: len(rows)] += weights[:, None] * rows
        if end < len(COUNTS):
            products.sum_up(OFFSETS)
    products.add_to(out, OFFSETS)
    return out, expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 19, 70])
def test_sums_are_those_of_numpy_and_have_the_same_bits_however_often_they_go_on(
    dtype: Any, width: int
) -> None:
    whole, expected = summed(dtype, width)
    tolerance = TOLERANCE[np.dtype(dtype).char]
    np.testing.assert_allclose(whole, expected, tolerance, tolerance)
    for cut in range(1, len(COUNTS)):
        assert summed(dtype, width, cut)[0].tobytes() == whole.tobytes()
