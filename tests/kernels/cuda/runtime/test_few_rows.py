"""Products of few rows as a kernel of our own, which a CUDA graph may hold."""

import numpy as np
import pytest

from dynbatch.kernels.cuda.runtime import replays
from dynbatch.kernels.cuda.runtime.few_rows import few_rows_product
from dynbatch.kernels.cuda.runtime.queue import Queue
from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS, multiplying, round_to
from tests.cuda import nvrtc
from tests.marks import exhaustive

BITS = {np.float32: 23, np.float64: 52}


@pytest.fixture
def queue(cupy, monkeypatch):
    monkeypatch.setattr(replays, "MOST_ROWS", 64)
    return Queue(cupy)


def numbers(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(queue, x, w, out, beta):
    """Columns of wider matrices, in a step that comes again; the kernels that have made it."""
    x, w, out = [queue.cupy.asarray(each) for each in (x, w, out)]
    kernels = queue.kernels(out.dtype)
    kernels.launches.clear()
    args = x.shape[0], w.shape[0], x.shape[1] - 2
    with queue.repeating():
        queue.cublas(out.dtype).gemm(
            False, True, *args, x.data.ptr, x.shape[1], w.data.ptr, w.shape[1], beta,
            out.data.ptr, out.shape[1],
        )  # fmt: skip
    queue.flush()
    return out.get(), dict(kernels.launches)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize(
    ("rows", "width", "depth"),
    [(1, 1, 1), (16, 32, 128), (17, 33, 130), *[exhaustive(64, 70, 300), exhaustive(3, 65, 1)]],
)
def test_a_product_of_few_rows_is_exact_to_its_roundings(queue, dtype, beta, rows, width, depth):
    x, w = numbers(dtype, rows, depth + 2), numbers(dtype, width, depth + 2, seed=1)
    out = np.full((rows, width + 3), 7, dtype)
    made, launches = product(queue, x, w, out, beta)
    assert launches == {"few_rows_product": 1}
    a, b = [each[:, :depth].astype(np.longdouble) for each in (x, w)]
    bound = (depth + 2) * 2.0 ** -BITS[dtype] * (np.abs(a) @ np.abs(b).T + 7 * beta)
    assert (np.abs(made[:, :width] - (a @ b.T + 7 * beta)) <= bound).all()
    assert (made[:, width:] == 7).all()


def test_a_row_has_the_same_bits_alone_and_in_company(queue):
    x, w = numbers(np.float32, 37, 202), numbers(np.float32, 40, 202, seed=1)
    together, _ = product(queue, x, w, np.zeros((37, 40), np.float32), 0)
    for row in (0, 15, 16, 36):
        alone, _ = product(queue, x[row : row + 1].copy(), w, np.zeros((1, 40), np.float32), 0)
        assert alone.tobytes() == together[row].tobytes()


@pytest.mark.parametrize("precision", [name for name in MANTISSA_BITS if name != FULL])
def test_factors_are_rounded_as_the_run_wants(queue, precision):
    x, w = numbers(np.float32, 5, 66), numbers(np.float32, 6, 66, seed=1)
    with multiplying(precision):
        made, launches = product(queue, x, w, np.zeros((5, 6), np.float32), 0)
    assert launches == {f"few_rows_product_{precision}": 1}
    exact, _ = product(
        queue, round_to(x, precision), round_to(w, precision), np.zeros((5, 6), np.float32), 0
    )
    assert made.tobytes() == exact.tobytes()


def test_more_rows_other_layouts_and_steps_that_come_once_stay_with_cublas(queue):
    x, w = [queue.cupy.asarray(numbers(np.float32, 65, 65)) for _ in range(2)]
    out = queue.cupy.zeros((65, 65), np.float32)
    cublas, before = queue.cublas(np.float32), queue._handles.products

    def gemm(transpose_a, transpose_b, rows):
        matrices = x.data.ptr, 65, w.data.ptr, 65, 0, out.data.ptr, 65
        cublas.gemm(transpose_a, transpose_b, rows, 65, 65, *matrices)

    gemm(False, True, 3)
    with queue.repeating():
        gemm(False, True, 65)
        gemm(False, False, 3)
        gemm(True, True, 3)
    gemm(False, True, 3)
    queue.flush()
    assert queue._handles.products == before + 5


@pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
@pytest.mark.parametrize("precision", MANTISSA_BITS)
@pytest.mark.parametrize("architecture", [*map(exhaustive, (75, 80, 86, 89, 100, 120)), 90])
def test_the_kernel_keeps_to_its_budget(architecture, precision):
    name, text = few_rows_product(precision)
    for real in ("float", "double") if precision == FULL else ("float",):
        found = nvrtc.compile_kernels(text.text, text.name, architecture, (f"-DREAL={real}",))
        taken = found[name]
        assert taken.registers <= 64 and not taken.spilled_bytes
        assert taken.shared_bytes <= 48 * 1024
