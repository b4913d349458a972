"""Launches that are queued again without what found them out."""

import numpy as np
import pytest

from dynbatch.kernels import arrays, blas, elementwise
from dynbatch.kernels.cuda.move import copy_rectangles
from dynbatch.kernels.cuda.runtime.kept import KeptLaunches
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.unary import activations
from tests.kernels.cuda.compare import launches


@pytest.fixture
def kept(cupy, dtype):
    """A product, its bias and activation, and rows that a table names, on arrays that change."""

    class Step:
        def __init__(self):
            shapes = {"x": (3, 4), "w": (4, 5), "bias": (5,), "y": (3, 5), "out": (3, 5)}
            self.arrays = {name: cupy.zeros(shape, dtype) for name, shape in shapes.items()}
            self.calls = 0
            self.launches = KeptLaunches([self.compute, self.move])

        def compute(self):
            self.calls += 1
            a = self.arrays
            blas.matmul_rows(a["x"], a["w"], a["y"], a["bias"])
            elementwise.apply(activations.relu, a["y"].reshape(-1), a["y"].reshape(-1))

        def move(self):
            rectangles = np.array([[5, 5, 0, 5, 1, 5], [0, 5, 5, 5, 1, 5], [10, 5, 10, 5, 1, 5]])
            copy_rectangles(self.arrays["y"], self.arrays["out"], rectangles)

        def set(self, seed):
            rng = np.random.default_rng(seed)
            for array in self.arrays.values():
                array.set(rng.integers(-3, 4, array.shape).astype(dtype))

        def expected(self):
            x, w, bias = [self.arrays[name].get() for name in ("x", "w", "bias")]
            return np.maximum(x @ w + bias, 0)[[1, 0, 2]]

    return Step()


def test_kept_launches_compute_with_what_arrays_hold_then(kept):
    for seed in range(4):
        kept.set(seed)
        queue().stage(np.arange(seed), np.dtype(np.int32))  # so that tables lie elsewhere
        with launches(3):  # a product, its bias with the activation, and the rows
            kept.launches()
            queue().flush()
        np.testing.assert_array_equal(kept.arrays["out"].get(), kept.expected())
    assert kept.calls == 1


def test_what_follows_joins_nothing_that_is_kept(kept):
    y, out = kept.arrays["y"].reshape(-1), kept.arrays["out"]
    alone = KeptLaunches([kept.compute])
    for _ in range(3):
        with launches(3):
            alone()
            elementwise.apply(activations.relu, y, out.reshape(-1))
            queue().flush()
    assert kept.calls == 1


def test_arrays_of_kernels_own_live_as_long_as_their_launches(kept, cupy, dtype):
    x, out = [cupy.zeros((3, 4), dtype) for _ in range(2)]

    def through_an_array_of_its_own():  # of which launches know the address alone
        between = queue().empty((3, 4), dtype)
        arrays.copy(x[:, :3], between[:, :3])
        arrays.copy(between[:, :3], out[:, :3])

    again = KeptLaunches([through_an_array_of_its_own])
    for number in range(3):
        x.set(np.full((3, 4), number, dtype))
        again()
        queue().flush()
        assert out.get()[:, :3].tolist() == [[number] * 3] * 3


@pytest.mark.parametrize("way", ["a call", "a flush", "at once"])
def test_what_is_no_launch_or_was_started_is_found_out_each_time(kept, way):
    between = {"a call": lambda: queue().call(lambda: None), "a flush": queue().flush}
    again = KeptLaunches([kept.compute, between.get(way, lambda: None), kept.move])
    for seed in range(3):
        kept.set(seed)
        if way == "at once":
            with queue().at_once():
                again()
        else:
            again()
            queue().flush()
        np.testing.assert_array_equal(kept.arrays["out"].get(), kept.expected())
    assert kept.calls == 3
