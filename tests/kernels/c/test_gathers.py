"""Gathers by tables in C: what NumPy's version leaves."""

import numpy as np
import pytest

from dynbatch.kernels.gathers import GatherTable, gather, give_back
from tests.kernels.c.compare import assert_same
from tests.kernels.test_gathers import case


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 3, 16, 37])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("sums", [False, True])
def test_gathers_and_gradients(sums, several, width, dtype):
    sources, table, _ = case(sums, several, width, width)
    sources = [x.astype(dtype) for x in sources]
    if len(sources) > 1:
        sources[0] = np.repeat(sources[0], 2, axis=1)[:, :width]  # rows that lie apart
    rows = np.random.default_rng(0).normal(size=(7, width)).astype(dtype)
    assert_same(gather, sources, table, 1, 6, rows)
    assert_same(give_back, rows, table, 1, 6, sources)
    assert_same(give_back, rows, table, 0, 7, [None, *sources[1:]])


def test_all_terms_may_be_zeros():
    table = GatherTable(np.zeros(2, np.int64), np.full(2, -1))
    assert_same(gather, [], table, 0, 2, np.ones((2, 3), np.float32))
