from itertools import product

import numpy as np
import pytest

from dynbatch.kernels import elementwise
from dynbatch.kernels.cuda.elementwise import SOURCE
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.unary import activations, arithmetic
from tests.cuda import nvrtc
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.unary.cases import EVERY_CHOICE, EVERY_NAME
from tests.marks import quick

# Borders, overflow, and what is not finite.
SPECIAL = [0, -0.0, 0.25, -0.5, 1, -1, 20, -20, 100, -100, np.inf, -np.inf, np.nan]
LENGTHS = (0, 1, 31, 32, 33, 1025)
BOTH_WAYS = ("", "_backward")


def names(kernels):
    return [f"{kernel.name}{arguments or ''}" for kernel, arguments in kernels]


def normal(dtype, size, seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype(dtype)


@pytest.mark.parametrize(("kernel", "arguments"), EVERY_CHOICE, ids=EVERY_NAME)
def test_one_value(cupy, dtype, kernel, arguments):
    x = np.concatenate((SPECIAL, normal(dtype, 20))).astype(dtype)
    dy, out = normal(dtype, x.size, 1), np.zeros_like(x)
    with launches(2):
        y = assert_versions_agree(elementwise.apply, kernel, Values(x), Values(out), *arguments)[1]
        saved = {"input": x, "output": y, "none": dy}[kernel.reads]
        assert_versions_agree(
            elementwise.apply_backward,
            *(kernel, Values(dy), Values(saved), Values(out), *arguments),
        )


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(cupy, dtype, length):
    x, out = normal(dtype, length), np.zeros(length, dtype)
    with launches(bool(length)):
        assert_versions_agree(elementwise.apply, activations.tanh, Values(x), Values(out))


def test_in_place(cupy, dtype):
    x = normal(dtype, 1025)
    device = cupy.asarray(x)
    with launches(1):
        elementwise.apply(arithmetic.exp, device, device)
        queue().flush()
    np.testing.assert_allclose(device.get(), np.exp(x), rtol=1e-6)


@pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))
@pytest.mark.parametrize(
    ("real", "architecture"), quick([("float", 90)], product(("float", "double"), (75, 80, 90)))
)
def test_generated_kernels_compile_within_the_budget(real, architecture):
    taken = nvrtc.compile_kernels(SOURCE.text, SOURCE.name, architecture, (f"-DREAL={real}",))
    assert set(taken) == set(SOURCE.kernels)
    angles = {f"elementwise_{name}{way}" for name in ("sin", "cos", "tan") for way in BOTH_WAYS}
    for kernel, resources in taken.items():
        assert resources.registers <= 64, kernel
        assert resources.spilled_bytes == 0, kernel
        # A large angle is brought near 0 with a table on the stack.
        assert resources.stack_bytes <= (40 if kernel in angles else 0), kernel


TAILS = [
    (activations.sigmoid, ()),
    (activations.log_sigmoid, ()),
    (activations.softplus, ()),
    (activations.silu, ()),
    (activations.gelu, ("none",)),
    (activations.gelu, ("tanh",)),
]


# A small value is not within an absolute tolerance of 0: its own places are compared.
@pytest.mark.parametrize(("kernel", "arguments"), TAILS, ids=names(TAILS))
def test_tails(cupy, dtype, kernel, arguments):
    sizes = [4, 9] if "gelu" in kernel.name else [4, 17.5, 38.5, 80]
    x = np.array([*sizes, *[-size for size in sizes]], dtype)
    out, rtol = np.zeros_like(x), 2e-3 if arguments == ("tanh",) else 1e-5
    with launches(2):
        given = (Values(x), Values(out), *arguments)
        y = assert_versions_agree(elementwise.apply, kernel, *given, rtol=rtol, atol=0)[1]
        saved = x if kernel.reads == "input" else y
        given = (Values(x * 0 + 1), Values(saved), Values(out), *arguments)
        assert_versions_agree(elementwise.apply_backward, kernel, *given, rtol=rtol, atol=0)
    assert y.all()
