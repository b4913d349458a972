import numpy as np
import pytest

from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.queue import queue
from tests.kernels.cuda.compare import Values, assert_equal_twins, launches

LENGTHS = (0, 1, 31, 32, 33, 1025)
rng = np.random.default_rng(0)


def normal(dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def values(dtype, *shape):
    return Values(normal(dtype, *shape))


@pytest.mark.parametrize("length", LENGTHS)
def test_filled_copied_added(cupy, dtype, length):
    x, out = values(dtype, length), values(dtype, length)
    with launches(3 * bool(length)):
        assert_equal_twins(arrays.fill, out, 2.5)
        assert_equal_twins(arrays.copy, x, out, rtol=0, atol=0)
        assert_equal_twins(arrays.accumulate, x, out)


@pytest.mark.parametrize("shape", [(1,), (33,), (31, 33), (5, 0)])
@pytest.mark.parametrize("count", [0, 1, 33])
def test_a_copy_repeats_along_leading_dimensions(cupy, dtype, shape, count):
    assert_equal_twins(arrays.copy, values(dtype, *shape), values(dtype, count, *shape), rtol=0)


def test_a_number_is_repeated(cupy, dtype):
    out = cupy.asarray(normal(dtype, 33))
    arrays.copy(cupy.asarray(np.array(2.5, dtype)), out)
    np.testing.assert_array_equal(arrays.download(out), 2.5)


def test_integers_become_floats(cupy, dtype):
    integers = np.arange(-3, 40).astype(f"i{dtype.itemsize}")
    assert_equal_twins(arrays.copy, Values(integers), values(dtype, integers.size), rtol=0)


@pytest.mark.parametrize(("first", "end"), [(0, 7), (3, 4), (2, 40)])
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_columns_are_copied_out_of_a_matrix_and_into_one(cupy, dtype, rows, first, end):
    packed, columns = normal(dtype, rows, 40), normal(dtype, rows, end - first)
    from_packed, into_packed = cupy.asarray(packed), cupy.asarray(packed)
    out = cupy.asarray(np.zeros_like(columns))
    arrays.copy(from_packed[:, first:end], out)
    arrays.copy(cupy.asarray(columns), into_packed[:, first:end])
    if end - first == 1:
        arrays.copy(from_packed[:, 5], into_packed[:, 6])
        packed[:, 6] = packed[:, 5]
    queue().flush()
    np.testing.assert_array_equal(out.get(), packed[:, first:end])
    packed[:, first:end] = columns
    np.testing.assert_array_equal(into_packed.get(), packed)


def test_what_copy_refuses(cupy):
    x, matrix = cupy.asarray(np.zeros(6, np.float32)), cupy.asarray(np.zeros((6, 4), np.float32))
    with pytest.raises(ShapeError, match=r"an array \(6,\) into one \(6, 4\)"):
        arrays.copy(x, matrix)
    with pytest.raises(ShapeError, match=r"strides \(4, 16\)"):
        arrays.copy(matrix.T, cupy.asarray(np.zeros((4, 6), np.float32)))
    with pytest.raises(ShapeError, match="without gaps"):
        arrays.copy(x[:2], matrix[:, :2])
    for other in (np.float64, np.int64, np.int32):
        with pytest.raises(DtypeError, match="into one of"):
            arrays.copy(cupy.asarray(np.zeros((6, 2), other)), matrix[:, :2])


@pytest.mark.parametrize("width", [1, 31, 32, 33, 1025])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_bias_is_added_to_every_row(cupy, dtype, rows, width):
    with launches(bool(rows)):
        assert_equal_twins(arrays.add_bias, values(dtype, rows, width), values(dtype, width))


def test_host_arrays_come_up_in_one_copy(cupy, dtype):
    parts = [normal(dtype, *shape) for shape in [(2, 3), (0, 3), (33, 3), ()]]
    out, more = cupy.asarray(normal(dtype, 106)), cupy.asarray(normal(dtype, 3))
    uploads = queue().uploads
    with launches(2):
        arrays.upload(out, parts)
        arrays.upload(more, [np.arange(3).astype(dtype)])
        np.testing.assert_array_equal(
            arrays.download(out), np.concatenate([part.reshape(-1) for part in parts])
        )
    assert queue().uploads == uploads + 1
    np.testing.assert_array_equal(arrays.download(more), np.arange(3))


def test_a_download_is_a_copy(cupy, dtype):
    x = cupy.asarray(normal(dtype, 5))
    first = arrays.download(x)
    arrays.fill(x, 1)
    assert (first != 1).all() and (arrays.download(x) == 1).all()


def test_matrices_one_after_the_other(cupy, dtype):
    parts = [normal(dtype, rows, 5) for rows in (2, 0, 33)]
    whole = arrays.concatenate([cupy.asarray(part) for part in parts])
    packed = cupy.asarray(normal(dtype, 4, 12))
    columns = arrays.concatenate([packed[:, 2:7], packed[:, 7:]])
    np.testing.assert_array_equal(arrays.download(whole), np.concatenate(parts))
    expected = packed.get()
    np.testing.assert_array_equal(
        arrays.download(columns), np.concatenate((expected[:, 2:7], expected[:, 7:]))
    )
