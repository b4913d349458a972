"""The steps of all parameters in one launch, against the NumPy kernel parameter by parameter."""

import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.optimizers import table, update
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.optimizers import ParameterSlice, Rule
from dynbatch.kernels.scalar.update import UpdateRule
from tests.kernels.cuda.compare import launches
from tests.kernels.optimizer_steps import STEPS, rule

SHAPES = [(1,), (0,), (31,), (32,), (33, 1), (1025,), (2, 700), (0, 3), (1,)]
every_step = pytest.mark.parametrize("step", STEPS)


def made(rng, shape, dtype, of_step):
    """Value, gradient and slots; the first slot above the second's square, as averages are."""
    count = len(of_step.outcome.slots)
    slots = [rng.uniform(1 - k, 2 - k, shape) for k in range(count)]
    return [array.astype(dtype) for array in (*rng.standard_normal((2, *shape)), *slots)]


def expected(of_step, arrays):
    value, gradient, *slots = arrays
    with np.errstate(all="ignore"):
        of_step(value, gradient, slots, [np.empty_like(value) for _ in range(2)])


def compare(device, host, dtype):
    tolerance = 3e-5 if dtype == np.float32 else 1e-12
    for part, arrays in zip(device, host, strict=True):
        for got, wanted in zip((part.value, *part.slots), (arrays[0], *arrays[2:]), strict=True):
            np.testing.assert_allclose(got.get(), wanted, rtol=tolerance, atol=tolerance)


@every_step
def test_all_parameters_are_stepped_in_one_launch(cupy, dtype, step):
    rng = np.random.default_rng(0)
    rules = [rule(step, 1 + k) for k in range(len(SHAPES))]
    host = [made(rng, shape, dtype, rules[0]) for shape in SHAPES]
    parts = []
    for k, arrays in enumerate(host):
        value, gradient, *kept = (cupy.asarray(array) for array in arrays)
        parts.append(ParameterSlice(value, gradient, tuple(kept), rules[k]))
    uploads = queue().uploads
    with launches(1):
        update(parts)
        queue().flush()
    assert queue().uploads == uploads + 1
    for k, arrays in enumerate(host):
        expected(rules[k], arrays)
    compare(parts, host, dtype)
    assert all((p.gradient.get() == a[1]).all() for p, a in zip(parts, host, strict=True))


@every_step
@pytest.mark.parametrize("every_row", [True, False])
def test_row_sparse_gradients_share_the_launch(cupy, dtype, step, every_row):
    shapes = [(3,), (40, 3), (6, 300), (5, 2), (0, 4), (2, 2)]
    rows = [None, [0, 7, 31, 39], [5], [], [], [0, 1]]
    rng = np.random.default_rng(1)
    host, parts = [], []
    for shape, given in zip(shapes, rows, strict=True):
        arrays = made(rng, shape, dtype, rule(step))
        gradient = arrays[1]
        if given is not None:
            given = np.array(given, np.int64)
            gradient = gradient[given]
            arrays[1] = np.zeros_like(arrays[1])
            arrays[1][given] = gradient
        value, *kept = (cupy.asarray(a) for a in (arrays[0], *arrays[2:]))
        parts.append(
            ParameterSlice(value, cupy.asarray(gradient), tuple(kept), rule(step), given, every_row)
        )
        stepped = slice(None) if every_row or given is None else given
        block = [array[stepped] for array in arrays]
        expected(rule(step), block)
        for array, part in zip(arrays, block, strict=True):
            array[stepped] = part
        host.append(arrays)
    with launches(1):
        update(parts)
        queue().flush()
    compare(parts, host, dtype)


def rule_named_adam(factor):
    @UpdateRule
    def adam(value, gradient, lr):
        return {"value": value - gradient * lr * factor}

    return Rule(adam, (1.0,))


def test_rules_of_one_name_run_beside_each_other(cupy, dtype):
    value, gradient, slot = (cupy.asarray(np.full(5, number, dtype)) for number in (9, 1, 1))
    update([ParameterSlice(value, gradient, (slot, slot), rule("Adam-lr"))])
    for factor in (2, 3, 2):
        queue().flush()
        value.fill(9)
        update([ParameterSlice(value, gradient, (), rule_named_adam(factor))])
        queue().flush()
        assert value.get().tolist() == [9 - factor] * 5


@pytest.mark.parametrize("number", [np.nan, np.inf, 0.0, 3.0])
def test_nothing_is_done_unless_the_norm_is_finite(cupy, dtype, number):
    value, gradient = cupy.asarray(np.ones(5, dtype)), cupy.asarray(np.ones(5, dtype))
    norm = cupy.asarray(np.array([number]))
    update([ParameterSlice(value, gradient, (), rule("SGD-lr", 10))], norm)
    queue().flush()
    assert value.get().tolist() == [0 if np.isfinite(number) else 1] * 5


def test_what_is_not_finite_stays_in_its_element(cupy, dtype):
    arrays = [np.ones(70, dtype), np.ones(70, dtype), np.zeros(70, dtype), np.zeros(70, dtype)]
    arrays[1][[3, 40]] = np.nan, np.inf
    value, gradient, *slots = (cupy.asarray(array) for array in arrays)
    update([ParameterSlice(value, gradient, tuple(slots), rule("Adam-lr"))])
    queue().flush()
    expected(rule("Adam-lr"), arrays)
    np.testing.assert_allclose(value.get(), arrays[0], rtol=1e-6)
    assert np.isnan(arrays[0][[3, 40]]).all()


def test_no_elements_are_no_launch(cupy, dtype):
    nothing = cupy.empty((0, 3), dtype)
    rows = np.zeros(0, np.int64)
    some = cupy.asarray(np.ones((4, 3), dtype))
    adagrad = rule("Adagrad-lr")
    with launches(0):
        update([])
        update([ParameterSlice(nothing, nothing, (nothing,), adagrad)])
        update([ParameterSlice(some, nothing, (some,), adagrad, rows, False)])
        queue().flush()


def test_a_parameter_beyond_32_bits_is_refused(cupy):
    class Huge:
        size = 1 << 32

    with pytest.raises(ShapeError, match="4294967296 elements"):
        table([ParameterSlice(Huge(), Huge(), (), rule("SGD-lr"))])
