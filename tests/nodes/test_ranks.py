"""Values of more than two dimensions: NumPy's results, batched as one by one, and gradients."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError

X = np.random.default_rng(0).normal(size=(3, 4, 5))

CASES = {
    "permute to the front": (lambda x: F.permute(x, (2, 0, 1)), lambda a: a.transpose(2, 0, 1)),
    "permute inner": (lambda x: F.permute(x, (0, -1, 1)), lambda a: a.transpose(0, 2, 1)),
    "permute rows": (lambda x: x.permute(1, 0, 2), lambda a: a.transpose(1, 0, 2)),
    "permute all": (lambda x: x.permute(2, 1, 0), lambda a: a.T),
    "transpose": (lambda x: x.transpose(0, 2), lambda a: a.swapaxes(0, 2)),
    "sum of the first": (lambda x: F.sum(x, dim=0), lambda a: a.sum(0)),
    "sum of the second": (lambda x: F.sum(x, dim=1), lambda a: a.sum(1)),
    "sum of two": (lambda x: F.sum(x, dim=(0, 1)), lambda a: a.sum((0, 1))),
    "sum of the last": (lambda x: F.sum(x, dim=-1), lambda a: a.sum(-1, keepdims=True)),
    "sum": (F.sum, np.sum),
    "sum of all": (lambda x: F.sum(x, dim=(0, 1, 2)), np.sum),
    "sum of all but the first": (lambda x: F.sum(x, dim=(1, 2)), lambda a: a.sum((1, 2))),
    "sum of a list of dims": (lambda x: F.sum(x, dim=[-1, 0]), lambda a: a.sum((0, 2))),
    "mean of all, from the end": (lambda x: F.mean(x, dim=(-1, -3, -2)), np.mean),
    "max of all": (lambda x: F.max(x, dim=(2, 0, 1)), np.max),
    "min of the outer ones": (lambda x: F.min(x, dim=(0, 2)), lambda a: a.min((0, 2))),
    "logsumexp of all": (
        lambda x: F.logsumexp(x, dim=(0, 1, 2)), lambda a: np.log(np.exp(a).sum())),
    "var of the first": (lambda x: F.var(x, dim=0), lambda a: a.var(0, ddof=1)),
    "var of two": (lambda x: F.var(x, dim=(0, 2)), lambda a: a.var((0, 2), ddof=1)),
    "std of all": (lambda x: F.std(x, dim=(0, 1, 2), correction=0), np.std),
    "std of a matrix": (lambda x: F.std(x[0], dim=(0, 1)), lambda a: a[0].std(ddof=1)),
    "sum of a vector": (lambda x: F.sum(x[0][1], dim=(0,)), lambda a: a[0, 1].sum()),
    "mean of the second": (lambda x: F.mean(x, dim=-2), lambda a: a.mean(1)),
    "max of the second": (lambda x: F.max(x, dim=1), lambda a: a.max(1)),
    "linear algebra": (lambda x: 2 * x + 1, lambda a: 2 * a + 1),
    "product": (lambda x: x @ F.transpose(x, 1, 2), lambda a: a @ a.swapaxes(1, 2)),
    "product with a vector": (lambda x: x @ x[0][1], lambda a: a @ a[0, 1]),
    "plus a matrix": (lambda x: x + x[0], lambda a: a + a[0]),
    "a matrix plus": (lambda x: x[0] + x, lambda a: a + a[0]),
    
    "plus a vector": (lambda x: x + x[0][0], lambda a: a + a[0, 0]),
    "minus a column": (lambda x: x - F.sum(x, dim=-1), lambda a: a - a.sum(-1, keepdims=True)),
    "tanh": (F.tanh, np.tanh),
    "softmax": (F.softmax, lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True)),
    "index": (lambda x: x[1], lambda a: a[1]),
    "index from the end": (lambda x: x[-1], lambda a: a[-1]),
    "slice": (lambda x: x[1:], lambda a: a[1:]),
    "ids": (lambda x: x[[2, 0]], lambda a: a[[2, 0]]),
    "concat": (lambda x: F.concat([x, 2 * x]), lambda a: np.concatenate([a, 2 * a], -1)),
    "concat of rows": (lambda x: F.concat([x, x], dim=0), lambda a: np.concatenate([a, a])),
    "stack": (lambda x: F.stack([x, 2 * x]), lambda a: np.stack([a, 2 * a])),
    "stack inside": (lambda x: F.stack([x[0], x[1]], dim=1), lambda a: np.stack([a[0], a[1]], 1)),
    "stack at the end": (lambda x: F.stack([x[0], x[1]], -1), lambda a: np.stack(a[:2], -1)),
    "unsqueeze": (lambda x: F.unsqueeze(x, 1), lambda a: a[:, None]),
    "None": (lambda x: F.reshape(x, (12, 5))[None], lambda a: a.reshape(1, 12, 5)),
    "squeeze": (lambda x: F.squeeze(F.unsqueeze(x, 2), 2), lambda a: a),
    "to a matrix": (lambda x: F.reshape(x, (-1, 5)), lambda a: a.reshape(-1, 5)),
    "flatten": (lambda x: x.flatten(), lambda a: a.reshape(-1)),
    "expand": (lambda x: F.expand(F.unsqueeze(x[0], 0), (2, 4, 5)), lambda a: np.stack([a[0]] * 2)),
    "where": (lambda x: F.where(x > 0, x, 0 * x), lambda a: np.maximum(a, 0)),
    "layer norm": (
        lambda x: F.layer_norm(x, None, None, eps=0.0),
        lambda a: (a - a.mean(-1, keepdims=True)) / a.std(-1, keepdims=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_functions_give_what_numpy_gives(name):
    function, numpy = CASES[name]
    with db.Graph(dtype=np.float64) as graph:
        y = function(F.input(graph, X))
        expected = np.asarray(numpy(X))
        assert y.shape == expected.shape
        np.testing.assert_allclose(y.value, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_functions_are_right(name):
    function, _ = CASES[name]
    db.testing.check_gradient(
        lambda graph, x: function(F.input(graph, X) * F.sum(x)), shapes=[(2,)]
    )


SIZES = [(3, 4, 5), (7, 4, 5), (1, 4, 5), (0, 4, 5), (3, 4, 5)]

BATCHED = {
    "permute": lambda graph, x: F.permute(x, (0, 2, 1)),
    "sum of the second": lambda graph, x: F.sum(F.tanh(x), dim=1),
    "mean of the first": lambda graph, x: F.mean(x, dim=0),
    "sum of all": lambda graph, x: F.sum(F.tanh(x), dim=(0, 1, 2)),
    "sum of all but the first": lambda graph, x: F.sum(F.tanh(x), dim=(1, 2)),
    "mean of the outer ones": lambda graph, x: F.mean(x, dim=(0, 2)),
    "broadcast": lambda graph, x: x * F.constant(graph, 2.0, (4, 1)) + F.constant(graph, 1.0, (5,)),
    "slices": lambda graph, x: F.concat([x[1:], x[:1]], dim=0),
}


@pytest.mark.parametrize("name", BATCHED)
def test_values_of_different_lengths_are_batched_as_one_by_one(name):
    db.testing.check_batching(BATCHED[name], shapes=[[size] for size in SIZES])


def test_images_of_different_sizes_are_batched_as_one_by_one():
    sizes = [(3, 4, 2), (5, 1, 2), (2, 6, 2), (0, 3, 2)]
    db.testing.check_batching(
        lambda graph, x: F.reshape(F.permute(x, (2, 0, 1)), (2, -1)).sum(dim=-1),
        shapes=[[size] for size in sizes],
    )


def test_a_function_takes_as_many_launches_for_many_values_as_for_one():
    def launches(count):
        with db.Graph() as graph:
            xs = [F.input(graph, np.ones((2 + k % 3, 4, 5))) for k in range(count)]
            for x in xs:
                F.sum(F.permute(F.tanh(x), (0, 2, 1)), dim=-1).keep()
            graph.forward()
            return graph.statistics.launches

    assert launches(12) == launches(1)


def test_a_weight_of_four_dimensions_is_a_parameter():
    weight = db.Parameter(np.ones((2, 3, 1, 2)))
    with db.Graph(dtype=np.float64) as graph:
        w = F.parameter(graph, weight)
        assert w.shape == (2, 3, 1, 2)
        graph.backward(F.sum(w * w))
    assert np.array_equal(weight.grad, 2 * np.ones((2, 3, 1, 2)))


def test_a_function_that_takes_matrices_says_how_to_make_one():
    with db.Graph() as graph:
        x = F.input(graph, X)
        with pytest.raises(ShapeError, match=r"has 3 dimensions") as raised:
            F.attention(x, x, x)
        assert "F.reshape(x, (-1, 5))" in str(raised.value)
        with pytest.raises(ShapeError, match="an order of"):
            F.permute(x, (0, 1))
        with pytest.raises(ShapeError, match="sizes are equal from the last dimension on"):
            x + F.input(graph, np.ones((3, 5)))
        with pytest.raises(ShapeError, match="along the first dimension"):
            x[:, 1]
        for dims in ((0, 0), (0, 3), (-4, 0), (), 3, (0, -3)):
            for reduce in (F.sum, F.mean, F.max, F.min, F.logsumexp, F.var, F.std):
                with pytest.raises(ShapeError, match="each once"):
                    reduce(x, dim=dims)
        with pytest.raises(ShapeError, match="each once"):
            F.sum(x[0], dim=(0, 0))
        with pytest.raises(DtypeError, match="is not an integer"):
            F.squeeze(x, dim=1.0)
        with pytest.raises(ShapeError, match="moves another dim there"):
            F.softmax(x, dim=0)


def test_a_block_that_meets_three_dimensions_runs_without_a_program():
    @db.block
    def heads(graph, x):
        return F.sum(F.reshape(x, (len(x), 2, -1)), dim=1)

    with db.Graph(dtype=np.float64) as graph:
        found = heads(graph, F.input(graph, X[0, :, :4])).value
    np.testing.assert_allclose(found, X[0, :, :4].reshape(4, 2, 2).sum(1))
