import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.kernels import move as reference
from dynbatch.kernels import segment
from dynbatch.kernels.cuda import move
from dynbatch.kernels.cuda.launch import Kernels
from dynbatch.kernels.move import Move

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}
WIDTHS = (1, 31, 32, 33, 1025)
rng = np.random.default_rng(0)


@pytest.fixture(params=[np.float32, np.float64])
def kernels(request, cupy):
    return Kernels(request.param, cupy)


def normal(kernels, *shape):
    return rng.standard_normal(shape).astype(kernels.dtype)


# Rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_gathered_rows_equal_the_reference(kernels, width):
    rows = normal(kernels, 20, width)
    device_rows = kernels.cupy.asarray(rows)
    for count in (0, 1, 33):
        index = rng.integers(0, 20, count).astype(np.int32)
        expected = np.empty((count, width), kernels.dtype)
        segment.gather_rows(rows, index, expected)
        out = kernels.cupy.empty((count, width), kernels.dtype)
        move.gather_rows(kernels, device_rows, kernels.cupy.asarray(index), out, count, width)
        assert np.array_equal(out.get(), expected)
    assert kernels.launches == {"gather_rows": 2}  # the empty one is none


def test_an_empty_row_is_no_launch(kernels):
    nothing = kernels.cupy.empty((3, 0), kernels.dtype)
    index = kernels.cupy.zeros(3, np.int32)
    move.gather_rows(kernels, nothing, index, nothing, 3, 0)
    assert not kernels.launches


# Ids that repeat 0, 1, 31, 32, 33 or many times: short segments, long ones, and none.
IDS = {
    "none": np.zeros(0, np.int64),
    "one": np.array([3]),
    "all different": rng.permutation(40),
    "one id": np.full(100, 7),
    "uneven": rng.permutation(np.repeat([0, 2, 3, 5, 6, 8], [1, 31, 32, 33, 300, 2])),
}


@pytest.mark.parametrize("width", [1, 33, 64])
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_summed_rows_equal_the_reference(kernels, ids, width):
    rows, before = normal(kernels, ids.size, width), normal(kernels, 50, width)
    expected = np.empty_like(before)
    segment.scatter_rows(rows, ids, expected)
    table = move.row_table(ids)
    device_table = tuple(kernels.cupy.asarray(part) for part in table)
    segments = table.targets.size
    for accumulate in (False, True):
        out = kernels.cupy.asarray(before)
        move.add_rows(
            kernels, kernels.cupy.asarray(rows), device_table, out, segments, width, accumulate
        )
        wanted = before + expected if accumulate else before.copy()
        if not accumulate:
            wanted[table.targets] = expected[table.targets]
        tolerance = TOLERANCE[kernels.dtype.name]
        np.testing.assert_allclose(out.get(), wanted, rtol=tolerance, atol=20 * tolerance)


def test_rows_in_order_need_no_sources_and_an_empty_segment_is_zero(kernels):
    rows = normal(kernels, 40, 3)
    offsets, targets = np.array([0, 1, 1, 40], np.int32), np.array([2, 0, 1], np.int32)
    out = kernels.cupy.empty((4, 3), kernels.dtype)
    before = out.get()
    table = (None, kernels.cupy.asarray(offsets), kernels.cupy.asarray(targets))
    move.add_rows(kernels, kernels.cupy.asarray(rows), table, out, 3, 3, accumulate=False)
    result = out.get()
    np.testing.assert_allclose(result[2], rows[0])
    np.testing.assert_allclose(result[1], rows[1:].sum(0), rtol=1e-4)
    assert not result[0].any() and np.array_equal(result[3], before[3])


def test_the_bits_of_a_sum_do_not_depend_on_the_other_segments(kernels):
    rows = normal(kernels, 2000, 5)
    alone = np.full(200, 3)
    crowd = np.concatenate((alone, rng.integers(10, 1500, 1800)))
    results = []
    for ids in (alone, crowd):
        table = move.row_table(ids)
        out = kernels.cupy.zeros((1500, 5), kernels.dtype)
        device_table = tuple(kernels.cupy.asarray(part) for part in table)
        device_rows = kernels.cupy.asarray(rows[: ids.size])
        move.add_rows(kernels, device_rows, device_table, out, table.targets.size, 5)
        results.append(out.get()[3])
    assert results[0].tobytes() == results[1].tobytes()


def test_row_table_lists_the_rows_of_each_id_in_order():
    sources, offsets, targets = move.row_table(np.array([5, 2, 5, 9, 2]))
    assert (sources.tolist(), offsets.tolist(), targets.tolist()) == (
        [1, 4, 0, 2, 3],
        [0, 2, 4, 5],
        [2, 5, 9],
    )
    assert {part.dtype.name for part in (sources, offsets, targets)} == {"int32"}


# Rectangles ---------------------------------------------------------------------------------------


def concat_of_a_mini_batch(dtype):
    """The moves of a concat: per sentence, matrices of several widths side by side."""
    lengths, widths = (0, 1, 31, 32, 33, 1025, 2), (1, 33, 0, 7)
    size = sum(lengths) * sum(widths)
    arena = np.zeros(2 * size, dtype)
    moves, source, target = [], 0, size
    for length in lengths:
        column = target
        for width in widths:
            moves.append(Move(arena, source, width, arena, column, sum(widths), length, width))
            source += length * width
            column += width
        target += length * sum(widths)
    return arena, moves


def test_concat_and_split_of_a_mini_batch_are_one_launch_each(kernels):
    arena, moves = concat_of_a_mini_batch(kernels.dtype)
    half = arena.size // 2
    arena[:half] = rng.standard_normal(half)
    expected = arena.copy()
    reference.run(m._replace(source=expected, target=expected) for m in moves)

    device_arena = kernels.cupy.asarray(arena)
    places = move.places(moves)
    copy(kernels, device_arena, places)
    assert np.array_equal(device_arena.get(), expected)

    packed = expected.copy()
    packed[:half] = 0
    device_arena = kernels.cupy.asarray(packed)
    copy(kernels, device_arena, move.reverse(places))
    assert np.array_equal(device_arena.get(), expected)
    assert kernels.launches == {"copy_rectangles": 2}


def copy(kernels, arena, places):
    table = move.copy_table(places)
    entries = kernels.cupy.asarray(table.entries)
    move.copy_rectangles(kernels, arena, arena, entries, len(table.entries), table.total)


def add(kernels, source, target, places):
    tables = move.add_tables(places)
    for table in tables:
        parts = kernels.cupy.asarray(table.pieces), kernels.cupy.asarray(table.sources)
        move.add_rectangles(kernels, source, target, parts, len(table.pieces), table.total)
    return len(tables)


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
def test_copies_between_any_places_equal_the_reference(kernels, seed):
    places = random_places(seed, overlap=False)
    source, target = normal(kernels, SIZE), normal(kernels, SIZE)
    expected = target.copy()
    reference.run(moves_of(source, expected, places))
    device_source, device_target = kernels.cupy.asarray(source), kernels.cupy.asarray(target)
    table = move.copy_table(places)
    move.copy_rectangles(
        kernels, device_source, device_target, kernels.cupy.asarray(table.entries),
        len(table.entries), table.total,
    )  # fmt: skip
    assert np.array_equal(device_target.get(), expected)


@pytest.mark.parametrize("seed", range(4))
def test_sums_into_any_places_equal_the_reference(kernels, seed):
    places = random_places(seed, overlap=True)
    source, target = normal(kernels, SIZE), normal(kernels, SIZE)
    expected = target.copy()
    reference.run(moves_of(source, expected, places), add=True)
    device_target = kernels.cupy.asarray(target)
    add(kernels, kernels.cupy.asarray(source), device_target, places)
    tolerance = TOLERANCE[kernels.dtype.name]
    np.testing.assert_allclose(device_target.get(), expected, rtol=tolerance, atol=10 * tolerance)


def moves_of(source, target, places):
    return [Move(source, *p[:2], target, *p[2:4], *p[4:]) for p in places.tolist()]


def test_one_target_of_many_sources_is_one_launch(kernels):
    source, target = normal(kernels, 600), normal(kernels, 100)
    places = np.array([[60 * i, 60, 40, 60, 1, 60] for i in range(10)], np.int64)
    device_target = kernels.cupy.asarray(target)
    assert add(kernels, kernels.cupy.asarray(source), device_target, places) == 1
    expected = target.copy()
    expected[40:] += source.reshape(10, 60).sum(0)
    np.testing.assert_allclose(device_target.get(), expected, rtol=1e-5, atol=1e-5)


def test_columns_side_by_side_are_one_launch():
    columns = np.array([[0, 3, 0, 8, 5, 3], [15, 5, 3, 8, 5, 5]], np.int64)
    assert len(move.add_tables(columns)) == 1
    crossing = np.array([[0, 4, 0, 8, 5, 4], [20, 5, 3, 8, 5, 5]], np.int64)
    assert len(move.add_tables(crossing)) == 2


def test_no_rectangles_are_nothing_to_do(kernels):
    nothing = np.zeros((0, 6), np.int64)
    assert move.add_tables(nothing) == [] and move.copy_table(nothing).total == 0
    copy(kernels, kernels.cupy.zeros(4, kernels.dtype), nothing)
    assert not kernels.launches


def test_a_rectangle_beyond_32_bits_is_refused():
    with pytest.raises(ShapeError, match="a rectangle of 4294967296 elements"):
        move.copy_table(np.array([[0, 1 << 16, 0, 1 << 16, 1 << 16, 1 << 16]], np.int64))
