import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, EmptyBatchError, ShapeError
from dynbatch.nodes.inner_product import seed
from dynbatch.testing import check_batching, check_gradient
from dynbatch.testing.probe import backward, gradient_of
from tests.torch_parity import assert_equals_torch, import_torch

SENTENCES = [(length, 5) for length in (3, 0, 1, 9, 2)]
OCCUPIED = [(length, 5) for length in (3, 1, 9, 2)]
ANY_LENGTH = [F.sum, F.mean]
ONE_TOKEN = [F.max, F.min, F.logsumexp]
DIMS = [0, -1, None]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("reduce", [*ANY_LENGTH, *ONE_TOKEN])
def test_batches_and_differentiates(reduce, dim):
    def build(graph, x):
        return reduce(x, dim=dim)

    shapes = SENTENCES if reduce in ANY_LENGTH or dim == -1 else OCCUPIED
    check_batching(build, shapes=[[shape] for shape in shapes])
    wide = [[(length, 40)] for length, _ in shapes]
    check_batching(build, shapes=wide)
    check_batching(build, shapes=[[(4, 3)], [(4, 3)], [(4, 3)]])
    check_batching(build, shapes=[[(5,)], [(5,)]])
    for shape in [*shapes[:3], (1, 40), (5,)]:
        check_gradient(build, shapes=[shape])


@pytest.mark.parametrize("width", [1, 5, 40])
@pytest.mark.parametrize("kind", ["sum", "mean", "logsumexp", "amax", "amin"])
def test_equals_torch(kind, width):
    torch = import_torch()
    ours, theirs = getattr(F, kind.removeprefix("a")), getattr(torch, kind)
    shapes = [(length, width) for length, _ in OCCUPIED]
    assert_equals_torch(lambda x: ours(x, dim=0), lambda x: theirs(x, 0), shapes)
    assert_equals_torch(lambda x: ours(x, dim=-1), lambda x: theirs(x, -1, keepdim=True), shapes)
    assert_equals_torch(ours, lambda x: theirs(x, (0, 1)), shapes)
    assert_equals_torch(ours, lambda x: theirs(x, 0), [(width,), (width,)])


def test_logsumexp_of_infinities_is_not_nan():
    with db.Graph() as graph:
        x = F.input(graph, [[-np.inf, -np.inf, 0.0], [-np.inf, 1.0, np.inf]]).keep()
        y = F.logsumexp(x, dim=0)
        graph.forward()
        assert y.value.tolist() == [-np.inf, 1, np.inf]
        weights = F.input(graph, [0.0, 1.0, 0.0])
        graph.backward(F.sum(F.logsumexp(x[:, :2], dim=0)[1] + weights[0]))
        assert x.gradient.tolist() == [[0, 0, 0], [0, 1, 0]]
    with db.Graph() as graph:  # what is not the infinite one has no share, as in PyTorch
        x = F.input(graph, [[1.0, np.inf, -2.0]]).keep()
        backward(graph, seed([F.logsumexp(x)], [np.array(1.0)], False))
        assert np.array_equal(gradient_of(x), [[0, np.nan, 0]], equal_nan=True)


def test_the_table_of_sentences_without_tokens():
    with db.Graph() as graph:
        x = F.input(graph, np.zeros((0, 3)))
        assert F.sum(x, dim=0).value.tolist() == [0, 0, 0]
        assert F.mean(x, dim=0).value.tolist() == [0, 0, 0]
        assert F.logsumexp(x, dim=0).value.tolist() == [-np.inf] * 3
        assert (F.sum(x).value, F.mean(x).value, F.logsumexp(x).value) == (0, 0, -np.inf)
        for reduce in (F.sum, F.mean, F.logsumexp, F.max, F.min, F.argmax):
            assert reduce(x, dim=-1).value.shape == (0, 1)
        for reduce in (F.max, F.min, F.argmax):
            for dim in (0, None):
                with pytest.raises(ShapeError, match="at least one token"):
                    reduce(x, dim=dim)


def test_an_empty_sentence_changes_no_other():
    with db.Graph() as graph:
        lengths = (2, 0, 3, 0)
        nodes = [F.mean(F.input(graph, np.full((n, 40), float(n))), dim=0) for n in lengths]
        assert [node.value[0] for node in nodes] == [2, 0, 3, 0]


def test_a_sums_bits_do_not_depend_on_the_mini_batch():
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((n, 64)) for n in (30, 2, 2, 2, 7, 7, 7, 7, 1, 100)]
    with db.Graph() as graph:
        batched = [F.sum(F.input(graph, x), dim=0) for x in arrays]
        batched = [y.value for y in batched]
    for array, expected in zip(arrays, batched, strict=True):
        with db.Graph() as graph:
            assert F.sum(F.input(graph, array), dim=0).value.tobytes() == expected.tobytes()


def test_lists_of_scalars_are_summed_and_averaged():
    def build(graph, x):
        losses = [F.sum(x[t]) for t in range(x.rows)]
        return [F.sum(losses), F.mean(losses)]

    check_batching(build, shapes=[[shape] for shape in OCCUPIED])
    check_gradient(build, shapes=[(3, 5)])


@pytest.mark.parametrize("reduce", ANY_LENGTH)
def test_lists_that_are_no_losses_are_refused(reduce):
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        with pytest.raises(EmptyBatchError, match="the list is empty"):
            reduce([])
        with pytest.raises(ShapeError, match="only if it holds scalars"):
            reduce([x, x])
        with pytest.raises(DtypeError, match="has no dim"):
            reduce([x[0]], dim=0)


def test_a_reduction_over_features_drops_the_last_dimension_of_a_vector_only():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 3)))
        assert F.sum(x, dim=-1).shape == (2, 1)
        assert F.sum(x[0], dim=-1).shape == F.sum(x[0], dim=0).shape == ()
        with pytest.raises(ShapeError, match="no dim 2"):
            F.max(x, dim=2)
