import numpy as np
import pytest

from dynbatch.kernels.cuda.gathers import SumLaunches
from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.gathers import BoundTable, GatherTable, gather, give_back
from tests.kernels.cuda.compare import launches

# Terms of each row: none, one, some, and more than a warp sums alone.
COUNTS = [2, 0, 1, 33, 1, 32, 100, 3, 1, 0, 1]


def case(dtype, sums, several, width):
    """A table with its sources on the host, some of them columns of wider arrays."""
    rng = np.random.default_rng(width)
    wide = rng.standard_normal((9, 2 * width + 1)).astype(dtype)
    sources = [wide[:, 1 : width + 1], rng.standard_normal((12, width)).astype(dtype)]
    counts = COUNTS if sums else [1] * len(COUNTS)
    of = rng.integers(-1, 2, sum(counts)) if several else None
    starts = np.append(0, np.cumsum(counts)) if sums else None
    return sources[: 1 + several], GatherTable(rng.integers(0, 9, sum(counts)), of, starts)


def on_device(cupy, array):
    """A copy that lies in wider rows as the array does."""
    if array.base is None:
        return cupy.asarray(array)
    return cupy.asarray(array.base)[:, 1 : array.shape[1] + 1]


TABLES = pytest.mark.parametrize(
    ("sums", "several"), [(False, False), (False, True), (True, False), (True, True)]
)
WIDTHS = pytest.mark.parametrize("width", [1, 31, 33, 150])


@TABLES
@WIDTHS
def test_rows_are_sums_of_their_terms(cupy, dtype, sums, several, width):
    sources, table = case(dtype, sums, several, width)
    expected = np.full((len(COUNTS), width), np.nan, dtype)
    out = cupy.asarray(expected)
    gather(sources, table, 1, 10, expected)
    with launches(1):
        gather([on_device(cupy, x) for x in sources], table, 1, 10, out)
        queue().flush()
    np.testing.assert_allclose(out.get(), expected, rtol=1e-5, atol=2e-5)


@TABLES
@WIDTHS
def test_gradients_are_given_back(cupy, dtype, sums, several, width):
    sources, table = case(dtype, sums, several, width)
    dy = np.random.default_rng(1).standard_normal((len(COUNTS), width)).astype(dtype)
    found = [on_device(cupy, x) for x in sources]
    with launches(1):
        give_back(cupy.asarray(dy), table, 1, 10, found)
        queue().flush()
    give_back(dy, table, 1, 10, sources)
    for a, b in zip(found, sources, strict=True):
        np.testing.assert_allclose(a.get(), b, rtol=1e-5, atol=2e-5)


def test_nothing_is_launched_for_nothing(cupy, dtype):
    empty, rows = cupy.empty((0, 3), dtype), cupy.empty((2, 3), dtype)
    with launches(0):
        gather([rows], GatherTable(np.zeros(0, np.int64)), 0, 0, empty)
        give_back(rows, GatherTable(np.zeros(2, np.int64)), 0, 2, [None])
        queue().flush()


def test_several_arrays_step_by_step(cupy, dtype):
    """Arrays of different widths and heights; in a step, rows of each that has them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 40)).astype(dtype)
    given, a, b = cupy.asarray(x), cupy.asarray(x[:, :33] * 0), cupy.asarray(x[:4, :2])
    rows = np.array([5, 0, 0, 2, 1, 3])
    sums = [
        BoundTable(a, GatherTable(rows), [given]),
        BoundTable(b, None, [given], adds=True),
        BoundTable(b[:, :0], None, [given]),
    ]
    each = SumLaunches(queue(), dtype, sums)
    steps = np.array([[0, 1, -1], [3, 3, -1]])
    loop = PreparedLoop(queue(), dtype, 2)
    each.add_to(loop, steps, np.array([1, 0]), np.ones(2, bool))
    with launches(2):
        queue().add(loop)
        queue().flush()
    chosen = [0, 3, 4, 5]
    np.testing.assert_array_equal(a.get()[chosen], x[rows[chosen], :33])
    assert not a.get()[[1, 2]].any()
    expected = x[:4, :2] * np.array([[2], [1], [1], [2]], dtype)
    np.testing.assert_allclose(b.get(), expected, rtol=1e-6)


def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(cupy, dtype):
    rng, results = np.random.default_rng(0), []
    source = cupy.asarray(rng.standard_normal((50, 5)).astype(dtype))
    own = rng.integers(0, 50, 200)
    for others in (0, 7):
        counts = [*range(others), own.size]
        rows = np.concatenate((rng.integers(0, 50, sum(counts) - own.size), own))
        out = cupy.empty((len(counts), 5), dtype)
        table = GatherTable(rows, None, np.append(0, np.cumsum(counts)))
        gather([source], table, 0, len(counts), out)
        queue().flush()
        results.append(out.get()[-1].tobytes())
    assert results[0] == results[1]


def exercise(kernels):
    """Two long rows of a block, which share its memory."""
    cupy = kernels.cupy
    source, out = cupy.asarray(np.ones((9, 3), np.float32)), cupy.empty((2, 3), np.float32)
    terms = cupy.asarray(np.concatenate((np.arange(80) % 9, [0, 40, 80])).astype(np.int32))
    distance = (source.data.ptr - out.data.ptr) // 4
    tables = cupy.asarray(np.array([0, 3, 0, 3, 2, 0, -1, 80, 10, 0, distance, 3]))
    steps = cupy.asarray(np.array([0, 2, -1], np.int32))
    kernels.launch("sum_terms", (1,), (256,), (out, tables, terms, steps, 1, 1, 0))
    assert (out.get() == 40).all()


def test_long_rows(cupy):
    exercise(Kernels(np.float32, cupy))
