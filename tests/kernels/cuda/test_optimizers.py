"""The steps of all parameters in one launch, against the NumPy kernel parameter by parameter."""

import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.kernels import optimizers
from dynbatch.kernels.cuda.optimizers import table, update
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.optimizers import ParameterSlice, Rule
from tests.kernels.cuda.compare import launches

# kernel, its slots, numbers of the step
STEPS = {
    "sgd": ("sgd", 0, (0.1, 0, 1, 0, 0)),
    "sgd-all": ("sgd", 1, (0.1, 0.9, 0.7, 0.2, 0)),
    "sgd-nesterov": ("sgd", 1, (0.1, 0.9, 1, 0.2, 1)),
    "adagrad": ("adagrad", 1, (0.1, 0.3, 1e-3)),
    "rmsprop": ("rmsprop", 1, (0.1, 0.9, 0.1, 1e-3, 0, 0, 0)),
    "rmsprop-centered": ("rmsprop", 2, (0.1, 0.9, 0.1, 1e-3, 0.2, 0, 1)),
    "rmsprop-momentum": ("rmsprop", 2, (0.1, 0.9, 0.1, 1e-3, 0.2, 0.8, 0)),
    "rmsprop-all": ("rmsprop", 3, (0.1, 0.9, 0.1, 1e-3, 0.2, 0.8, 1)),
    "adam": ("adam", 2, (0.01, 0.9, 0.99, 1e-3, 0, 1, 0)),
    "adam-decay": ("adam", 2, (0.01, 0.9, 0.99, 1e-3, 0.2, 0.95, 0)),
    "adam-amsgrad": ("adam", 3, (0.01, 0.9, 0.99, 1e-3, 0, 1, 1)),
    "adadelta": ("adadelta", 2, (0.5, 0.9, 0.1, 1e-3, 0.2)),
    "exponentiated": ("exponentiated", 0, (0.5, 0)),
    "exponentiated-momentum": ("exponentiated", 1, (0.5, 0.9)),
}
SHAPES = [(1,), (0,), (31,), (32,), (33, 1), (1025,), (2, 700), (0, 3), (1,)]
every_step = pytest.mark.parametrize(("kernel", "slots", "numbers"), STEPS.values(), ids=STEPS)


def rule(kernel, numbers):
    return Rule(getattr(optimizers, kernel), numbers)


def made(rng, shape, dtype, num_slots):
    """Value, gradient and slots; the first slot above the second's square, as averages are."""
    slots = [rng.uniform(1 - k, 2 - k, shape) for k in range(num_slots)]
    return [array.astype(dtype) for array in (*rng.standard_normal((2, *shape)), *slots)]


def numbers_of(numbers, k):
    """Numbers of parameter k: steps differ in their rate."""
    return (numbers[0] * (1 + k), *numbers[1:])


def expected(kernel, arrays, numbers):
    value, gradient, *slots = arrays
    scratch = [np.empty_like(value) for _ in range(2)]
    with np.errstate(all="ignore"):
        getattr(optimizers, kernel)(value, gradient, slots, scratch, *numbers)


def compare(device, host, dtype):
    tolerance = 3e-5 if dtype == np.float32 else 1e-12
    for part, arrays in zip(device, host, strict=True):
        for got, wanted in zip((part.value, *part.slots), (arrays[0], *arrays[2:]), strict=True):
            np.testing.assert_allclose(got.get(), wanted, rtol=tolerance, atol=tolerance)


@every_step
def test_all_parameters_are_stepped_in_one_launch(cupy, dtype, kernel, slots, numbers):
    rng = np.random.default_rng(0)
    host = [made(rng, shape, dtype, slots) for shape in SHAPES]
    parts = []
    for k, arrays in enumerate(host):
        value, gradient, *kept = (cupy.asarray(array) for array in arrays)
        parts.append(
            ParameterSlice(value, gradient, tuple(kept), rule(kernel, numbers_of(numbers, k)))
        )
    uploads = queue().uploads
    with launches(1):
        update(kernel, parts)
        queue().flush()
    assert queue().uploads == uploads + 1
    for k, arrays in enumerate(host):
        expected(kernel, arrays, numbers_of(numbers, k))
    compare(parts, host, dtype)
    assert all((p.gradient.get() == a[1]).all() for p, a in zip(parts, host, strict=True))


@every_step
@pytest.mark.parametrize("every_row", [True, False])
def test_row_sparse_gradients_share_the_launch(cupy, dtype, kernel, slots, numbers, every_row):
    shapes = [(3,), (40, 3), (6, 300), (5, 2), (0, 4), (2, 2)]
    rows = [None, [0, 7, 31, 39], [5], [], [], [0, 1]]
    rng = np.random.default_rng(1)
    host, parts = [], []
    for shape, given in zip(shapes, rows, strict=True):
        arrays = made(rng, shape, dtype, slots)
        gradient = arrays[1]
        if given is not None:
            given = np.array(given, np.int64)
            gradient = gradient[given]
            arrays[1] = np.zeros_like(arrays[1])
            arrays[1][given] = gradient
        value, *kept = (cupy.asarray(a) for a in (arrays[0], *arrays[2:]))
        parts.append(
            ParameterSlice(
                value, cupy.asarray(gradient), tuple(kept), rule(kernel, numbers), given, every_row
            )
        )
        stepped = slice(None) if every_row or given is None else given
        block = [array[stepped] for array in arrays]
        expected(kernel, block, numbers)
        for array, part in zip(arrays, block, strict=True):
            array[stepped] = part
        host.append(arrays)
    with launches(1):
        update(kernel, parts)
        queue().flush()
    compare(parts, host, dtype)


@pytest.mark.parametrize("number", [np.nan, np.inf, 0.0, 3.0])
def test_nothing_is_done_unless_the_norm_is_finite(cupy, dtype, number):
    value, gradient = cupy.asarray(np.ones(5, dtype)), cupy.asarray(np.ones(5, dtype))
    norm = cupy.asarray(np.array([number]))
    update("sgd", [ParameterSlice(value, gradient, (), rule("sgd", (1.0, 0, 1, 0, 0)))], norm)
    queue().flush()
    assert value.get().tolist() == [0 if np.isfinite(number) else 1] * 5


def test_what_is_not_finite_stays_in_its_element(cupy, dtype):
    arrays = [np.ones(70, dtype), np.ones(70, dtype), np.zeros(70, dtype), np.zeros(70, dtype)]
    arrays[1][[3, 40]] = np.nan, np.inf
    value, gradient, *slots = (cupy.asarray(array) for array in arrays)
    numbers = (0.01, 0.9, 0.99, 1e-3, 0, 1, 0)
    update("adam", [ParameterSlice(value, gradient, tuple(slots), rule("adam", numbers))])
    queue().flush()
    expected("adam", arrays, numbers)
    np.testing.assert_allclose(value.get(), arrays[0], rtol=1e-6)
    assert np.isnan(arrays[0][[3, 40]]).all()


def test_no_elements_are_no_launch(cupy, dtype):
    nothing = cupy.empty((0, 3), dtype)
    rows = np.zeros(0, np.int64)
    some = cupy.asarray(np.ones((4, 3), dtype))
    adagrad = rule("adagrad", (1.0, 0, 0))
    with launches(0):
        update("adagrad", [])
        update("adagrad", [ParameterSlice(nothing, nothing, (nothing,), adagrad)])
        update("adagrad", [ParameterSlice(some, nothing, (some,), adagrad, rows, False)])
        queue().flush()


def test_a_parameter_beyond_32_bits_is_refused(cupy):
    class Huge:
        size = 1 << 32

    nothing = rule("sgd", ())
    with pytest.raises(ShapeError, match="4294967296 elements"):
        table([ParameterSlice(Huge(), Huge(), (), nothing)])
