import numpy as np
import pytest

from dynbatch.kernels.cuda import source
from dynbatch.kernels.cuda.launch import Kernels
from tests.cuda import fake_cupy

REDUCE = source.join(
    "reduce.cu",
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
    """,
)


def exercise(kernels):
    """Two reductions with one `partial`."""
    out = fake_cupy.zeros((2, 64), np.float32)
    kernels.launch("reduce", (1,), (64,), (fake_cupy.zeros(100, np.float32), out, 100))


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
