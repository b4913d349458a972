import tracemalloc

import numpy as np
import pytest

import dynbatch as db
from dynbatch.batcher.steps.parameter_gradients import StepGradients, commit
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import devices
from tests.cuda.fake_cupy import array as fake_array

VALUE = np.zeros((4, 2))


def dense(scale):
    return np.arange(8.0).reshape(4, 2) * scale


def step(*kinds, parameter):
    """A step that left a dense gradient, a row-sparse one, or a deferred product."""
    made = StepGradients(owned=set(), deferred={parameter.uid} if "product" in kinds else set())
    for kind in kinds:
        if kind == "dense":
            made.add(parameter, dense(1))
        elif kind == "sparse":
            made.rows(
                parameter, np.array([3, 1, 3]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
            )
        else:
            made.outer(parameter, np.array([[1.0, 2.0]]), np.array([[1.0, 0.0, 2.0, 0.0]]))
    return made


OF_KIND = {
    "dense": dense(1),
    "sparse": np.array([[0, 0], [3, 4], [0, 0], [6, 8]]),
    "product": np.array([[1, 2], [0, 0], [2, 4], [0, 0]]),
}


@pytest.mark.parametrize("before", [None, "dense", "sparse"])
@pytest.mark.parametrize("first", OF_KIND)
@pytest.mark.parametrize("second", OF_KIND)
def test_gradients_of_any_kinds_add_up(before, first, second):
    parameter = db.Parameter(VALUE.copy())
    expected = OF_KIND[first] + OF_KIND[second]
    if before is not None:
        commit([step(before, parameter=parameter)])
        expected = expected + OF_KIND[before]
    commit([step(first, parameter=parameter), step(second, parameter=parameter)])
    grad = parameter.grad
    assert np.array_equal(grad.dense() if isinstance(grad, db.RowSparse) else grad, expected)


def test_sparse_gradients_stay_sparse_with_increasing_rows():
    parameter = db.Parameter(VALUE.copy())
    commit([step("sparse", parameter=parameter), step("sparse", parameter=parameter)])
    assert isinstance(parameter.grad, db.RowSparse)
    assert parameter.grad.rows.tolist() == [1, 3]


def test_a_frozen_parameter_takes_nothing():
    parameter = db.Parameter(VALUE.copy())
    parameter.frozen = True
    commit([step("dense", "sparse", parameter=parameter), step("product", parameter=parameter)])
    assert parameter.grad is None


def test_only_the_owner_writes_into_the_parameters_buffer():
    parameter = db.Parameter(VALUE.copy())
    owner = StepGradients(owned={parameter.uid}, deferred=set())
    assert owner.buffer(parameter) is parameter.gradient_buffer()
    assert owner.buffer(parameter) is not parameter.gradient_buffer()
    other = StepGradients(owned=set(), deferred=set())
    assert other.buffer(parameter) is not parameter.gradient_buffer()


def test_products_of_a_parameter_that_several_steps_use_take_bounded_room():
    weight = db.Parameter(np.eye(32), "weight")
    weight.gradient_buffer()
    generator = np.random.default_rng(0)
    pairs = [
        generator.standard_normal((2, rows, 32)) for rows in [700, 1, 300, 600, *[900] * 20, 5]
    ]
    left = [StepGradients(set(), {weight.uid}) for _ in pairs]
    for gradients, (x, dy) in zip(left, pairs, strict=True):
        gradients.outer(weight, x, dy)
    expected = sum(dy.T @ x for x, dy in pairs)
    for times in (1, 2):  # into a free buffer, and onto a gradient that is there
        tracemalloc.start()
        commit(left)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_allclose(weight.grad, times * expected, rtol=1e-12, atol=1e-9)
        assert held < 2 * 8 * 32 * (900 + 5 + 600)  # two groups at most, of 18,906 rows in all


@pytest.mark.cuda
def test_products_on_a_gpu_take_the_room_of_the_largest_group_of_steps(monkeypatch):
    generator, sizes, alloc = np.random.default_rng(0), [], fake_array.alloc
    rows = [700, 1, 300, 600, *[100] * 30]
    pairs = generator.standard_normal((2, sum(rows), 32)).astype(np.float32)
    with devices.device("shuffled") as cupy:
        weights = [db.Parameter(np.eye(32, dtype=np.float32)).to("cuda") for _ in range(2)]
        left = []
        for x, dy in zip(*[np.split(side, np.cumsum(rows)[:-1]) for side in pairs], strict=True):
            left.append(StepGradients(set(), {weight.uid for weight in weights}))
            for weight in weights:
                left[-1].outer(weight, cupy.asarray(x), cupy.asarray(dy))
        buffers = [weight.gradient_buffer() for weight in weights]
        monkeypatch.setattr(fake_array, "alloc", lambda size: sizes.append(size) or alloc(size))
        commit(left)
        queue().flush()
        x, dy = pairs
        for weight, buffer in zip(weights, buffers, strict=True):
            assert weight.grad is buffer
            np.testing.assert_allclose(buffer.get(), dy.T @ x, rtol=1e-4, atol=1e-3)
    assert sizes == [4 * 2 * 32 * (1 + 300 + 600)]
