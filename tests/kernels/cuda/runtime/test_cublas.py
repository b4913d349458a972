"""Products by address and leading dimension, in row-major terms."""

import itertools

import numpy as np
import pytest

from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.runtime.precision import multiplying, rounded
from tests.cuda import fake_cupy
from tests.cuda.rounding import CUBLAS_MAY, error_share
from tests.marks import quick

SIZES = [(1, 1, 1), (0, 3, 4), (3, 0, 4), (3, 4, 0), (31, 33, 32), (5, 1, 33), (1, 33, 5)]
MARGIN = 3  # columns of a wider matrix beside each operand


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(found, expected, inner):
    factor = 1e-6 if found.dtype == np.float32 else 1e-15
    np.testing.assert_allclose(found, expected, rtol=10 * factor, atol=factor * (1 + inner))


def stored(matrix, transposed):
    """The matrix as it is stored, inside a wider one."""
    matrix = matrix.T if transposed else matrix
    wide = np.full((matrix.shape[0], matrix.shape[1] + MARGIN), np.nan, matrix.dtype)
    wide[:, :-MARGIN] = matrix
    return wide


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_parts_of_wider_matrices(cupy, dtype, m, n, k):
    for transpose_a, transpose_b, beta in itertools.product((False, True), (False, True), (0, 1)):
        a, b, c = normal(dtype, m, k), normal(dtype, k, n, seed=1), normal(dtype, m, n, seed=2)
        before = stored(c if beta else np.full_like(c, np.nan), transposed=False)
        device = [cupy.asarray(stored(a, transpose_a)), cupy.asarray(stored(b, transpose_b))]
        out = cupy.asarray(before)
        queue().cublas(dtype).gemm(
            transpose_a, transpose_b, m, n, k, device[0].data.ptr, device[0].shape[1],
            device[1].data.ptr, device[1].shape[1], beta, out.data.ptr, out.shape[1],
        )  # fmt: skip
        queue().flush()
        close(out.get()[:, :-MARGIN], a @ b + beta * c, k)
        assert np.isnan(out.get()[:, -MARGIN:]).all()


@pytest.mark.parametrize("how", quick(["round"], CUBLAS_MAY))
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_factors_of_float32_are_rounded_where_the_run_asks_for_it(
    cupy, dtype, monkeypatch, precision, how
):
    monkeypatch.setattr(fake_cupy.cublas, "round_to", CUBLAS_MAY[how])
    a, b, c = normal(dtype, 5, 9), normal(dtype, 9, 7, seed=1), normal(dtype, 5, 7, seed=2)
    device = [cupy.asarray(each) for each in (a, b, c)]
    with multiplying(precision):
        product = queue().cublas(dtype)
        factors = rounded(a), rounded(b)
    assert product is not queue().cublas(dtype)
    product.gemm(
        False, False, 5, 7, 9, device[0].data.ptr, 9, device[1].data.ptr, 7, 1,
        device[2].data.ptr, 7,
    )  # fmt: skip
    queue().flush()
    found = device[2].get()
    if dtype == np.float64 or (cupy is fake_cupy and how == "round"):
        close(found, factors[0] @ factors[1] + c, 9)
    else:
        bound = error_share(precision) * (np.abs(a) @ np.abs(b))
        assert (np.abs(found - (a @ b + c)) <= bound).all()
    assert np.array_equal(factors[0], a) == (dtype == np.float64)


def test_a_product_keeps_its_turn_and_counts_as_a_launch(cupy, dtype):
    a, out = cupy.asarray(np.eye(2, dtype=dtype)), cupy.empty((2, 2), dtype)
    before, blas = queue().launches, queue().cublas(dtype)
    blas.gemm(0, 0, 2, 2, 2, a.data.ptr, 2, a.data.ptr, 2, 0, out.data.ptr, 2)
    queue().call(lambda: a.fill(7))
    assert queue().launches == before
    queue().flush()
    assert queue().launches == before + 1 and queue().cublas(dtype) is blas
    np.testing.assert_array_equal(out.get(), np.eye(2))


def test_an_error_names_for_whom_the_product_was_made(cupy, dtype):
    out = cupy.empty((2, 2), dtype)
    queue().label = "LinearMap #7, batch 3"
    queue().cublas(dtype).gemm(0, 0, 2, 2, 2, out.data.ptr, 1, out.data.ptr, 2, 0, out.data.ptr, 2)
    queue().label = ""
    message = "LinearMap #7, batch 3: a product of cuBLAS failed"
    with pytest.raises(BackendError, match=message) as caught:
        queue().flush()
    assert isinstance(caught.value.__cause__, cupy.cuda.cublas.CUBLASError)


def test_products_of_a_batch_are_one_launch_and_read_their_addresses_from_a_table(cupy, dtype):
    queue = Queue(cupy)
    a, b, c = (normal(dtype, 3, 5, 5, seed=seed) for seed in range(3))
    device = [cupy.asarray(x) for x in (a, b, c)]
    a_places, b_places, c_places = (
        [x.data.ptr + k * x.strides[0] for k in range(3)] for x in device
    )
    cublas = queue.cublas(dtype)
    for beta in (0, 1):
        cublas.gemm_batched(True, False, 5, 5, 5, a_places, 5, b_places[::-1], 5, beta, c_places, 5)
    for empty in ((5, 0, 5), (0, 5, 5)):
        cublas.gemm_batched(False, False, *empty, a_places, 5, b_places, 5, 0, c_places, 5)
    queue.flush()
    assert (queue.launches, queue.uploads) == (2, 1)
    close(device[2].get(), 2 * np.swapaxes(a, 1, 2) @ b[::-1], 5)
    cublas.gemm_batched(False, False, 5, 5, 0, a_places, 5, b_places, 5, 0, c_places, 5)
    queue.flush()
    assert not device[2].get().any()


def test_products_of_a_batch_whose_factors_are_rounded_go_one_by_one(cupy, dtype):
    queue = Queue(cupy)
    a, out = cupy.asarray(np.stack([np.eye(3, dtype=dtype)] * 2)), cupy.empty((2, 3, 3), dtype)
    places = [[x.data.ptr + k * x.strides[0] for k in range(2)] for x in (a, out)]
    with multiplying("bfloat16"):
        cublas = queue.cublas(dtype)
    cublas.gemm_batched(False, False, 3, 3, 3, places[0], 3, places[0], 3, 0, places[1], 3)
    queue.flush()
    np.testing.assert_array_equal(out.get(), a.get())
    assert queue.launches == (2 if dtype == np.float32 else 1)
