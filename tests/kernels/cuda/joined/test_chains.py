from itertools import product

import numpy as np
import pytest

from dynbatch.kernels import arrays, binary, elementwise
from dynbatch.kernels.cuda.arrays import ADDITION
from dynbatch.kernels.cuda.elementwise import FUNCTIONS
from dynbatch.kernels.cuda.joined import chains
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.unary import activations, arithmetic
from tests.cuda import nvrtc
from tests.kernels.cuda.compare import launches
from tests.marks import quick

SHAPES = [(1, 1), (1, 40), (3, 7), (33, 64), (2, 1025)]


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def layer(x, bias, residual, room, out):
    """A bias, an activation and a sum, of which the bias is added in place."""
    arrays.add_bias(x, bias)
    elementwise.apply(activations.leaky_relu, x.reshape(-1), room.reshape(-1), 0.1)
    binary.combine(binary.add, room.reshape(-1), residual.reshape(-1), out.reshape(-1))


@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_the_same_elements_are_one_launch(cupy, dtype, shape):
    of_host = [
        normal(dtype, *size, seed=k) for k, size in enumerate((shape, shape[1:], *[shape] * 3))
    ]
    of_device = [cupy.asarray(array) for array in of_host]
    with launches(1):
        layer(*of_device)
        queue().flush()
    layer(*of_host)
    for mine, reference in zip(of_device, of_host, strict=True):
        np.testing.assert_allclose(mine.get(), reference, rtol=1e-5, atol=1e-6)


def test_a_chain_has_the_bits_of_its_functions(cupy, dtype):
    x, y = [cupy.asarray(normal(dtype, 1500)) for _ in range(2)]
    for array, between in ((x, lambda: None), (y, queue().flush)):
        elementwise.apply(arithmetic.exp, array, array)
        between()
        elementwise.apply(activations.tanh, array, array)
        between()
        arrays.accumulate(array, array)
        queue().flush()
    assert x.get().tobytes() == y.get().tobytes()


def test_what_lies_elsewhere_in_the_same_memory_is_not_joined(cupy):
    memory = cupy.asarray(normal("f4", 100))
    expected = memory.get()
    with launches(2):  # the second reads what other threads of the first have written
        elementwise.apply(arithmetic.negative, memory[:60], memory[:60])
        elementwise.apply(arithmetic.negative, memory[30:90], memory[30:90])
        queue().flush()
    expected[:60] *= -1
    expected[30:90] *= -1
    np.testing.assert_array_equal(memory.get(), expected)


def test_a_bias_that_was_just_written_is_not_joined(cupy):
    rows, bias = cupy.asarray(normal("f4", 4, 4)), cupy.asarray(normal("f4", 4))
    expected = rows.get() - bias.get()
    with launches(2):
        elementwise.apply(arithmetic.negative, bias, bias)
        arrays.add_bias(rows, bias)
        queue().flush()
    np.testing.assert_allclose(rows.get(), expected, rtol=1e-6)


@pytest.mark.parametrize("between", ["size", "dtype", "flush", "launch", "two widths", "length"])
def test_what_is_joined_follows_at_once_and_has_as_many_elements(cupy, between):
    x = cupy.asarray(np.ones(24, "f4"))
    other = {"size": np.ones(25, "f4"), "dtype": np.ones(24)}.get(between, np.ones(24, "f4"))
    first = queue().launches
    arrays.add_bias(x.reshape(6, 4), cupy.asarray(np.ones(4, "f4")))
    if between == "flush":
        queue().flush()
    elif between == "launch":
        arrays.fill(cupy.empty(3, "f4"), 1)
    elif between == "two widths":
        arrays.add_bias(x.reshape(4, 6), cupy.asarray(np.ones(6, "f4")))
    elif between == "length":
        for _ in range(chains.MOST_FUNCTIONS):
            arrays.accumulate(x, x)
    else:
        y = cupy.asarray(other)
        arrays.accumulate(y, y)
    if between in ("flush", "launch"):
        arrays.accumulate(x, x)
    queue().flush()
    assert queue().launches - first == 2 + (between == "launch")
    expected = {"two widths": 3, "length": 2.0 ** (chains.MOST_FUNCTIONS + 1)}
    assert (x.get() == expected.get(between, 4 if between in ("flush", "launch") else 2)).all()


def test_side_by_side_nothing_of_another_branch_is_joined(cupy):
    x, y = [cupy.asarray(np.ones(24, "f4")) for _ in range(2)]
    with launches(3):
        arrays.accumulate(x, x)
        queue().side_by_side([lambda: arrays.accumulate(y, y), lambda: arrays.accumulate(x, x)])
        queue().flush()
    assert (x.get() == 4).all() and (y.get() == 2).all()


@pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))
@pytest.mark.parametrize(
    ("real", "architecture"), quick([("float", 90)], product(("float", "double"), (75, 90, 120)))
)
def test_the_longest_chain_compiles_within_the_budget(real, architecture):
    gelu, _ = FUNCTIONS["gelu"]
    steps = [chains.ChainStep(ADDITION, (0, 1), 0), chains.ChainStep(gelu, (0,), 2)]
    steps += [
        chains.ChainStep(ADDITION, (2, k), k) for k in range(3, 2 + chains.MOST_FUNCTIONS - 1)
    ]
    source = chains.kernel(tuple(steps), (False, True, *[False] * (chains.MOST_OPERANDS - 3)))
    taken = nvrtc.compile_kernels(source.text, source.name, architecture, (f"-DREAL={real}",))
    (resources,) = taken.values()
    assert resources.registers <= 64
    assert resources.spilled_bytes == resources.stack_bytes == 0
