import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.kernels import rows as kernels

pytestmark = pytest.mark.usefixtures("block")


@given(
    st.lists(st.integers(0, 5), max_size=30), st.sampled_from([1, 40]), st.integers(0, 2**32 - 1)
)
def test_rows_are_summed_by_id_and_scattered(ids, width, seed):
    ids = np.array(ids, np.int64)
    rows = np.random.default_rng(seed).standard_normal((ids.size, width))
    expected = np.zeros((6, width))
    np.add.at(expected, ids, rows)
    found, sums = kernels.sum_rows_by_id(ids, rows)
    assert found.tolist() == np.unique(ids).tolist()
    np.testing.assert_allclose(sums, expected[found], rtol=1e-12, atol=1e-12)
    out = np.full((6, width), np.nan)
    kernels.scatter_rows(rows, ids, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_a_very_frequent_id_is_summed_like_any_other():
    ids = np.concatenate((np.zeros(5000, np.int64), np.arange(1, 100)))
    found, sums = kernels.sum_rows_by_id(ids, np.ones((ids.size, 64)))
    assert found.tolist() == list(range(100))
    assert sums[:, 0].tolist() == [5000] + [1] * 99


def test_rows_are_gathered_with_duplicates():
    rows = np.arange(6.0).reshape(3, 2)
    out = np.empty((4, 2))
    kernels.gather_rows(rows, np.array([2, 0, 0, 1]), out)
    assert out.tolist() == [[4, 5], [0, 1], [0, 1], [2, 3]]
    kernels.gather_rows(rows[:0], np.array([], np.int64), out[:0])
