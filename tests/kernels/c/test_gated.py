"""`kernels.gated` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import gated as kernels
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.unary import activations
from tests.kernels.c.compare import assert_same
from tests.kernels.gates import of_each_function


def arrays(count, rows, width, dtype):
    made = np.random.default_rng(1).standard_normal((count, rows, width)) * 3
    return [array.copy() for array in made.astype(dtype)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@of_each_function
def test_both_forms_and_their_gradients(function, dtype):
    for rows, width in ((0, 4), (1, 1), (5, 16), (3, 21)):
        a, b, dy, out, da, db = arrays(6, rows, width, dtype)
        flat = [array.reshape(-1) for array in (a, b, dy, out, da, db)]
        assert_same(kernels.gated, *function, tuple(flat[:2]), False, flat[3])
        for dxs in (tuple(flat[4:]), (None, flat[5]), (flat[4], None)):
            assert_same(kernels.gated_backward, *function, flat[2], tuple(flat[:2]), False, dxs)
        for value_first in (False, True):
            x, dx = np.hstack([a, b]), np.hstack([da, db])
            assert_same(kernels.gated, *function, (x,), value_first, out)
            assert_same(kernels.gated_backward, *function, dy, (x,), value_first, (dx,))


def test_a_gradient_may_lie_over_that_of_the_output():
    a, b, dy, da, db = [array.reshape(-1) for array in arrays(5, 7, 11, np.float32)]
    kernels.gated_backward(activations.silu, (), dy, (a, b), False, (da, db))
    own = np.empty_like(da)
    kernels.gated_backward(activations.silu, (), dy, (a, b), False, (own, dy))
    assert own.tobytes() == da.tobytes()
    assert dy.tobytes() == db.tobytes()


def test_threads_do_not_change_a_bit(monkeypatch):
    a, b, dy, out, da, db = arrays(6, 50, 9, np.float32)
    shared = [np.empty_like(array) for array in (out, da, db)]

    def run(out, da, db):
        flat = [array.reshape(-1) for array in (a, b, dy, out, da, db)]
        kernels.gated(activations.gelu, ("none",), tuple(flat[:2]), False, flat[3])
        kernels.gated_backward(
            activations.gelu, ("none",), flat[2], tuple(flat[:2]), False, tuple(flat[4:])
        )

    run(out, da, db)
    monkeypatch.setattr(parallel, "shards", lambda count, least=1: [(0, 3), (3, 41), (41, count)])
    run(*shared)
    assert [array.tobytes() for array in shared] == [array.tobytes() for array in (out, da, db)]
