"""`kernels.move` in C against NumPy, and on threads."""

import numpy as np
import pytest

from dynbatch.kernels import move as kernels
from dynbatch.kernels.c import move as in_c
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import parallel

MOVES = {
    "rows side by side": [[0, 7, 3, 7, 5, 7]],
    "columns": [[0, 20, 0, 37, 6, 17], [17, 20, 17, 37, 6, 3]],
    "backwards": [[95, -5, 0, 9, 20, 5]],
    "nothing, then one row": [[0, 3, 0, 3, 0, 3], [4, 0, 100, 0, 1, 100]],
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES.keys())
def test_moves_leave_the_bits_that_numpy_leaves(moves, dtype, add, threads, monkeypatch):
    monkeypatch.setattr(in_c, "WORTH_A_THREAD", 16)
    monkeypatch.setattr(parallel, "num_threads", lambda: threads)
    table = np.array(moves)
    source, target = [np.random.default_rng(k).standard_normal(240).astype(dtype) for k in (0, 1)]
    # No element lies behind the last one that is moved, so that a sanitizer sees who goes on.
    ends = table[:, [0, 2]] + (table[:, [4]] - 1).clip(0) * table[:, [1, 3]].clip(0)
    there, here = (ends + table[:, [5]]).max(0)
    source, target = source[:there].copy(), target[:here].copy()
    expected = target.copy()
    assert in_c.run(source, target, table, add) == kernels.num_elements(table) * target.itemsize
    with library.reference_only():
        kernels.run(source, expected, table, add)
    assert np.array_equal(target, expected)


def test_sums_at_one_place_come_in_the_order_of_the_moves(monkeypatch):
    monkeypatch.setattr(in_c, "WORTH_A_THREAD", 16)
    source = np.float32([1e8, 1.0, -1e8])
    table = np.array([[place, 0, 0, 0, 1, 1] for place in (0, 2, 1)])
    target = np.zeros(1, np.float32)
    in_c.run(source, target, table, True)
    assert target[0] == 1.0
