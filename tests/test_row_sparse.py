"""Gradients in which only some rows are non-zero."""

import numpy as np

import dynbatch as db


def matrix(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_a_row_sparse_gradient_is_summed_and_made_dense_anywhere(device):
    one = db.RowSparse(np.array([1, 4]), matrix(2, 3) + 1, (6, 3)).to(device)
    other = db.RowSparse(np.array([0, 4, 5]), matrix(3, 3) - 9, (6, 3)).to(device)
    total = one + other
    expected = np.zeros((6, 3), np.float32)
    expected[[1, 4]] += matrix(2, 3) + 1
    expected[[0, 4, 5]] += matrix(3, 3) - 9
    assert total.rows.tolist() == [0, 1, 4, 5]
    dense = total.dense()
    if device == "cuda":  # as CuPy reads them, without asking dynbatch
        assert np.array_equal(dense.get(), expected)
        assert np.array_equal((one + other).values.get(), expected[[0, 1, 4, 5]])
    assert isinstance(dense, np.ndarray) is (device == "cpu")
    assert np.array_equal(db.Parameter(dense).numpy(), expected)
    assert np.array_equal(np.asarray(total), expected)
    assert np.array_equal(
        db.Parameter((one + one).to("cpu").dense()).value[4], 2 * matrix(2, 3)[1] + 2
    )
    nothing = db.RowSparse(np.zeros(0, np.int64), matrix(0, 3), (6, 3)).to(device)
    assert not db.Parameter(nothing.dense()).numpy().any()


def test_its_bytes_are_those_of_rows_and_values():
    gradient = db.RowSparse(np.array([1, 3]), np.ones((2, 4), np.float32), (20, 4))
    assert gradient.nbytes == 2 * 8 + 2 * 4 * 4
