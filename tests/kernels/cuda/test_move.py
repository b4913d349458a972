import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.kernels import move as kernels
from dynbatch.kernels.cuda import move
from dynbatch.kernels.cuda.rows import RowGather, gather_many, row_table
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import fake_cupy
from tests.kernels.cuda.compare import launches

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def normal(dtype, *shape):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def exercise(kernels):
    """Several long segments to a block, so that `partial` is written again."""
    ids = np.append(np.repeat([0, 1, 2, 3, 4], [100, 1, 50, 40, 9]), np.arange(5, 255))
    table = row_table(ids)
    rows = fake_cupy.zeros((ids.size, 3), np.float32)
    out = fake_cupy.zeros((256, 3), np.float32)
    segments = table.targets.size
    args = (rows, *[fake_cupy.asarray(part) for part in table], out, segments, 3, True)
    kernels.launch("add_rows", (-(-segments // 8), 1), (32, 8), args)


@pytest.mark.parametrize("rows", [0, 1, 31, 1025])
def test_many_gathers_are_one_launch(cupy, dtype, rows):
    """Rows by index, with others or zeros where it is negative, rows in order, put, and no rows."""
    rng = np.random.default_rng(rows)
    source, other = normal(dtype, 40, 33), normal(dtype, 7, 5)
    index = rng.integers(-7, 40, rows)
    x, y, target = map(cupy.asarray, (source, other, np.zeros((3, rows, 8), dtype)))
    copied, nothing = cupy.asarray(np.zeros((40, 2), dtype)), cupy.empty((0, 4), dtype)
    put, order = cupy.asarray(np.zeros((50, 4), dtype)), rng.permutation(50)[:40]
    item, wide = target.itemsize, (x.data.ptr + 3 * x.itemsize, 33)
    places = [target.data.ptr + item * (8 * rows * k + 2) for k in range(3)]
    gathers = [
        RowGather(wide, index, (places[0], 8), 5, (y.data.ptr, 5)),
        RowGather(wide, np.arange(0), (nothing.data.ptr, 4), 4),
        RowGather(wide, index, (places[1], 8), 1),
        RowGather(wide, 40, (copied.data.ptr, 2), 2),
        RowGather(wide, np.maximum(index, 0), (places[2], 8), 6),
        RowGather(wide, order, (put.data.ptr + item, 4), 3, puts=True),
    ]
    with launches(1):
        gather_many(queue(), np.dtype(dtype), gathers)
        queue().flush()
    expected, found = np.zeros((3, rows, 8), dtype), target.get()
    outside = (index < 0)[:, None]
    expected[0, :, 2:7] = np.where(outside, other[-1 - index.clip(max=-1)], source[index, 3:8])
    expected[1, :, 2:3] = np.where(outside, 0, source[index, 3:4])
    expected[2, :, 2:8] = source[index.clip(0), 3:9]
    assert np.array_equal(found, expected)
    assert np.array_equal(copied.get(), source[:, 3:5])
    assert np.array_equal(put.get()[order, 1:], source[:, 3:6])
    assert np.count_nonzero(put.get()) == 120


def concat_of_a_mini_batch():
    """The places of a concat: per sentence, matrices of several widths side by side."""
    lengths, widths = (0, 1, 31, 32, 33, 1025, 2), (1, 33, 0, 7)
    size = sum(lengths) * sum(widths)
    places, source, target = [], 0, size
    for length in lengths:
        column = target
        for width in widths:
            places.append([source, width, column, sum(widths), length, width])
            source += length * width
            column += width
        target += length * sum(widths)
    return 2 * size, places


def test_concat_and_split_of_a_mini_batch_are_one_launch_each(cupy, dtype):
    size, places = concat_of_a_mini_batch()
    arena = np.zeros(size, dtype)
    arena[: size // 2] = normal(dtype, size // 2)
    expected, device = arena.copy(), cupy.asarray(arena)
    places = np.array(places, np.int64)
    copied = kernels.run(expected, expected, places)
    with launches(1):
        assert kernels.run(device, device, places) == copied
        queue().flush()
    assert np.array_equal(device.get(), expected)

    packed = expected.copy()
    packed[: size // 2] = 0
    device = cupy.asarray(packed)
    with launches(1):
        kernels.run(device, device, kernels.reverse(places))
        queue().flush()
    assert np.array_equal(device.get(), expected)


SIZE = 3000


def random_places(seed, overlap):
    """Rectangles within arrays of SIZE elements, of all shapes and strides, also negative ones."""
    random = np.random.default_rng(seed)
    places, room = [], 0
    for _ in range(40):
        rows, width = random.choice([0, 1, 2, 5, 33]), random.choice([0, 1, 2, 31])
        numbers = []
        for is_target in (False, True):
            stride = width + random.choice([0, 0, 3])
            extent = max(0, rows - 1) * stride + width
            start = random.integers(0, SIZE - extent)
            if is_target and not overlap:
                start, room = room, room + extent
                if room > SIZE:
                    return np.array(places, np.int64)
            reverse = random.random() < 0.3
            numbers += [start + max(0, rows - 1) * stride, -stride] if reverse else [start, stride]
        places.append([*numbers, rows, width])
    return np.array(places, np.int64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("add", [False, True])
def test_moves_between_any_places_equal_the_reference(cupy, dtype, add, seed):
    places = random_places(seed, overlap=add)
    source, target = normal(dtype, 2, SIZE)
    on_device = cupy.asarray(target)
    kernels.run(cupy.asarray(source), on_device, places, add)
    queue().flush()
    kernels.run(source, target, places, add)
    tolerance = TOLERANCE[dtype.name] * add
    np.testing.assert_allclose(on_device.get(), target, rtol=tolerance, atol=10 * tolerance)


def test_one_target_of_many_sources_is_one_launch(cupy, dtype):
    source, target = normal(dtype, 600), np.ones(100, dtype)
    places = np.array([[60 * i, 60, 40, 60, 1, 60] for i in range(10)])
    on_device = cupy.asarray(target)
    with launches(1):
        kernels.run(cupy.asarray(source), on_device, places, add=True)
        queue().flush()
    target[40:] += source.reshape(10, 60).sum(0)
    np.testing.assert_allclose(on_device.get(), target, rtol=1e-5, atol=1e-5)


def test_columns_side_by_side_are_one_launch():
    columns = np.array([[0, 3, 0, 8, 5, 3], [15, 5, 3, 8, 5, 5]], np.int64)
    assert len(move.add_tables(columns)) == 1
    crossing = np.array([[0, 4, 0, 8, 5, 4], [20, 5, 3, 8, 5, 5]], np.int64)
    assert len(move.add_tables(crossing)) == 2


def test_no_rectangles_are_nothing_to_do(cupy, dtype):
    nothing = np.zeros((0, 6), np.int64)
    assert move.add_tables(nothing) == [] and move.copy_table(nothing).total == 0
    array = cupy.zeros(4, dtype)
    with launches(0):
        assert kernels.run(array, array, np.array([[0, 0, 0, 0, 0, 3]])) == 0
        queue().flush()


def test_a_rectangle_beyond_32_bits_is_refused():
    with pytest.raises(ShapeError, match="a rectangle of 4294967296 elements"):
        move.copy_table(np.array([[0, 1 << 16, 0, 1 << 16, 1 << 16, 1 << 16]], np.int64))
