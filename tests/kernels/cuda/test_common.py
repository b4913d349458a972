import numpy as np
import pytest

from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.cuda.walks import matrix_table
from dynbatch.kernels.matrices import Matrices
from tests.cuda import fake_cupy

REDUCE = source.join(
    "shared.cu",
    """
    extern "C" __global__ void reduce(const REAL* x, REAL* out, int n) {
        __shared__ REAL partial[WARP];
        REAL sum = Add::identity(), largest = Max::identity();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            sum += x[i];
            largest = Max::combine(largest, x[i]);
        }
        sum = block_reduce<Add>(sum, partial);
        largest = block_reduce<Max>(largest, partial);
        out[threadIdx.x] = sum;
        out[blockDim.x + threadIdx.x] = largest;
    }
    extern "C" __global__ void find(const long long* starts, int count, int* out, int total) {
        for (long long i = thread_in_grid(); i < total; i += threads_in_grid())
            out[i] = find_segment(starts, 2, 0, count, i);
    }
    struct Total {
        typedef REAL State;
        const REAL* x;
        REAL *totals, *out;
        int width;

        static __device__ REAL identity() { return Add::identity(); }
        static __device__ REAL combine(REAL a, REAL b) { return a + b; }
        __device__ void add(REAL& state, Element at) const { state += x[at.i]; }
        __device__ void finish(REAL state, int k, int column, int) const {
            totals[k * width + column] = state;
        }
        __device__ void write(REAL state, long long i) const { out[i] = x[i] - state; }
    };
    extern "C" __global__ void total(const REAL* x, REAL* totals, REAL* out, const int* offsets,
                                     int length, int count, int width) {
        run_segments(Total{x, totals, out, width}, {offsets, length, count, width});
    }
    extern "C" __global__ void places(int* out, const int* offsets, int length, int count,
                                      int width, long long total) {
        over_elements({offsets, length, count, width}, total,
                      [&](int k, long long n, int column, long long i) {
                          out[3 * i] = k;
                          out[3 * i + 1] = n;
                          out[3 * i + 2] = column;
                      });
    }
    extern "C" __global__ void products(const REAL* matrix, const REAL* x, REAL* dots, REAL* sums,
                                        int stride, int rows, int width) {
        const Rows<const REAL> part = {matrix, stride, width};
        dots_of_rows(part, rows, x, [&](int n, REAL dot) { dots[n] = dot; });
        sums_of_columns<REAL>(
            rows, width, [&](int n, int c) { return part.row(n)[c]; },
            [&](int c, REAL sum) { sums[c] = sum; });
    }
    """,
)


def exercise(kernels):
    """Two reductions with one `partial`, several long segments to a block, a narrow matrix."""
    out = fake_cupy.zeros((2, 64), np.float32)
    kernels.launch("reduce", (1,), (64,), (fake_cupy.zeros(100, np.float32), out, 100))
    offsets = fake_cupy.asarray(np.array([0, 1100, 2300, 2301, 3400], np.int32))
    for width in (1, 2):
        x = fake_cupy.zeros((3400, width), np.float32)
        totals = fake_cupy.zeros((4, width), np.float32)
        kernels.launch("total", (1, 1), (32, 8), (x, totals, x, offsets, 0, 4, width))
    # Two long tiles to a block: (element, row, sum, width, tile) where each matrix begins.
    table = np.array([[0, 0, 0, 40, 0], [2800, 70, 40, 3, 2], [3010, 140, 43, 0, 3]], np.int32)
    args = (x, fake_cupy.zeros(43, np.float32), x, fake_cupy.asarray(table), 0, 2, 0)
    kernels.launch("total", (1,), (32, 8), args)
    matrix, row = fake_cupy.zeros((7, 40), np.float32), fake_cupy.zeros(40, np.float32)
    kernels.launch("products", (1,), (256,), (matrix, row, totals, row, 40, 7, 33))


@pytest.fixture
def kernels(dtype, cupy):
    made = Kernels(dtype, cupy)
    made.add(REDUCE)
    return made


@pytest.mark.parametrize("threads", [32, 256, 1024])
@pytest.mark.parametrize("n", [0, 1, 31, 1025])
def test_block_reductions_reach_every_thread(kernels, n, threads):
    x = np.random.default_rng(n).standard_normal(n).astype(kernels.dtype)
    out = kernels.cupy.empty((2, threads), kernels.dtype)
    kernels.launch("reduce", (1,), (threads,), (kernels.cupy.asarray(x), out, n))
    sums, largest = out.get()
    assert len(set(sums.tolist())) == 1 and len(set(largest.tolist())) == 1
    np.testing.assert_allclose(sums[0], x.sum(), rtol=1e-4, atol=1e-5)
    assert largest[0] == x.max(initial=-np.inf)


def test_the_maximum_of_a_nan_is_nan(kernels):
    x = np.zeros(100, kernels.dtype)
    x[77] = np.nan
    out = kernels.cupy.empty((2, 64), kernels.dtype)
    kernels.launch("reduce", (1,), (64,), (kernels.cupy.asarray(x), out, 100))
    assert np.isnan(out.get()).all()


def test_find_segment_passes_over_empty_segments(kernels):
    lengths = np.array([0, 3, 0, 0, 1, 40, 0, 2])
    starts = np.stack((np.cumsum(lengths) - lengths, np.full(8, -1)), 1).astype(np.int64)
    out = kernels.cupy.empty(46, np.int32)
    kernels.launch("find", (1,), (32,), (kernels.cupy.asarray(starts), 8, out, 46))
    assert out.get().tolist() == np.repeat(np.arange(8), lengths).tolist()


# Of a thread, a warp and a block, and their borders, in both layouts.
LENGTHS = (0, 1, 16, 17, 31, 32, 33, 64, 65, 0, 1024, 1025, 1500)


@pytest.mark.parametrize("blocks", [1, 3, 20])
@pytest.mark.parametrize("width", [1, 2, 33])
def test_segments_are_reduced_and_written(kernels, width, blocks):
    offsets = np.concatenate(([0], np.cumsum(LENGTHS))).astype(np.int32)
    x = np.random.default_rng(0).standard_normal((offsets[-1], width)).astype(kernels.dtype)
    sums = np.array([part.sum(axis=0) for part in np.split(x, offsets[1:-1])])
    totals = kernels.cupy.empty((len(LENGTHS), width), kernels.dtype)
    out = kernels.cupy.empty(x.shape, kernels.dtype)
    args = (kernels.cupy.asarray(x), totals, out, kernels.cupy.asarray(offsets), 0)
    grid = (blocks, -(-width // 32))
    kernels.launch("total", grid, (32, 8), (*args, len(LENGTHS), width))
    np.testing.assert_allclose(totals.get(), sums, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out.get(), x - np.repeat(sums, LENGTHS, axis=0), atol=1e-4)


# Rows and widths of matrices, some of either 0, and of the borders of warps and blocks.
SHAPES = ((3, 4), (0, 33), (64, 1), (65, 32), (7, 0), (1, 33), (300, 65), (0, 0), (2, 5))


def matrices():
    """A table of matrices, and the beginnings of their elements."""
    rows, widths = np.array(SHAPES).T
    return matrix_table(Matrices(rows, widths)), np.concatenate(([0], np.cumsum(rows * widths)))


@pytest.mark.parametrize("blocks", [1, 3, 20])
def test_matrices_are_reduced_and_written(kernels, blocks):
    table, starts = matrices()
    x = np.random.default_rng(0).standard_normal(starts[-1]).astype(kernels.dtype)
    parts = [p.reshape(s) for p, s in zip(np.split(x, starts[1:-1]), SHAPES, strict=True)]
    totals = kernels.cupy.empty(int(table[-1, 2]), kernels.dtype)
    out = kernels.cupy.empty(x.shape, kernels.dtype)
    uploaded = kernels.cupy.asarray(table.astype(np.int32))
    args = (kernels.cupy.asarray(x), totals, out, uploaded, 0, len(SHAPES), 0)
    kernels.launch("total", (blocks,), (32, 8), args)
    sums = [part.sum(axis=0) for part in parts]
    np.testing.assert_allclose(totals.get(), np.concatenate(sums), rtol=1e-4, atol=1e-4)
    left = [(part - total).reshape(-1) for part, total in zip(parts, sums, strict=True)]
    np.testing.assert_allclose(out.get(), np.concatenate(left), atol=1e-4)


def test_every_element_knows_its_matrix(kernels):
    table, starts = matrices()
    total = int(starts[-1])
    out = kernels.cupy.empty((total, 3), np.int32)
    args = (out, kernels.cupy.asarray(table.astype(np.int32)), 0, len(SHAPES), 0, total)
    kernels.launch("places", (-(-total // 1024),), (256,), args)
    expected = [
        (k, table[k, 1] + row, table[k, 2] + column)
        for k, (rows, width) in enumerate(SHAPES)
        for row in range(rows)
        for column in range(width)
    ]
    np.testing.assert_array_equal(out.get(), expected)


@pytest.mark.parametrize("lengths", [LENGTHS, (7,) * 300, (0,) * 5 + (2000,)])
@pytest.mark.parametrize("width", [1, 3, 1025])
def test_every_element_knows_its_segment(kernels, lengths, width):
    if width > 1000:
        lengths = [min(length, 9) for length in lengths[:20]]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    total = int(offsets[-1]) * width
    out = kernels.cupy.empty((total, 3), np.int32)
    table = None if lengths[0] == 7 else kernels.cupy.asarray(offsets)
    args = (out, table, 7, len(lengths), width, total)
    kernels.launch("places", (-(-total // 1024),), (256,), args)
    rows, columns = np.divmod(np.arange(total), width)
    segments = np.repeat(np.arange(len(lengths)), lengths)[rows]
    np.testing.assert_array_equal(out.get(), np.stack((segments, rows, columns), axis=1))


@pytest.mark.parametrize("threads", [32, 256, 512])
@pytest.mark.parametrize(("rows", "width"), [(0, 3), (1, 1), (33, 31), (5, 33), (31, 0), (3, 600)])
def test_rows_are_multiplied_and_columns_are_summed(kernels, rows, width, threads):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((rows, width + 2)).astype(kernels.dtype)
    x = rng.standard_normal(width).astype(kernels.dtype)
    dots, sums = [kernels.cupy.empty(n, kernels.dtype) for n in (rows, width)]
    args = (kernels.cupy.asarray(matrix), kernels.cupy.asarray(x), dots, sums)
    kernels.launch("products", (1,), (threads,), (*args, width + 2, rows, width))
    np.testing.assert_allclose(dots.get(), matrix[:, :width] @ x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sums.get(), matrix[:, :width].sum(axis=0), rtol=1e-4, atol=1e-5)
