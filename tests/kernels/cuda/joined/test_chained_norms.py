from itertools import product

import numpy as np
import pytest

from dynbatch.kernels import arrays, binary
from dynbatch.kernels import layer_norm as kernels
from dynbatch.kernels.cuda.arrays import ADDITION
from dynbatch.kernels.cuda.joined import chained_norms, chains
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import nvrtc
from tests.kernels.cuda.compare import launches
from tests.kernels.cuda.joined.test_chains import normal
from tests.marks import quick

EPS = 1e-5
# A warp does rows of up to 1024, a block longer ones.
SHAPES = [(1, 1), (9, 31), (5, 64), (3, 150), (3, 1024), (3, 1025)]


def residual(product, bias, x, weight, shift, total, out, mean, rstd, kept):
    """A product's bias, the residual sum, and the norm behind it."""
    arrays.add_bias(product, bias)
    binary.combine(binary.add, x.reshape(-1), product.reshape(-1), total.reshape(-1))
    kernels.layer_norm(total, weight, shift, EPS, out, mean, rstd, kept)


def given(dtype, rows, width):
    matrix, row, column = (rows, width), (width,), (rows,)
    shapes = [matrix, row, matrix, row, row, matrix, matrix, column, column, matrix]
    return [normal(dtype, *shape, seed=seed) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parts", ["all", "no weight", "no mean"])
def test_a_norm_is_one_launch_with_what_makes_its_rows(cupy, dtype, shape, parts):
    of_host = given(dtype, *shape)
    left_out = {"all": [], "no weight": [3, 4, 9], "no mean": [7]}[parts]
    for place in left_out:
        of_host[place] = None
    of_device = [None if array is None else cupy.asarray(array) for array in of_host]
    with launches(1):
        residual(*of_device)
        queue().flush()
    residual(*of_host)
    for mine, reference in zip(of_device, of_host, strict=True):
        if reference is not None:
            np.testing.assert_allclose(mine.get(), reference, rtol=1e-3, atol=1e-4)


def test_a_norm_has_the_bits_that_it_has_alone(cupy, dtype):
    found = []
    for between in (lambda: None, queue().flush):
        of_device = [cupy.asarray(array) for array in given(dtype, 7, 200)]
        arrays.add_bias(of_device[0], of_device[1])
        between()
        kernels.layer_norm(of_device[0], *of_device[3:5], EPS, *of_device[6:])
        queue().flush()
        found.append([array.get().tobytes() for array in of_device])
    assert found[0] == found[1]


@pytest.mark.parametrize("place", ["over the product", "beside it", "its row"])
def test_a_norm_may_be_written_over_what_the_chain_read_but_not_over_a_part(cupy, place):
    """The planner gives the memory of a product that is dead to what the norm writes."""
    rows, width = 6, 40
    memory = cupy.asarray(normal("f4", 3 * rows * width))
    product = memory[: rows * width].reshape(rows, width)
    start = {"over the product": 0, "beside it": width, "its row": rows * width}[place]
    out = memory[start : start + rows * width].reshape(rows, width)
    _, bias, x, weight, shift, total, _, mean, rstd, _ = map(cupy.asarray, given("f4", rows, width))
    if place == "its row":
        mean = memory[:rows]
    expected = x.get() + (product.get() + bias.get())
    with launches(1 if place == "over the product" else 2):
        residual(product, bias, x, weight, shift, total, out, mean, rstd, None)
        queue().flush()
    centred = expected - expected.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS)
    np.testing.assert_allclose(total.get(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        out.get(), centred * scale * weight.get() + shift.get(), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("why", ["others came in between", "it reads something else", "width"])
def test_a_norm_of_other_rows_is_a_launch_of_its_own(cupy, why):
    product, bias, x, weight, shift, total, out, mean, rstd, _ = map(
        cupy.asarray, given("f4", 4, 6)
    )
    with launches(3 if why == "others came in between" else 2):
        if why == "width":  # the bias is half a row of the norm
            arrays.add_bias(product.reshape(8, 3), bias[:3])
        else:
            arrays.add_bias(product, bias)
        if why == "others came in between":
            arrays.fill(total, 1)
        source = x if why == "it reads something else" else product
        kernels.layer_norm(source, weight, shift, EPS, out, mean, rstd)
        queue().flush()
    rows = source.get()
    np.testing.assert_allclose(mean.get(), rows.mean(axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))
@pytest.mark.parametrize(
    ("real", "architecture"), quick([("float", 90)], product(("float", "double"), (75, 90, 120)))
)
def test_a_chain_and_a_norm_compile_within_the_budget(real, architecture):
    steps = [chains.ChainStep(ADDITION, (0, 1), 0), chains.ChainStep(ADDITION, (2, 0), 3)]
    steps += [chains.ChainStep(ADDITION, (3, 4), 5)]
    rows = (False, True, False, False, False, False)
    source = chained_norms.kernel(tuple(steps), rows, 5)
    taken = nvrtc.compile_kernels(source.text, source.name, architecture, (f"-DREAL={real}",))
    (resources,) = taken.values()
    assert resources.registers <= 64
    assert resources.spilled_bytes == resources.stack_bytes == 0
