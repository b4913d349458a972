"""The simulator runs what is right, and names every planted fault."""

import threading

import numpy as np
import pytest

from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.runtime.precision import round_to
from tests.cuda import nvrtc, simulator
from tests.cuda.simulator import KernelFault, Program, can_fuse

if simulator.missing():
    pytest.skip(simulator.missing(), allow_module_level=True)

ORDERS = (0, 1, 2, 3)
LANES = np.arange(32)

WARPS = """
extern "C" __global__ void halves(int* out) {
    int lane = threadIdx.x & 31, v = threadIdx.x;
    if (lane < 16) {
        for (int i = 0; i < 3; ++i) v += __shfl_xor_sync(0x0000ffffu, v, 1);
    } else {
        for (int i = 0; i < 8; ++i) v += __shfl_xor_sync(0xffff0000u, v, 2);
        unsigned b = __ballot_sync(0xffff0000u, lane & 1);
        v += (int)(b >> 16);
    }
    __syncwarp();
    v += __shfl_sync(0xffffffffu, v, 31);
    v += __shfl_up_sync(0xffffffffu, v, 1) + __shfl_down_sync(0xffffffffu, v, 4, 8);
    out[threadIdx.x] = v;
}
extern "C" __global__ void ten_threads(int* out) {
    out[threadIdx.x] = __shfl_xor_sync(0x3ffu, (int)threadIdx.x, 1)
        + __any_sync(0x3ffu, threadIdx.x == 3) * 100 + __all_sync(0x3ffu, threadIdx.x < 10) * 1000;
}
extern "C" __global__ void two_lines(int* out) {
    int v = threadIdx.x;
    if (v < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);
    else v = __shfl_xor_sync(0xffffffffu, v, 1);
    out[threadIdx.x] = v;
}
extern "C" __global__ void outside_the_mask(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 20);
}
extern "C" __global__ void not_in_the_mask(int* out) {
    out[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 0);
}
extern "C" __global__ void returned_lane(int* out) {
    if (threadIdx.x == 7) return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
}
"""


COUNTS = """
extern "C" __global__ void counted(float* x, int n) {
    for (int k = 0; k < n; ++k) x[threadIdx.x] += 1;
}
"""


def test_a_program_may_be_loaded_while_a_kernel_of_another_is_checked():
    running, over = Program(COUNTS, checked=True), threading.Event()
    x = np.zeros(4, np.float32)

    def load():
        while not over.is_set():
            Program(COUNTS, checked=True)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        running.launch("counted", [1], [4], [x, np.int32(20000)])
    finally:
        over.set()
        loading.join()
    assert x.tolist() == [20000] * 4


def halves_model(threads):
    """`halves` for whole warps, with NumPy."""
    out = []
    for first in range(0, threads, 32):
        v = first + LANES
        low, high = v[:16].copy(), v[16:].copy()
        for _ in range(3):
            low = low + low[np.arange(16) ^ 1]
        for _ in range(8):
            high = high + high[np.arange(16) ^ 2]
        v = np.concatenate((low, high + 0xAAAA))
        v = v + v[31]
        up = v[np.maximum(LANES - 1, 0)]
        down = v[np.where(LANES % 8 + 4 < 8, LANES + 4, LANES)]
        out.append(v + up + down)
    return np.concatenate(out)


@pytest.mark.parametrize("order", ORDERS)
def test_half_warps_may_run_different_numbers_of_shuffles(order):
    out = np.zeros(64, np.int32)
    Program(WARPS).launch("halves", (1,), (64,), (out,), order=order)
    assert out.tolist() == halves_model(64).tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_of_ten_threads(order):
    out = np.zeros(10, np.int32)
    Program(WARPS).launch("ten_threads", (1,), (10,), (out,), order=order)
    assert out.tolist() == ((np.arange(10) ^ 1) + 1100).tolist()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("two_lines", "warp divergence.*kernel.cu:2[23].*kernel.cu:2[23]"),
        ("outside_the_mask", "shuffle reads lane 20, which is not in mask 0000ffff"),
        ("not_in_the_mask", "calling lane 16 is not in mask 0000ffff"),
        ("returned_lane", "names lanes that have returned|deadlock"),
    ],
)
def test_faulty_shuffles_are_named(kernel, message):
    with pytest.raises(KernelFault, match=message):
        Program(WARPS).launch(kernel, (1,), (32,), (np.zeros(32, np.int32),))


BLOCKS = """
extern "C" __global__ void reverse(const float* x, float* y, int n) {
    __shared__ float tile[256];
    int i = threadIdx.x;
    tile[i] = x[blockIdx.x * 256 + i];
    __syncthreads();
    y[blockIdx.x * 256 + i] = tile[255 - i];
}
extern "C" __global__ void reverse_without_barrier(const float* x, float* y, int n) {
    __shared__ float tile[256];
    int i = threadIdx.x;
    tile[i] = x[blockIdx.x * 256 + i];
    y[blockIdx.x * 256 + i] = tile[255 - i];
}
// Two sums over the block that use one buffer. Without a barrier between them the numbers are right
// in every order of fibers, since a warp writes only after its shuffles, and by then all have read.
// On a device a fast warp writes its second sum before a slow one has read the first.
extern "C" __global__ void two_sums(const float* x, float* y, int between) {
    __shared__ float partial[2];
    for (int round = 0; round < 2; ++round) {
        float sum = x[round * 64 + threadIdx.x];
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        __syncthreads();
        y[round * 64 + threadIdx.x] = partial[0] + partial[1];
        if (between) __syncthreads();
    }
}
extern "C" __global__ void dynamic(float* y) {
    extern __shared__ float buffer[];
    if (threadIdx.x < 8) buffer[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = buffer[threadIdx.x];
}
extern "C" __global__ void one_branch(int* out) {
    if (threadIdx.x < 32) __syncthreads();
    else __syncwarp();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void two_branches(int* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}
extern "C" __global__ void sum_all(const float* x, float* total) {
    total[0] += x[blockIdx.x];
}
extern "C" __global__ void sum_all_atomic(const float* x, float* total) {
    atomicAdd(total, x[blockIdx.x]);
}
extern "C" __global__ void one_too_far(float* x) { x[threadIdx.x + 1] = 1; }
extern "C" __global__ void one_too_early(const float* x, float* y) { y[0] = x[-1]; }
extern "C" __global__ void bytes(unsigned char* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void neighbour_lane(float* x) {
    __shared__ float tile[32];
    tile[threadIdx.x] = threadIdx.x;
    x[threadIdx.x] = tile[threadIdx.x ^ 1];
}
extern "C" __global__ void neighbour_lane_synchronized(float* x) {
    __shared__ float tile[32];
    tile[threadIdx.x] = threadIdx.x;
    __syncwarp();
    x[threadIdx.x] = tile[threadIdx.x ^ 1];
}
extern "C" __global__ void neighbour_lane_after_a_shuffle(float* x) {
    __shared__ float tile[32];
    tile[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
    float other = __shfl_xor_sync(0xffffffffu, tile[threadIdx.x], 1);
    x[threadIdx.x] = tile[threadIdx.x ^ 1] + other;
}
"""
X = np.arange(512, dtype=np.float32)


def launch(kernel, grid, block, *values, checked=True, **keywords):
    Program(BLOCKS, checked=checked).launch(kernel, grid, block, values, **keywords)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_shared_memory_and_barriers(order, checked):
    y = np.zeros(512, np.float32)
    launch("reverse", (2,), (256,), X, y, np.int32(512), order=order, checked=checked)
    assert y.tolist() == X.reshape(2, 256)[:, ::-1].ravel().tolist()


def test_a_missing_barrier_gives_wrong_numbers_and_is_named():
    y = np.zeros(512, np.float32)
    launch("reverse_without_barrier", (2,), (256,), X, y, np.int32(512), checked=False)
    assert y.tolist() != X.reshape(2, 256)[:, ::-1].ravel().tolist()
    with pytest.raises(
        KernelFault, match=r"never wrote at kernel\.cu:13|race in shared.*kernel\.cu:1"
    ):
        launch("reverse_without_barrier", (2,), (256,), X, y, np.int32(512))


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_that_no_order_shows_is_named(order):
    y = np.zeros(128, np.float32)
    launch("two_sums", (1,), (64,), X[:128], y, np.int32(0), checked=False, order=order)
    assert y.tolist() == np.repeat(X[:128].reshape(2, 64).sum(1), 64).tolist()  # right, by luck
    launch("two_sums", (1,), (64,), X[:128], y, np.int32(1), order=order)
    with pytest.raises(KernelFault, match=r"race in shared memory.*kernel\.cu:\d+.*kernel\.cu:\d+"):
        launch("two_sums", (1,), (64,), X[:128], y, np.int32(0), order=order)


def test_a_missing_warp_barrier_is_named():
    launch("neighbour_lane_synchronized", (1,), (32,), X.copy())
    for kernel in ("neighbour_lane", "neighbour_lane_after_a_shuffle"):  # which orders no memory
        with pytest.raises(KernelFault, match="shared memory"):
            launch(kernel, (1,), (32,), X.copy())


def test_shared_memory_that_was_never_written_is_named():
    y = np.zeros(16, np.float32)
    launch("dynamic", (1,), (16,), y, checked=False, shared_bytes=64)
    assert y[:8].tolist() == list(range(8)) and np.isnan(y[8:]).all()
    with pytest.raises(KernelFault, match="never wrote"):
        launch("dynamic", (1,), (16,), y, shared_bytes=64)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [("one_branch", "deadlock|returned"), ("two_branches", "__syncthreads divergence")],
)
def test_a_divergent_barrier_is_named(kernel, message):
    with pytest.raises(KernelFault, match=message):
        launch(kernel, (1,), (64,), np.zeros(64, np.int32), checked=False)


def test_a_race_between_blocks_is_named_and_an_atomic_is_none():
    total = np.zeros(1, np.float32)
    launch("sum_all_atomic", (8,), (1,), X, total)
    assert total[0] == 28
    with pytest.raises(KernelFault, match=r"race in global memory: block 0 .* block 1 "):
        launch("sum_all", (8,), (1,), X, total)


def test_a_launch_knows_nothing_of_the_one_before_however_much_that_touched():
    text = """
    extern "C" __global__ void fill(int* y, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            y[i] = i;
    }
    extern "C" __global__ void race(int* y) { y[0] = threadIdx.x; }
    """
    program = Program(text, checked=True)
    y = np.zeros(300_000, np.int32)
    for count, blocks in ((y.size, 2), (y.size, 1), (9, 3), (9, 1)):
        y.fill(-1)
        program.launch("fill", (blocks,), (1024 if count > 9 else 1,), (y, np.int32(count)))
        assert (y[:count] == np.arange(count)).all() and (y[count:] == -1).all()
        with pytest.raises(KernelFault, match="write-write race in global memory"):
            program.launch("race", (1,), (64,), (y,))


@pytest.mark.parametrize(
    ("kernel", "access"), [("one_too_far", "write"), ("one_too_early", "read")]
)
def test_accesses_out_of_bounds_are_named(kernel, access):
    values = (X[:32].copy(),) if kernel == "one_too_far" else (X[:32].copy(), np.zeros_like(X))
    with pytest.raises(KernelFault, match=rf"out-of-bounds {access} of 4 bytes at kernel\.cu:\d+"):
        launch(kernel, (1,), (32,), *values)


def test_neighbouring_bytes_are_no_race():
    launch("bytes", (1,), (64,), np.zeros(64, np.uint8))


@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes"),
    [
        ((1,), (1025,), 0),
        ((1,), (32, 33), 0),
        ((1,), (1, 1, 65), 0),
        ((1, 65536), (1,), 0),
        ((0,), (1,), 0),
        ((1,), (1,), 232449),
    ],
)
def test_what_no_device_launches_is_refused(grid, block, shared_bytes):
    with pytest.raises(KernelFault, match="invalid launch configuration"):
        launch("dynamic", grid, block, np.zeros(1, np.float32), shared_bytes=shared_bytes)


@pytest.mark.parametrize(
    "values",
    [
        (X, X.astype(np.float64), np.int32(1)),
        (X, X.astype(np.int32), np.int32(1)),
        (X, X.copy(), np.int64(1)),
        (X, X.copy(), np.uint32(1)),
        (X, X.copy(), np.float32(1)),
        (X, X.copy()),
    ],
)
def test_arguments_of_another_type_are_refused(values):
    with pytest.raises(TypeError, match="reverse"):
        launch("reverse", (1,), (256,), *values)


def test_a_struct_travels_by_value():
    text = """
    struct Pair { long long a; int b; };
    static_assert(sizeof(Pair) == 16, "layout");
    extern "C" __global__ void pair(const __grid_constant__ Pair p, long long* out) {
        out[0] = p.a + p.b;
    }
    """
    value = np.zeros((), np.dtype([("a", np.int64), ("b", np.int32)], align=True))
    value["a"], value["b"] = 40, 2
    out = np.zeros(1, np.int64)
    program = Program(text)
    assert program.parameters == {"pair": ["V16", "*i8"]}
    program.launch("pair", (1,), (1,), (value, out))
    assert out[0] == 42


def test_what_does_not_compile_says_where():
    with pytest.raises(SyntaxError, match=r"kernel\.cu:2"):
        Program('extern "C" __global__ void wrong(int* x) {\n    x[0] = y;\n}')


TENSOR_CORES = """
extern "C" __global__ void tf32(const float* a, const float* b, float* out) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned of_a[4], of_b[2];
    for (int n = 0; n < 4; ++n) of_a[n] = tf32_bits(a[(g + n % 2 * 8) * 8 + t + n / 2 * 4]);
    for (int n = 0; n < 2; ++n) of_b[n] = tf32_bits(b[(t + n * 4) * 8 + g]);
    float c[4] = {1, 2, 3, 4};
    mma_tf32(c, of_a[0], of_a[1], of_a[2], of_a[3], of_b[0], of_b[1]);
    for (int n = 0; n < 4; ++n) out[(g + n / 2 * 8) * 8 + 2 * t + n % 2] = c[n];
}
extern "C" __global__ void bfloat16(const float* a, const float* b, float* out) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned of_a[4], of_b[2];
    for (int n = 0; n < 4; ++n) {
        const float* place = a + (g + n % 2 * 8) * 16 + 2 * t + n / 2 * 8;
        of_a[n] = bfloat16_bits(place[0], place[1]);
    }
    for (int n = 0; n < 2; ++n) {
        const float* place = b + (2 * t + n * 8) * 8 + g;
        of_b[n] = bfloat16_bits(place[0], place[8]);
    }
    float c[4] = {1, 2, 3, 4};
    mma_bfloat16(c, of_a[0], of_a[1], of_a[2], of_a[3], of_b[0], of_b[1]);
    for (int n = 0; n < 4; ++n) out[(g + n / 2 * 8) * 8 + 2 * t + n % 2] = c[n];
}
extern "C" __global__ void half_a_warp(float* out) {
    float c[4] = {};
    if (threadIdx.x < 16) mma_tf32(c, 0, 0, 0, 0, 0, 0);
    out[threadIdx.x] = c[0];
}
extern "C" __global__ void copies(const float* x, float* out) {
    __shared__ __align__(16) float tile[128];
    copy_later(tile + 4 * threadIdx.x, x + 4 * threadIdx.x);
    wait_for_copies();
    __syncthreads();
    for (int n = 0; n < 4; ++n) out[4 * threadIdx.x + n] = tile[127 - 4 * threadIdx.x - n];
}
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "inner"), [("tf32", 8), ("bfloat16", 16)])
def test_a_warp_multiplies_factors_that_tensor_cores_round(order, name, inner):
    rng = np.random.default_rng(2)
    shapes = ((16, inner), (inner, 8))
    a, b = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    out = np.zeros((16, 8), np.float32)
    Program(TENSOR_CORES, checked=True).launch(name, (1,), (32,), (a, b, out), order=order)
    start = np.tile([[1, 2], [3, 4]], (1, 4)).repeat(8, axis=0)
    exact = round_to(a, name).astype(float) @ round_to(b, name) + start
    np.testing.assert_allclose(out, exact, rtol=1e-6)
    assert np.abs(out - (a @ b + start)).max() > 1e-4


def test_half_a_warp_cannot_multiply():
    with pytest.raises(KernelFault, match="deadlock"):
        Program(TENSOR_CORES).launch("half_a_warp", (1,), (32,), (np.zeros(32, np.float32),))


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_that_nobody_waits_for_is_named(order):
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    Program(TENSOR_CORES, checked=True).launch("copies", (1,), (32,), (x, out), order=order)
    np.testing.assert_array_equal(out, x[::-1])
    for line, message in (
        ("wait_for_copies();", "returned before its copies"),
        ("__syncthreads();", "race|never wrote"),
    ):
        with pytest.raises(KernelFault, match=message):
            faulty = Program(TENSOR_CORES.replace(f"    {line}\n", ""), checked=True)
            faulty.launch("copies", (1,), (32,), (x, out), order=order)


def test_a_copy_to_no_multiple_of_16_bytes_is_named():
    x, out = np.arange(129, dtype=np.float32)[1:], np.zeros(128, np.float32)
    with pytest.raises(KernelFault, match="multiple of 16"):
        Program(TENSOR_CORES).launch("copies", (1,), (32,), (x, out))


def test_multiplications_and_additions_are_fused_where_that_is_asked_for():
    """(1 + e)² - (1 + 2e) is e², which is lost when the product is rounded first."""
    if not can_fuse():
        pytest.skip("this processor has no fused multiply-add")
    text = """extern "C" __global__ void square(float* out, float x, float y) {
        out[0] = x * x - y;
    }"""
    e = 2.0**-13
    found = []
    for contracted in (False, True):
        out = np.zeros(1, np.float32)
        values = (out, np.float32(1 + e), np.float32(1 + 2 * e))
        Program(text, contracted=contracted).launch("square", (1,), (1,), values)
        found.append(float(out[0]))
    assert found == [0.0, e**2]


@pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
@pytest.mark.parametrize("real", ["float", "double"])
def test_static_shared_memory_is_that_of_a_device(real):
    text, options = source.read("crf.cu").text, (f"-DREAL={real}",)
    program, kernels = Program(text, options), nvrtc.compile_kernels(text, "crf.cu", 90, options)
    found = {name: program.static_shared_bytes(name) for name in kernels}
    assert found == {name: taken.shared_bytes for name, taken in kernels.items()}
    assert found["crf"] == 32 * (4 if real == "float" else 8) and not found["viterbi"]
