"""Threads share kernels of rows, and what they give does not depend on how many they are."""

import numpy as np
import pytest

from dynbatch.kernels import binary, elementwise, gated, layer_norm
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.workers import workers
from dynbatch.kernels.unary import FUNCTIONS

X, DY = np.random.default_rng(0).standard_normal((2, 9001, 257))


def silu(x, dy):
    out, back = np.empty_like(x), np.empty_like(x)
    elementwise.apply(FUNCTIONS["silu"], x.reshape(-1), out.reshape(-1))
    elementwise.apply_backward(FUNCTIONS["silu"], dy.reshape(-1), x.reshape(-1), back.reshape(-1))
    return out, back


def product(x, dy):
    out = np.empty_like(x)
    binary.combine(binary.FUNCTIONS["multiply"], x, dy, out)
    return (out,)


def norm(x, dy):
    mean, rstd = np.empty((2, len(x)))
    out, back, (dweight, dbias) = np.empty_like(x), np.empty_like(x), np.empty((2, x.shape[1]))
    layer_norm.layer_norm(x, None, None, 1e-5, out, mean, rstd)
    normals = layer_norm.Normals(x, mean[:, None], rstd[:, None])
    layer_norm.layer_norm_backward(dy, normals, None, rstd, True, back)
    layer_norm.layer_norm_parameters(dy, normals, dweight, dbias)
    return out, back, dweight, dbias


def gate(x, dy):
    out = np.empty_like(x)
    gated.gated(FUNCTIONS["silu"], (), (x, dy), False, out)
    return (out,)


@pytest.mark.parametrize("kernel", [silu, product, norm, gate])
def test_bits_do_not_depend_on_the_number_of_threads(kernel, monkeypatch):
    helpers, start = [], workers.start
    monkeypatch.setattr(workers, "start", lambda count: (helpers.append(count), start(count)))
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(parallel, "available", lambda threads=threads: threads)
        found.append([array.tobytes() for array in kernel(X, DY)])
    assert found[0] == found[1] == found[2]
    assert 1 in helpers
