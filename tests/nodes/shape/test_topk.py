"""`F.topk`: ties, its gradient, its widths, and what it refuses."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError
from tests.messages import raised


@pytest.mark.parametrize("dim", [0, -1])
def test_of_equal_elements_the_first_are_taken_and_rank_first(dim):
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 3, (rows, 5)).astype(float) for rows in (3, 7, 4)]
    with db.Graph() as graph:
        for array in sentences:
            values, ids = F.topk(F.input(graph, array), 3, dim)
            order = np.argsort(-array, axis=dim, kind="stable")
            first = order[:3] if dim == 0 else order[:, :3]
            assert ids.value.tolist() == first.tolist()
            assert (values.value == np.take_along_axis(array, first, axis=dim)).all()


def test_the_gradient_goes_to_the_elements_that_were_taken_and_none_to_the_ids():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 4.0, 4.0], [7.0, 5.0, 6.0]]).keep()
        values, ids = F.topk(x, 2)
        weights = F.input(graph, [[1.0, 2.0], [3.0, 4.0]])
        graph.backward(F.sum(values * weights) + F.sum(ids))
        assert x.gradient.tolist() == [[0, 1, 2], [3, 0, 4]]


def test_layers_read_the_largest_of_each_feature():
    """What is as wide as x is no length, although it was a transpose."""
    w = db.Parameter(np.ones((2, 3)))
    with db.Graph() as graph:
        values, _ = x_of(graph).topk(1, 0)
        assert F.linear(values, w).value.tolist() == [[12, 12]]


def x_of(graph):
    return F.input(graph, [[1.0, 2.0, 3.0], [4.0, 5.0, 1.0]])


def test_what_cannot_be_chosen_is_refused():
    with db.Graph() as graph:
        x = x_of(graph)
        raised(ShapeError, lambda: F.topk(x, 3, 0), "the 3 largest elements of (3, 2)", "fix:")
        raised(ShapeError, lambda: F.topk(x, 4), "the 4 largest elements of (2, 3)", "fix:")
        raised(ShapeError, lambda: F.topk(x, 1, 2), "has no dim 2")
        raised(ShapeError, lambda: F.topk(F.sum(x), 1), "has no dim -1")
        raised(ArgumentError, lambda: F.topk(x, 0), "topk: k is 0", "rule:")
        raised(ArgumentError, lambda: F.topk(x, 1.5), "topk: k is 1.5")
