"""Kernels of rows of logits, against NumPy's."""

import numpy as np
import pytest

from dynbatch.kernels.choosing import draws, edits, ranks
from dynbatch.kernels.choosing.edits import ListedIds, RowEdits
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

CLASSES = (1, 2, 31, 32, 33, 300, 1025)
CUTS = np.array(
    [[1, 0, 1, 0], [0.7, 0, 1, 0], [1, 5, 1, 0], [1, 0, 0.6, 0.01], [1, 0, 1, 0.2],
     [1.5, 30, 0.9, 0.02], [1, 1, 1, 0]]
)  # fmt: skip


def logits(dtype, rows, classes, seed=0):
    x = np.random.default_rng(seed).standard_normal((rows, classes)) * 3
    x[:, ::3] = np.round(x[:, ::3])
    return x.astype(dtype)


def drawn(module, x, uniforms):
    out = module.empty(len(x), np.int32)
    draws.draw_rows(module.asarray(x), uniforms, out)
    queue().flush()
    return out.get()


@pytest.mark.parametrize("classes", CLASSES)
def test_rows_are_cut(cupy, dtype, classes):
    x = logits(dtype, len(CUTS), classes)
    x[3] = 0  # of equal ones the first stay
    with launches(1):
        assert_versions_agree(draws.cut_rows, Values(x), CUTS)


@pytest.mark.parametrize("classes", CLASSES)
def test_tokens_are_drawn(cupy, dtype, classes):
    x = logits(dtype, 6, classes)
    x[2, : classes // 2] = -np.inf
    uniforms = np.array([0, 0.3, np.nextafter(1, 0), -1, -1, 0.9])
    expected = np.empty(6, np.int64)
    draws.draw_rows(x, uniforms, expected)
    assert drawn(cupy, x, uniforms).tolist() == expected.tolist()


def test_a_row_is_drawn_from_as_alone(cupy, dtype):
    x, uniforms = logits(dtype, 4, 100), np.array([0.2, 0.5, 0.7, -1])
    alone = [drawn(cupy, x[k : k + 1], uniforms[k : k + 1])[0] for k in range(4)]
    assert drawn(cupy, x, uniforms).tolist() == alone


@pytest.mark.parametrize("classes", CLASSES)
def test_rows_are_ranked(cupy, dtype, classes):
    x, count = logits(dtype, 3, classes), min(classes, 7)
    x[1, 1:] = -np.inf
    expected, found = np.empty((3, count), np.int64), cupy.empty((3, count), np.int32)
    ranks.rank_rows(x, expected)
    values, taken = cupy.asarray(x), cupy.empty((3, count), dtype)
    with launches(2):
        ranks.rank_rows(values, found)
        ranks.take_from_rows(values, found, taken)
        queue().flush()
    assert found.get().tolist() == expected.tolist()
    assert (taken.get() == np.take_along_axis(x, expected, axis=1)).all()


def listed(*rows):
    ids = [one for row in rows for one in row]
    ends = np.cumsum([0, *[len(row) for row in rows]])
    return ListedIds(np.array(ids, np.int64), ends)


def table(dtype):
    """Edits of rows 4, 0, 2 and 1 of logits (5, 40)."""
    factors, amounts = np.array([1.3, 1.3, 0.5], dtype), np.array([0, 0.25, 1], dtype)
    return RowEdits(
        np.array([4, 0, 2, 1]), listed([3, 39], [], [5], []), factors, amounts,
        listed([3, 7], [1], [], []), listed([], [], range(0, 40, 3), [8]),
        np.array([0, 0, 1, 2], np.int32),
    )  # fmt: skip


def test_rows_are_edited(cupy, dtype):
    with launches(1):
        assert_versions_agree(edits.edit_rows, Values(logits(dtype, 5, 40)), table(dtype))


def exercise(kernels):
    """Each kernel with a barrier, with what needs it."""
    empty = kernels.cupy.empty
    for rows in ([[3.0] * 200 + [1.0] * 100] * 2, logits(kernels.dtype, 2, 300)):
        x = kernels.cupy.asarray(np.asarray(rows, kernels.dtype))
        out, grid = empty((2, 3), np.int32), ((2,), (256,))
        uniforms = kernels.cupy.asarray(np.array([0.5, 0.99]))
        kernels.launch("rank_rows", *grid, (x, out, 300, 3, 1))
        kernels.launch("draw_rows", *grid, (x, uniforms, out.reshape(-1)[:2], 300))
        cuts = kernels.cupy.asarray(np.tile([1.0, 0, 0.4, 0.1], (2, 1)))
        kernels.launch("cut_rows", *grid, (x, cuts, 300))
    tables = ([0], [40, 3], [0, 2], [3, 40], [3], [0, 1], [1])
    row, some, ends, others, kept, one, limit = [
        kernels.cupy.asarray(np.array(ids, np.int32)) for ids in tables
    ]
    real = kernels.cupy.asarray(np.ones(2, kernels.dtype))
    args = (x, row, some, ends, real, real, others, ends, kept, one, limit, 300)
    kernels.launch("edit_rows", (1,), (256,), args)
