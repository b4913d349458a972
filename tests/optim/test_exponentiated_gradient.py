import numpy as np
import pytest

from dynbatch import backend, optim
from dynbatch.errors import ArgumentError
from dynbatch.kernels.runtime.transfer import to_device
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("shape", [(5,), (7, 3)])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_multiplied_and_normalized(momentum, shape, sparse, device):
    if sparse and len(shape) == 1:
        pytest.skip("rows of a vector")
    rng = np.random.default_rng(0)
    expected = rng.random(shape)
    weights = Parameter(expected.copy()).to(device)
    where = backend.device(device)
    optimizer = optim.EG([weights], lr=0.5, momentum=momentum)
    buffer = np.zeros(shape)
    for _ in range(5):
        gradient = rng.standard_normal(shape)
        if sparse:
            rows = np.array([0, 4])
            table = RowSparse(rows, gradient[rows], shape)
            gradient, weights.grad = table.dense(), table.to(where)
        else:
            weights.grad = to_device(gradient, where)
        optimizer.step()
        buffer = momentum * buffer + gradient
        expected = expected * np.exp(-0.5 * buffer)
        expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-12)


def test_it_finds_the_best_of_some_weights():
    weights, costs = Parameter(np.full(3, 1 / 3)), np.array([0.4, 0.1, 0.3])
    optimizer = optim.EG([weights], lr=5.0, momentum=0.0)
    for _ in range(30):
        weights.grad = costs
        optimizer.step()
    np.testing.assert_allclose(weights.value, [0, 1, 0], atol=1e-12)


@pytest.mark.parametrize("value", [[0.5, -0.5], [[0.5, 0.5], [0.0, 0.0]], [np.nan, 1.0]])
def test_what_is_no_distribution_is_refused(value):
    with pytest.raises(ArgumentError, match=r"EG: parameter .*(?s:.*)np\.full"):
        optim.EG([Parameter(np.array(value))])
