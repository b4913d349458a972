import numpy as np
import pytest

from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.arrays import ADDITION
from dynbatch.kernels.cuda.elementwise import FUNCTIONS
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import fake_cupy
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

LENGTHS = (0, 1, 31, 32, 33, 1025)
rng = np.random.default_rng(0)


def normal(dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def values(dtype, *shape):
    return Values(normal(dtype, *shape))


def exercise(kernels):
    """One matrix of one tile: the rows that a warp writes were read by others."""
    x, out = (fake_cupy.zeros(32 * 32, np.float32) for _ in range(2))
    matrices = fake_cupy.asarray(np.array([[0, 0, 32, 32]], np.int64))
    kernels.launch("transpose_segments", (1,), (32, 8), (x, out, matrices, 1))


def test_adding_to_an_array_joins_other_kernels_as_the_sum_of_two_does():
    assert ADDITION == FUNCTIONS["add"][0]  # two texts under one name cannot both be compiled


@pytest.mark.parametrize("length", LENGTHS)
def test_filled_copied_added(cupy, dtype, length):
    x, out = values(dtype, length), values(dtype, length)
    with launches(3 * bool(length)):
        assert_versions_agree(arrays.fill, out, 2.5)
        assert_versions_agree(arrays.copy, x, out, rtol=0, atol=0)
        assert_versions_agree(arrays.accumulate, x, out)


@pytest.mark.parametrize("shape", [(1,), (33,), (31, 33), (5, 0)])
@pytest.mark.parametrize("count", [0, 1, 33])
def test_a_copy_repeats_along_leading_dimensions(cupy, dtype, shape, count):
    assert_versions_agree(arrays.copy, values(dtype, *shape), values(dtype, count, *shape), rtol=0)


def test_a_number_is_repeated(cupy, dtype):
    out = cupy.asarray(normal(dtype, 33))
    arrays.copy(cupy.asarray(np.array(2.5, dtype)), out)
    np.testing.assert_array_equal(arrays.download(out), 2.5)


def test_integers_become_floats(cupy, dtype):
    integers = np.arange(-3, 40).astype(f"i{dtype.itemsize}")
    assert_versions_agree(arrays.copy, Values(integers), values(dtype, integers.size), rtol=0)


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
        assert_versions_agree(arrays.add_bias, values(dtype, rows, width), values(dtype, width))


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


@pytest.mark.parametrize("width", [0, 1, 33])
@pytest.mark.parametrize("rows", [0, 1, 31, 33, 1025])
def test_rows_are_summed(cupy, dtype, rows, width):
    with launches(bool(width) + (rows > 256 and width > 1)):  # many rows are summed in parts
        assert_versions_agree(
            arrays.sum_rows, values(dtype, rows, width), values(dtype, width), atol=1e-4
        )


def test_the_sum_of_rows_has_the_same_bits_twice(cupy, dtype):
    rows, sums = cupy.asarray(normal(dtype, 2000, 5)), []
    for _ in range(2):
        out = cupy.empty(5, dtype)
        arrays.sum_rows(rows, out)
        sums.append(arrays.download(out).tobytes())
    assert sums[0] == sums[1]


@pytest.mark.parametrize("kernel", [arrays.scale_segments, arrays.shift_segments])
@pytest.mark.parametrize("lengths", [LENGTHS, (7,) * 5, (0, 0), ()])
def test_numbers_of_segments(cupy, dtype, kernel, lengths):
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    numbers = normal(dtype, len(lengths))
    if len(lengths):  # NumPy's version compares with the first number
        x, out = values(dtype, offsets[-1]), values(dtype, offsets[-1])
        with launches(bool(offsets[-1])):
            assert_versions_agree(kernel, x, numbers, offsets, out)


def test_numbers_of_segments_in_place(cupy, dtype):
    x, numbers, offsets = normal(dtype, 40), np.array([2, -1.5]), np.array([0, 33, 40])
    device = cupy.asarray(x)
    arrays.scale_segments(device, numbers, offsets, device)
    np.testing.assert_array_equal(
        arrays.download(device), x * np.repeat(numbers, [33, 7]).astype(dtype)
    )


EXPANSIONS = {
    "vectors to matrices": ([0, 1, 31, 32, 33, 65], (6, 3), 3),
    "some rows, some vectors": ([1, 1, 1, 4, 1, 0], (6, 33), 33),
    "equally often": ([5, 5, 5], (3, 2), 2),
    "columns": (None, (33, 1), 31),
    "numbers to matrices": ([3, 0, 40], (3, 1), 31),
    "numbers to no columns": ([3, 1], (2, 1), 0),
    "rows as they are": (None, (5, 3), 3),
    "nothing": ([0, 0], (2, 4), 4),
}


@pytest.mark.parametrize(("repeats", "shape", "width"), EXPANSIONS.values(), ids=EXPANSIONS)
def test_expansions(cupy, dtype, repeats, shape, width):
    rows = shape[0] if repeats is None else sum(repeats)
    repeats = None if repeats is None else np.array(repeats)
    x, y = values(dtype, *shape), values(dtype, rows, width)
    with launches(bool(y.array.size)):
        assert_versions_agree(arrays.expand, x, repeats, y, rtol=0, atol=0)
    with launches(1):
        assert_versions_agree(arrays.expand_backward, y, repeats, x, atol=1e-4)


@pytest.mark.parametrize("width", [1, 3])
def test_the_gradient_of_a_vector_repeated_over_a_long_sentence(cupy, dtype, width):
    y, x, repeats = values(dtype, 6000, 3), values(dtype, 2, width), np.array([5990, 10])
    assert_versions_agree(arrays.expand_backward, y, repeats, x, atol=1e-3)


@pytest.mark.parametrize(
    "shapes",
    [
        [(0, 3), (1, 1), (31, 2), (3, 0), (33, 32), (1, 40), (40, 1), (5, 33)],
        [(65, 70)],
        [(0, 2)],
        [],
    ],
)
def test_matrices_are_transposed_in_one_launch(cupy, dtype, shapes):
    size = sum(rows * columns for rows, columns in shapes)
    with launches(bool(size)):
        assert_versions_agree(
            arrays.transpose_segments, values(dtype, size), shapes, values(dtype, size), rtol=0
        )


@pytest.mark.parametrize("sizes", [[1], [31, 0, 32, 33], [1025, 1, 0, 7, 300]])
def test_parts_of_several_allocations_are_collected_in_one_launch(cupy, dtype, sizes):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(size).astype(dtype) for size in sizes]
    before = queue().launches
    found = arrays.snapshots([cupy.asarray(part) for part in parts])
    queue().flush()
    assert queue().launches - before == 1
    for part, copied in zip(parts, found, strict=True):
        assert copied.get().tobytes() == part.tobytes()


@pytest.mark.parametrize("sizes", [[1], [31, 0, 32, 33], [1025, 1, 0, 7, 300], []])
def test_a_flat_array_is_distributed_in_one_launch(cupy, dtype, sizes):
    whole = np.random.default_rng(0).standard_normal(sum(sizes)).astype(dtype)
    outs = [cupy.empty((1, size), dtype) for size in sizes]
    with launches(bool(sizes)):
        arrays.distribute(cupy.asarray(whole), outs)
        queue().flush()
    assert b"".join([out.get().tobytes() for out in outs]) == whole.tobytes()


def test_nothing_is_collected_from_nothing(cupy):
    assert arrays.snapshots([]) == []
