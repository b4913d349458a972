from itertools import product

import numpy as np
import pytest

from dynbatch.kernels import gated as kernels
from dynbatch.kernels.cuda.gated import SOURCE
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.unary import activations
from tests.cuda import nvrtc
from tests.kernels.cuda.compare import assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal
from tests.kernels.gates import of_each_function
from tests.marks import quick

# 1 - σ(x) is rounded by 6e-8, and multiplied by a dy and a value of up to 20 each.
TOLERANCE = {"rtol": 1e-5, "atol": 2e-5}


def wide(dtype, *shape, seed=0):
    """Values near and far from 0."""
    values = normal(dtype, *shape, seed=seed)
    values.array[...] *= 5
    return values


@of_each_function
@pytest.mark.parametrize("count", [0, 1, 1023, 1025])
def test_two_arrays(cupy, dtype, function, count):
    gate, value, out = [wide(dtype, count, seed=seed) for seed in range(3)]
    with launches(bool(count)):
        assert_versions_agree(
            lambda gate, value, out: kernels.gated(*function, (gate, value), False, out),
            gate, value, out, **TOLERANCE,
        )  # fmt: skip


@of_each_function
@pytest.mark.parametrize("value_first", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(0, 2), (1, 1), (9, 33), (400, 3)])
def test_halves(cupy, dtype, function, value_first, rows, width):
    x, out = wide(dtype, rows, 2 * width), wide(dtype, rows, width, seed=1)
    with launches(bool(rows)):
        assert_versions_agree(
            lambda x, out: kernels.gated(*function, (x,), value_first, out), x, out, **TOLERANCE
        )
    with launches(bool(rows)):
        assert_versions_agree(
            lambda dy, x, dx: kernels.gated_backward(*function, dy, (x,), value_first, (dx,)),
            wide(dtype, rows, width, seed=2), x, wide(dtype, rows, 2 * width, seed=3), **TOLERANCE,
        )  # fmt: skip


@of_each_function
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_backward_of_two_arrays(cupy, dtype, function, wanted):
    dy, gate, value, *dxs = [wide(dtype, 1300, seed=seed) for seed in range(5)]

    def kernel(dy, gate, value, *dxs):
        asked = tuple([dx if w else None for dx, w in zip(dxs, wanted, strict=True)])
        kernels.gated_backward(*function, dy, (gate, value), False, asked)

    with launches(1):
        assert_versions_agree(kernel, dy, gate, value, *dxs, **TOLERANCE)


@pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))
@pytest.mark.parametrize(
    ("real", "architecture"), quick([("float", 90)], product(("float", "double"), (75, 80, 90)))
)
def test_generated_kernels_compile_within_the_budget(real, architecture):
    taken = nvrtc.compile_kernels(SOURCE.text, SOURCE.name, architecture, (f"-DREAL={real}",))
    assert set(taken) == set(SOURCE.kernels)
    angles = {f"gated_{name}{way}" for name in ("sin", "cos", "tan") for way in ("", "_backward")}
    for kernel, resources in taken.items():
        assert resources.registers <= 64, kernel
        assert resources.spilled_bytes == 0, kernel
        # A large angle is brought near 0 with a table on the stack.
        assert resources.stack_bytes <= (40 if kernel in angles else 0), kernel


def test_in_place(cupy, dtype):
    dy, gate, value, dgate = [cupy.asarray(wide(dtype, 1300, seed=k).array) for k in range(4)]
    expected = [cupy.empty(1300, dtype) for _ in range(3)]
    kernels.gated(activations.silu, (), (gate, value), False, expected[0])
    kernels.gated_backward(activations.silu, (), dy, (gate, value), False, tuple(expected[1:]))
    kernels.gated_backward(activations.silu, (), dy, (gate, value), False, (dgate, dy))
    kernels.gated(activations.silu, (), (gate, value), False, value)
    queue().flush()
    for found, wanted in zip((value, dgate, dy), expected, strict=True):
        assert np.array_equal(found.get(), wanted.get())
