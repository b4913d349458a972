"""Backward from nodes that are no scalars, and from several at once."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import (
    DtypeError,
    EmptyBatchError,
    GraphError,
    MemoryLimitError,
    NumericError,
    ShapeError,
)
from dynbatch.testing import NanPool
from tests.messages import raised

LENGTHS = (3, 0, 1, 5)


class Model:
    """A projection of two layers; the second is a loss too."""

    def __init__(self, dtype="float64"):
        generator = np.random.default_rng(0)
        self.first = db.Parameter(generator.standard_normal((4, 3)).astype(dtype), "first")
        self.second = db.Parameter(generator.standard_normal((5, 4)).astype(dtype), "second")
        self.inputs = [generator.standard_normal((n, 3)) for n in LENGTHS]
        self.targets = [generator.integers(0, 5, n) for n in LENGTHS]
        self.gradients = [generator.standard_normal((n, 4)) for n in LENGTHS]

    def outputs(self, graph):
        """Hidden states and a loss of each sentence."""
        inputs = [F.input(graph, x) for x in self.inputs]
        hidden = [F.tanh(F.linear(x, self.first)) for x in inputs]
        losses = [
            F.cross_entropy(F.linear(h, self.second), ids, reduction="sum")
            for h, ids in zip(hidden, self.targets, strict=True)
        ]
        return inputs, hidden, losses

    def grads(self):
        found = [p.grad if p.grad is None else p.grad.copy() for p in (self.first, self.second)]
        self.first.zero_grad(), self.second.zero_grad()
        return found

    def by_torch(self, torch):
        """Gradients of both weights, by torch.autograd.backward of the same outputs."""
        weights = [torch.tensor(p.value, requires_grad=True) for p in (self.first, self.second)]
        hidden = [torch.tanh(torch.tensor(x) @ weights[0].T) for x in self.inputs]
        losses = [
            torch.nn.functional.cross_entropy(h @ weights[1].T, torch.tensor(y), reduction="sum")
            for h, y in zip(hidden, self.targets, strict=True)
        ]
        given = [torch.tensor(g) for g in self.gradients]
        ones = [torch.tensor(1.0 + k, dtype=torch.float64) for k in range(len(losses))]
        torch.autograd.backward([*hidden, *losses], [*given, *ones])
        return [weight.grad.numpy() for weight in weights]


def weighted(losses):
    return [1.0 + k for k in range(len(losses))]


@pytest.mark.parametrize("mode", ["plain", "check", "guard", "limited", "one_by_one"])
def test_several_outputs_and_their_gradients_give_those_of_pytorch(mode):
    torch = pytest.importorskip("torch")
    model = Model()
    options = {mode: True} if mode in ("check", "guard") else {}
    policy = "one_by_one" if mode == "one_by_one" else "by_bound"
    with db.Graph(dtype="float64", pool=NanPool(), policy=policy, **options) as graph:
        _, hidden, losses = model.outputs(graph)
        outputs, given = [*hidden, *losses], [*model.gradients, *weighted(losses)]
        limit = None
        if mode == "limited":
            with pytest.raises(MemoryLimitError) as found:
                graph.backward(outputs, memory_limit=1, gradient=given)
            limit = found.value.least_bytes
        count = len(graph)
        planned = graph.estimate(outputs, limit, given)
        assert len(graph) == count
        graph.backward(outputs, limit, given)
        assert graph.memory_use == planned
        for node, x in zip(hidden, model.inputs, strict=True):
            np.testing.assert_allclose(node.value, np.tanh(x @ model.first.value.T), rtol=1e-12)
    for ours, theirs in zip(model.grads(), model.by_torch(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_one_node_is_an_array_and_on_a_gpu_the_same(device):
    model = Model("float32")
    found = []
    for where in ("cpu", device):
        for parameter in (model.first, model.second):
            parameter.to(where)
        with db.Graph(device=where) as graph:
            _, hidden, _ = model.outputs(graph)
            graph.backward(F.concat(hidden, dim=0), gradient=np.concatenate(model.gradients))
        found.append(db.testing.precision.dense_gradient(model.first))
        model.grads()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_a_scalar_takes_a_gradient_too_and_without_one_it_is_1():
    model = Model()
    with db.Graph(dtype="float64") as graph:
        _, _, losses = model.outputs(graph)
        graph.backward(losses)
    ones = model.grads()
    with db.Graph(dtype="float64") as graph:
        _, _, losses = model.outputs(graph)
        graph.backward(F.sum(losses), gradient=3.0)
    threes = model.grads()
    for one, three in zip(ones, threes, strict=True):
        np.testing.assert_allclose(three, 3 * one, rtol=1e-12)


def test_losses_among_the_outputs_keep_their_gradient_in_one_pass_and_split_over_parts():
    """The gradient of each output is known before forward, as behind a mean."""
    model = Model()
    with db.Graph(dtype="float64") as graph:
        _, _, losses = model.outputs(graph)
        with pytest.raises(MemoryLimitError) as found:
            graph.backward(losses, memory_limit=1)
        graph.backward(losses, memory_limit=found.value.least_bytes)
        assert "LinearCrossEntropy +grad" in graph.explain()
        assert "micro-batches" in graph.memory_use.saving


def test_outputs_of_scans_and_calls_are_ends_of_a_backward():
    weight = db.Parameter(np.random.default_rng(0).standard_normal((3, 3)), "weight")

    @db.cell
    def step(x, state, p):
        h = F.tanh(F.linear(x, p) + state)
        return h, h

    x, g = np.random.default_rng(1).standard_normal((2, 4, 3))
    found = []
    for by_sum in (False, True):
        with db.Graph(dtype="float64") as graph:
            rows = F.input(graph, x).keep()
            outputs, last = db.scan(step, rows, init=3, params=weight)
            called, _ = step(rows[0], rows[1], weight)
            ends, given = [outputs, last, called], [g, g[0], g[1]]
            if by_sum:
                pairs = zip(ends, given, strict=True)
                graph.backward(F.sum([F.sum(y * F.input(graph, w)) for y, w in pairs]))
            else:
                graph.backward(ends, gradient=given)
            found.append([rows.gradient, weight.grad.copy()])
            weight.zero_grad()
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_a_failed_start_leaves_the_graph_as_it_was():
    with db.Graph() as graph, db.Graph() as other:
        weight = db.Parameter(np.ones((2, 3), np.float32), "weight")
        x = F.linear(F.input(graph, np.ones((4, 3))), weight)
        foreign = F.input(other, [1.0])
        count = len(graph)

        def backward(*args, **named):
            return lambda: graph.backward(*args, **named)

        raised(ShapeError, backward(x), "LinearMap #1: the loss has shape (4, 2)", "gradient=array")
        raised(ShapeError, backward([x]), "LinearMap #1", "rule: backward starts from a scalar")
        wrong = np.ones((4, 3))
        pieces = ("given for it is float64 of shape (4, 3)", "fix:  give numbers of shape (4, 2)")
        raised(ShapeError, backward(x, gradient=wrong), *pieces)
        raised(ShapeError, backward(x, gradient=[[1.0], [1.0, 2.0]]), "give numbers of shape")
        raised(ShapeError, backward([x, x], gradient=[1.0]), "1 gradients for 2 outputs")
        raised(ShapeError, backward([x, x], gradient=np.ones(2)), "ndarray for 2 outputs")
        raised(GraphError, backward([x, foreign], gradient=[None, None]), "another graph")
        raised(DtypeError, backward([x, 3.0]), "backward: a node expected, got float")
        raised(EmptyBatchError, backward([]), "at least one output")
        bad = np.ones((4, 2))
        bad[2, 1] = np.nan
        raised(NumericError, backward(x, gradient=bad), "given for it is nan at (2, 1)")
        raised(NumericError, lambda: graph.estimate(x, gradient=bad), "made at", __file__)
        assert len(graph) == count and weight.grad is None
        graph.backward(x, gradient=np.ones((4, 2)))
        assert weight.grad.tolist() == [[4, 4, 4]] * 2


def test_losses_that_are_not_finite_touch_no_gradient():
    weight = db.Parameter(np.ones((2, 3), np.float32), "weight")
    with db.Graph() as graph:
        x = F.linear(F.input(graph, [np.inf, 0.0, 0.0]), weight)
        message = raised(NumericError, lambda: graph.backward([x[0], x[1]]))
        assert "the sum of the losses is inf" in message
    assert weight.grad is None


OUTPUTS_WHOSE_VALUES_TELL_NOTHING = [
    (lambda x: x * 1.0, [1e20, 3e38], [1e20, 1e20], [1e20, 1e20]),
    (lambda x: F.log(x), [0.0, 2.0], [1.0, 1.0], [np.inf, 0.5]),
    (lambda x: F.exp(x[1:]), [0.0, 1000.0], [0.0], [0.0, np.nan]),
    (lambda x: F.log(x) * F.input(x.graph, [0.0, 1.0]), [0.0, 2.0], [0.0, 1.0], [np.nan, 0.5]),
    (lambda x: x + F.log(F.input(x.graph, [0.0, 1.0])), [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]),
    (lambda x: x * 3.0 + np.inf, [0.0, 1.0], [-1.0, 1.0], [-3.0, 3.0]),
]


@pytest.mark.parametrize(("make", "x", "given", "gradient"), OUTPUTS_WHOSE_VALUES_TELL_NOTHING)
def test_with_a_gradient_given_the_value_of_an_output_does_not_matter(make, x, given, gradient):
    weight = db.Parameter(np.array(x, np.float32), "weight")
    for several in (False, True):
        with db.Graph() as graph, np.errstate(all="ignore"):
            y = make(F.parameter(graph, weight))
            graph.backward([y] if several else y, gradient=[given] if several else given)
            assert y.value.shape == np.shape(given)
        np.testing.assert_allclose(weight.grad, np.array(gradient, np.float32))
        weight.zero_grad()


def test_a_guard_looks_at_the_nodes_and_not_at_the_start_of_backward():
    weight = db.Parameter(np.full(2, 1e20, np.float32), "weight")
    with db.Graph(guard=True) as graph:
        graph.backward(F.parameter(graph, weight) * 1.0, gradient=[1e20, 1e20])
    assert weight.grad.tolist() == [np.float32(1e20)] * 2
