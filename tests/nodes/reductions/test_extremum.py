import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from tests.torch_parity import assert_equals_torch, import_torch

DIMS = [0, -1, None]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_the_gradient_of_a_tie_goes_to_the_first_as_in_torch(kind, dim):
    torch = import_torch()
    tied = np.array([[2, 1, 2], [2, 2, 1], [1, 1, 1]])
    sentences = [[tied], [tied[::-1].copy()], [np.ones((2, 3))], [np.ones((1, 3))]]
    assert_equals_torch(
        lambda x: getattr(F, kind)(x, dim=dim),
        lambda x: getattr(torch, kind)(x, dim, keepdim=dim == 1).values,
        sentences,
    )


def test_the_gradient_of_a_tie_over_everything_goes_to_the_first_element():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 3.0], [3.0, 3.0]]).keep()
        graph.backward(F.max(x))
        assert x.gradient.tolist() == [[0, 1], [0, 0]]


def test_argmax_is_the_first_largest_as_in_numpy():
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 3, (n, width)) for width in (1, 4, 40) for n in (1, 5, 5, 17)]
    with db.Graph() as graph:
        for array in arrays:
            x = F.input(graph, array)
            assert F.argmax(x, dim=0).value.tolist() == array.argmax(axis=0).tolist()
            found = F.argmax(x, dim=-1).value.tolist()
            assert found == array.argmax(axis=1)[:, None].tolist()
            assert F.argmax(x).value == array.argmax()


def test_argmax_has_no_gradient():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 3.0]]).keep()
        graph.backward(F.sum(F.argmax(x, dim=-1)) + F.sum(x * x))
        assert x.gradient.tolist() == [[2, 6]]


def test_a_nan_is_the_extremum_as_in_torch():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0], [np.nan], [3.0]])
        assert np.isnan(F.max(x, dim=0).value) and np.isnan(F.min(x, dim=0).value)
        assert F.argmax(x, dim=0).value == 1
