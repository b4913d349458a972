"""Rounded factors of products: the numbers, where they are rounded, and where not."""

from types import SimpleNamespace

import numpy as np
import pytest

from dynbatch.backend import CPU, Device
from dynbatch.errors import ArgumentError, BackendError
from dynbatch.kernels import blas, linear_gradients
from dynbatch.kernels.c.runtime.library import reason, reference_only
from dynbatch.kernels.linear_gradients import MapGradient
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import (
    MANTISSA_BITS,
    checked,
    multiplying,
    of_products,
    round_to,
    rounded,
)
from dynbatch.ragged import Ragged

ROUNDED = ["tf32", "bfloat16"]
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, np.finfo(np.float32).max,
     np.finfo(np.float32).tiny], np.float32,
)  # fmt: skip


def numbers():
    """Numbers of all sizes, ties and their neighbours among them."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 14, dtype=np.uint32)
    ties = [bits & ~np.uint32((1 << n) - 1) | np.uint32(1 << (n - 1)) for n in (13, 16)]
    near = [tie + np.uint32(step) for tie in ties for step in (0, 1, 0xFFFFFFFF)]
    return np.concatenate([SPECIAL, *[each.view(np.float32) for each in (bits, *near)]])


def in_float64(x, precision):
    """The nearest number with so many bits, by arithmetic alone; of finite numbers."""
    exponent = np.maximum(
        np.frexp(x.astype(np.float64))[1], -125
    )  # below, spacing is that of the smallest normal ones
    unit = np.ldexp(1.0, exponent - 1 - MANTISSA_BITS[precision])
    quotient = x.astype(np.float64) / unit
    if precision == "bfloat16":
        return np.rint(quotient) * unit
    return np.copysign(np.floor(np.abs(quotient) + 0.5), quotient) * unit


@pytest.mark.parametrize("precision", ROUNDED)
def test_a_factor_goes_to_the_nearest_number_with_fewer_bits(precision):
    x = numbers()
    found, finite = round_to(x, precision), np.isfinite(x)
    with np.errstate(over="ignore"):  # above the largest is infinity
        expected = in_float64(x[finite], precision).astype(np.float32)
    np.testing.assert_array_equal(found[finite], expected)
    np.testing.assert_array_equal(found[~finite], x[~finite])
    np.testing.assert_array_equal(round_to(found, precision), found)


def test_bfloat16_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    x = numbers()
    x = x[~np.isnan(x)]
    theirs = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(round_to(x, "bfloat16").view(np.uint32), theirs.view(np.uint32))


@pytest.mark.skipif(bool(reason()), reason="C kernels do not run here")
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("precision", ROUNDED)
def test_c_rounds_each_factor_to_the_same_bits(precision, rows):
    x = numbers()
    x = x[np.abs(x) < 1e30]
    if precision == "bfloat16":  # whose instruction takes subnormal numbers as 0
        x = x[np.abs(x) >= np.finfo(np.float32).tiny]
    x = x[: len(x) // (64 * rows) * 64 * rows].reshape(-1, rows, 64)
    eye, out, turned = [np.zeros(s, np.float32) for s in ((64, 64), (rows, 64), (64, rows))]
    np.fill_diagonal(eye, 1)
    for part in x:
        with multiplying(precision):
            for weight in (eye, eye.T):  # in rows, and in columns
                blas.matmul(part, weight, out)
                np.testing.assert_array_equal(out, round_to(part, precision))
            blas.matmul(eye, part.T, turned)
            np.testing.assert_array_equal(turned, round_to(part, precision).T)


def every_product(rows):
    """Each kind of product of some rows with weights, and the factors of each in float64."""
    rng = np.random.default_rng(rows)
    x, dy, w = [
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((rows, 70), (rows, 33), (33, 70))
    ]
    outs = [np.zeros(shape, np.float32) for shape in ((rows, 33), (rows, 70), (33, 70), (33, 70))]
    blas.matmul_rows(x, w.T, outs[0])
    blas.matmul_shared(dy, w, outs[1])
    blas.matmul_outer(x, dy, outs[2], add=True)
    gradient = MapGradient(dy, None, [outs[3]])
    linear_gradients.weight_gradients([x], [gradient], add=False)
    outs.append(np.empty((rows, 70), np.float32))
    linear_gradients.scatter_products([(dy, w, 0)], None, None, outs[4], add=False)
    x, dy, w = [rounded(each).astype(np.float64) for each in (x, dy, w)]
    return outs, [x @ w.T, dy @ w, dy.T @ x, dy.T @ x, dy @ w]


@pytest.mark.parametrize("rows", [1, 9, 200])
@pytest.mark.parametrize("precision", ROUNDED)
def test_products_with_weights_are_those_of_rounded_factors(precision, rows):
    with multiplying(precision):
        in_c = every_product(rows)
        with reference_only():
            by_numpy = every_product(rows)
    for outs, products in (in_c, by_numpy):
        for out, product in zip(outs, products, strict=True):
            np.testing.assert_allclose(out, product, rtol=0, atol=1e-6 * rows**0.5 * 40)


def test_biases_and_products_of_two_values_are_not_rounded():
    a = np.full((2, 2), 1 + 2**-12, np.float32)
    ragged, out, bias = Ragged(a, [2]), np.zeros((2, 2), np.float32), np.zeros(2, np.float32)
    with multiplying("bfloat16"):
        blas.matmul_segments(ragged, ragged, ragged.like(out))
        maps = [MapGradient(a, bias, [None])]
        linear_gradients.weight_gradients([a], maps, add=False)
    np.testing.assert_array_equal(out, a @ a)
    np.testing.assert_array_equal(bias, a.sum(axis=0))


def test_a_precision_holds_in_helping_threads_and_no_longer_than_its_block():
    found = []
    before = parallel.num_threads()
    parallel.set_num_threads(2)
    try:
        with multiplying("tf32"), multiplying("bfloat16"):
            parallel.run([lambda: found.append(of_products())] * 4)
    finally:
        parallel.set_num_threads(before)
    assert found == ["bfloat16"] * 4 and of_products() == "float32"


@pytest.mark.parametrize("value", ["float16", "TF32", None, 32])
def test_an_unknown_precision_is_refused(value):
    with pytest.raises(ArgumentError, match=r'(?s)matmul is .*one of "float32", "tf32"'):
        checked(value, np.dtype(np.float32), CPU)


def test_factors_of_float64_are_not_rounded():
    with pytest.raises(ArgumentError, match=r"(?s)matmul='tf32' in a graph of float64.*leave"):
        checked("tf32", np.dtype(np.float64), CPU)
    assert checked("float32", np.dtype(np.float64), CPU) == "float32"
    assert rounded(np.ones(1)).dtype == np.float64


@pytest.mark.parametrize(("capability", "is_enough"), [("75", False), ("80", True), ("120", True)])
def test_a_gpu_without_tensor_cores_for_it_is_refused(capability, is_enough):
    named = SimpleNamespace(compute_capability=capability)
    runtime = SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1)
    cuda = SimpleNamespace(Device=lambda: named, runtime=runtime)
    device = Device(SimpleNamespace(cuda=cuda), is_cuda=True)
    if is_enough:
        assert checked("bfloat16", np.dtype(np.float32), device) == "bfloat16"
    else:
        with pytest.raises(BackendError, match=r"(?s)capability 7\.5.*8\.0.*leave matmul out"):
            checked("bfloat16", np.dtype(np.float32), device)
    assert checked("float32", np.dtype(np.float32), device) == "float32"
