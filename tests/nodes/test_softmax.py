import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.testing import check_batching, check_gradient
from tests.torch_parity import assert_equals_torch, import_torch

SENTENCES = [(length, 5) for length in (3, 0, 1, 40, 2)]
KINDS = ["softmax", "log_softmax"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, -1])
def test_equals_torch(kind, dim):
    torch = import_torch()
    ours, theirs = getattr(F, kind), getattr(torch, kind)
    for width in (1, 5, 40):
        shapes = [(length, width) for length, _ in SENTENCES]
        assert_equals_torch(lambda x: ours(x, dim=dim), lambda x: theirs(x, dim), shapes)
        assert_equals_torch(lambda x: ours(x, dim=dim), lambda x: theirs(x, dim), [(width,)] * 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, -1])
def test_batches_and_differentiates(kind, dim):
    def build(graph, x):
        return getattr(F, kind)(x, dim=dim)

    check_batching(build, shapes=[[shape] for shape in SENTENCES])
    check_batching(build, shapes=[[(length, 40)] for length in (3, 0, 1, 9)])
    for shape in [*SENTENCES[:3], (4,)]:
        check_gradient(build, shapes=[shape])


@pytest.mark.parametrize("dim", [0, -1])
def test_large_scores_neither_overflow_nor_vanish(dim):
    with db.Graph() as graph:
        x = F.input(graph, [[1e4, 1e4], [1e4, 1e4]])
        assert F.softmax(x, dim=dim).value.tolist() == [[0.5, 0.5]] * 2
        assert F.log_softmax(x, dim=dim).value == pytest.approx(np.log(0.5))


def test_a_score_of_minus_infinity_gets_no_weight():
    with db.Graph() as graph:
        x = F.input(graph, [[0.0, -np.inf], [-np.inf, 0.0]])
        assert F.softmax(x).value.tolist() == [[1, 0], [0, 1]]
        assert F.log_softmax(x, dim=0).value.tolist() == [[0, -np.inf], [-np.inf, 0]]


def test_only_minus_infinities_are_nan_as_in_torch():
    with db.Graph() as graph:
        x = F.input(graph, [[-np.inf, -np.inf], [0.0, 0.0]])
        assert np.isnan(F.softmax(x).value).tolist() == [[True, True], [False, False]]


def test_vectors_and_sentences_over_features_are_one_batch():
    with db.Graph() as graph:
        for shape in ((3, 4), (4,), (0, 4)):
            F.softmax(F.input(graph, np.ones(shape)))
        graph.forward()
        assert [len(step.nodes) for step in graph.plans[0].steps] == [3, 3]


def test_a_scalar_is_refused():
    with db.Graph() as graph, pytest.raises(ShapeError, match="has no dim -1"):
        F.softmax(F.input(graph, 1.0))
