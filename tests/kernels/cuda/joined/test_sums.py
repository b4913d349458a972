import numpy as np
import pytest

from dynbatch.kernels import arrays
from dynbatch.kernels import layer_norm as kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import launches
from tests.kernels.cuda.test_segment import normal
from tests.kernels.table.norms import statistics


def test_sums_over_many_rows_share_their_last_launch(cupy):
    shapes = ((257, 3), (600, 300), (256, 5), (0, 4), (1000, 1))
    given = [normal(dtype, *shape).array for dtype in ("f4", "f8") for shape in shapes]
    sums = [cupy.empty(rows.shape[1], rows.dtype) for rows in given]
    with launches(2 * len(shapes) + 2):  # one for each, and one for each dtype
        for rows, out in zip(given, sums, strict=True):
            arrays.sum_rows(cupy.asarray(rows), out, later=True)
        queue().flush()
    for rows, out in zip(given, sums, strict=True):
        atol = 1e-3 if out.dtype == np.float32 else 1e-11
        np.testing.assert_allclose(out.get(), rows.sum(axis=0), atol=atol)


def test_parts_of_very_many_rows_are_summed_in_parts_themselves(cupy, dtype):
    rows, out = normal(dtype, 20000, 2).array, cupy.empty(2, dtype)
    with launches(3):
        arrays.sum_rows(cupy.asarray(rows), out, later=True)
        queue().flush()
    atol = 1e-2 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(out.get(), rows.sum(axis=0), atol=atol)


def test_a_sum_has_the_same_bits_alone_and_beside_others(cupy, dtype):
    rows, other = [cupy.asarray(normal(dtype, n, 40, seed=n).array) for n in (700, 300)]
    alone, later, beside = [cupy.empty(40, dtype) for _ in range(3)]
    arrays.sum_rows(rows, alone)
    arrays.sum_rows(other, beside, later=True)
    arrays.sum_rows(rows, later, later=True)
    queue().flush()
    assert alone.get().tobytes() == later.get().tobytes()


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_parameters_of_norms_are_among_them(cupy, dtype, wanted):
    x, dy = [normal(dtype, 600, 33, seed=seed).array for seed in range(2)]
    mean, rstd = [each.astype(dtype) for each in statistics(x, True)[1:]]
    expected = [np.empty(33, dtype) if one else None for one in wanted]
    normals = kernels.Normals(x, mean[:, None], rstd[:, None])
    kernels.layer_norm_parameters(dy, normals, *expected)
    of_device = [cupy.asarray(array) for array in (x, mean[:, None], rstd[:, None])]
    found = [cupy.empty(33, dtype) if one else None for one in wanted]
    with launches(2):
        parameters = kernels.Normals(*of_device), *found
        kernels.layer_norm_parameters(cupy.asarray(dy), *parameters, later=True)
        queue().settle()
        queue().flush()
    for mine, reference in zip(found, expected, strict=True):
        if reference is not None:
            atol = 1e-3 if dtype == "float32" else 1e-10
            np.testing.assert_allclose(mine.get(), reference, atol=atol)


def test_what_failed_before_the_queue_was_settled_is_forgotten(cupy):
    rows, out = cupy.asarray(normal("f4", 300, 3).array), cupy.empty(3, "f4")
    arrays.sum_rows(rows, out, later=True)
    queue().discard()
    with launches(0):
        queue().flush()


def test_where_all_is_started_at_once_nothing_waits(cupy):
    rows, out = normal("f4", 300, 3).array, cupy.empty(3, "f4")
    with queue().at_once(), launches(2):
        arrays.sum_rows(cupy.asarray(rows), out, later=True)
    np.testing.assert_allclose(out.get(), rows.sum(axis=0), atol=1e-4)
