import numpy as np
import pytest

import dynbatch as db
from dynbatch.testing import in_float64
from dynbatch.testing.precision import dense_gradient


def test_parameters_are_float64_inside_and_the_same_arrays_afterwards():
    parameter = db.Parameter(np.array([0.1, 0.2], np.float32))
    value = parameter.value
    with in_float64([parameter, parameter]) as found:
        assert found == [parameter]
        assert parameter.dtype == np.float64
        np.testing.assert_array_equal(parameter.value, value.astype(np.float64))
        parameter.value[...] = 5
        parameter.grad = np.zeros(2)
    assert parameter.value is value and parameter.grad is None
    assert value.tolist() == np.array([0.1, 0.2], np.float32).tolist()


def test_float64_parameters_are_copied_too():
    parameter = db.Parameter(np.ones(2))
    with in_float64([parameter]):
        parameter.value[...] = 5
    assert parameter.value.tolist() == [1, 1]


def test_an_exception_restores_them():
    parameter = db.Parameter(np.ones(2, np.float32))
    with pytest.raises(KeyError), in_float64([parameter]):
        raise KeyError
    assert parameter.dtype == np.float32


def test_gradients_are_dense_whatever_they_were():
    parameter = db.Parameter(np.ones((3, 2)))
    assert dense_gradient(parameter).tolist() == [[0, 0]] * 3
    parameter.grad = db.RowSparse(np.array([1]), np.full((1, 2), 4.0), (3, 2))
    assert dense_gradient(parameter).tolist() == [[0, 0], [4, 4], [0, 0]]
    parameter.grad = np.full((3, 2), 2.0)
    copy = dense_gradient(parameter)
    copy[...] = 0
    assert parameter.grad.tolist() == [[2, 2]] * 3
