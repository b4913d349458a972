"""`kernels.rows` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import rows as kernels
from dynbatch.kernels.c import rows as in_c
from dynbatch.kernels.runtime import parallel
from tests.kernels.c.compare import assert_same

IDS = {
    "one": np.array([3]),
    "different": np.array([200, 3, 64, 63, 0, 65, 127, 128]),
    "frequent": np.random.default_rng(0).permutation(np.repeat([0, 2, 63, 64], [1, 33, 300, 2])),
}
every_ids = pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())


def numbers(count, width, dtype):
    """Rows of a wider array, so that they do not lie side by side."""
    wide = np.random.default_rng(1).standard_normal((count, width + 3))
    return wide.astype(dtype)[:, 1 : width + 1]


@every_ids
@pytest.mark.parametrize("width", [0, 1, 16, 37])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_summed_and_added_as_by_numpy(ids, width, dtype, monkeypatch):
    monkeypatch.setattr(in_c, "WORTH_C", 0)
    rows, out = numbers(ids.size, width, dtype), numbers(201, width, dtype)
    assert_same(kernels.sum_rows_by_id, ids, rows)
    assert_same(kernels.scatter_rows, rows, ids, out)
    assert_same(kernels.add_rows_at, rows, ids, out)
    once = np.unique(ids)
    assert_same(kernels.add_rows, rows[: once.size], once, out)
    assert_same(kernels.add_rows_at, rows[:0], ids[:0], out[:0])


def test_a_sum_has_the_same_bits_with_any_threads_and_other_ids(monkeypatch):
    ids, rows = IDS["frequent"], numbers(336, 50, np.float32)
    distinct, sums = kernels.sum_rows_by_id(ids, rows)
    for id, total in zip(distinct, sums, strict=True):
        _, alone = kernels.sum_rows_by_id(ids[ids == id], rows[ids == id])
        assert alone.tobytes() == total.tobytes()
    monkeypatch.setattr(parallel, "shards", lambda count, least: [(0, 1), (1, count)])
    assert kernels.sum_rows_by_id(ids, rows)[1].tobytes() == sums.tobytes()


@pytest.mark.parametrize("index", [[0, 5], [-6, 0]])
def test_a_row_that_is_not_there_is_an_error_and_changes_nothing(index, monkeypatch):
    monkeypatch.setattr(in_c, "WORTH_C", 0)
    rows, out = numbers(2, 4, np.float32), np.ones((5, 4), np.float32)
    for kernel in (kernels.add_rows, kernels.add_rows_at):
        with pytest.raises((IndexError, ValueError)):
            kernel(rows, np.array(index), out)
        assert (out == 1).all()


def test_ids_far_apart_are_left_to_numpy():
    ids = np.array([1 << 40, 7, 1 << 40])
    distinct, sums = kernels.sum_rows_by_id(ids, np.ones((3, 2)))
    assert (distinct.tolist(), sums.tolist()) == ([7, 1 << 40], [[1, 1], [2, 2]])
