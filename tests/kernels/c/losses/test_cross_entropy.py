"""`kernels.losses.cross_entropy` in C against NumPy."""

from typing import NamedTuple

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.losses import cross_entropy as kernels
from dynbatch.kernels.runtime.dispatch import c_version
from tests.kernels.c.compare import assert_same

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class Case(NamedTuple):
    """Logits of some tokens, and what `softmax_loss` takes beside them."""

    logits: Array
    bias: Array
    targets: kernels.Targets
    losses: Array
    scale: Array


def case(dtype: type, rows: int, classes: int, smoothing: float = 0.0, kind: str = "ids") -> Case:
    """The logits are columns of a wider array; every third token is ignored."""
    rng = np.random.default_rng(rows + classes)
    logits = (rng.standard_normal((rows, classes + 3)) * 5).astype(dtype)[:, 1 : classes + 1]
    bias, scale = rng.standard_normal(classes).astype(dtype), rng.random(rows).astype(dtype)
    weights = rng.random(rows).astype(dtype)
    weights[2::3] = scale[2::3] = 0
    distributions = None
    if kind == "distributions":
        q = rng.random((rows, classes)).astype(dtype)
        q[:, ::2] = 0
        distributions = kernels.Distributions([q[:1], q[1:1], q[1:]])
    ids = rng.integers(0, classes, rows)
    targets = kernels.Targets(ids, weights, smoothing, distributions)
    return Case(logits, bias, targets, np.empty(rows, dtype), scale)


@DTYPES
@pytest.mark.parametrize("kind", ["ids", "distributions"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("classes", [1, 5, 16, 300])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_losses_and_gradients(
    rows: int, classes: int, smoothing: float, kind: str, dtype: type
) -> None:
    logits, bias, targets, losses, scale = case(dtype, rows, classes, smoothing, kind)
    assert_same(kernels.softmax_loss, logits, bias, targets, losses)
    assert_same(kernels.softmax_loss, logits, None, targets, losses, scale)
    assert_same(kernels.softmax_loss, logits, bias, targets, losses, scale)


def test_infinite_and_missing_logits_give_what_numpy_gives() -> None:
    x = np.array([[0, -np.inf, 3], [np.nan, 1, 2], [-np.inf] * 3, [200, -200, 0], [np.nan] * 3])
    weights = np.array([1, 1, 1, 1, 0], np.float32)
    losses, scale = np.empty((2, 5), np.float32)
    scale[:] = 0.5
    for ids in (np.zeros(5, np.int64), np.ones(5, np.int64)):
        targets = kernels.Targets(ids, weights)
        with np.errstate(invalid="ignore"):
            assert_same(kernels.softmax_loss, x.astype(np.float32), None, targets, losses, scale)
    rows = kernels.Distributions([np.tile(np.float32([0.5, 0, 0.5]), (5, 1))])
    targets = kernels.Targets(ids, weights, 0.0, rows)
    with np.errstate(invalid="ignore"):
        assert_same(kernels.softmax_loss, x.astype(np.float32), None, targets, losses, scale)


@pytest.mark.parametrize("kind", ["ids", "distributions"])
@pytest.mark.parametrize("version", ["C", "NumPy"])
def test_a_row_has_the_same_bits_alone_and_in_company(kind: str, version: str) -> None:
    logits, bias, targets, losses, scale = case(np.float32, 20, 37, 0.1, kind)
    z = logits.copy()

    def run(z: Array, targets: kernels.Targets, losses: Array, scale: Array) -> None:
        if version == "C":
            kernels.softmax_loss(z, bias, targets, losses, scale)
        else:
            with library.reference_only():
                kernels.softmax_loss(z, bias, targets, losses, scale)

    run(z, targets, losses, scale)
    for k in range(20):
        row, own, loss = slice(k, k + 1), logits[k : k + 1].copy(), np.empty(1, np.float32)
        run(own, targets.part(row), loss, scale[row])
        assert own.tobytes() == z[row].tobytes() and loss[0] == losses[k]


def test_targets_of_another_dtype_are_numpys() -> None:
    logits, bias, targets, losses, scale = case(np.float32, 3, 4, 0.0, "distributions")
    targets.distributions = kernels.Distributions([np.ones((3, 4))])
    run = c_version(kernels.softmax_loss)
    assert run(logits, bias, targets, losses, scale) is NotImplemented
