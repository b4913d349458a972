import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import (
    BackendError,
    DtypeError,
    FreedError,
    GraphError,
    NoGradientError,
    NumericError,
    ShapeError,
)
from tests.cuda import devices
from tests.reference_models import Tagger, gradients, sentences, train

BATCH = sentences([3, 1, 7, 0, 2])

pytestmark = pytest.mark.usefixtures("dead_memory_is_nan")


# Reading ------------------------------------------------------------------------------------------


def test_values_can_be_read_while_the_graph_grows():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0], [3.0, 4.0]])
        total = F.sum(x, dim=0)
        assert total.value.tolist() == [4, 6]
        scaled = x * float(total.value[0])  # a decision taken on a value
        assert scaled.value.tolist() == [[4, 8], [12, 16]]
        assert total.value.tolist() == [4, 6]
        assert len(graph.plans) == 2


def test_a_value_has_the_shape_of_its_node():
    with db.Graph() as graph:
        for array in (3.0, [1.0, 2.0], [[1.0, 2.0]], np.zeros((0, 3))):
            node = F.input(graph, array)
            assert node.value.shape == node.shape == np.shape(array)


def test_writing_into_a_value_does_not_reach_the_graph():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        x.value[...] = 9
        assert (x * 2.0).value.tolist() == [2, 4]


def test_writing_into_given_arrays_after_the_node_was_made_changes_nothing():
    table = db.Parameter(np.arange(6, dtype=np.float32).reshape(3, 2))
    array, ids = np.ones(2), np.array([0, 1])
    with db.Graph() as graph:
        x, rows = F.input(graph, array), F.lookup(graph, table, ids)
        array[:], ids[:] = 5, 2
        assert x.value.tolist() == [1, 1]
        assert rows.value.tolist() == [[0, 1], [2, 3]]


def test_nothing_runs_until_a_value_is_asked_for():
    with db.Graph() as graph:
        F.tanh(F.input(graph, [1.0]))
        assert graph.statistics.batches == 0
        graph.forward()
        assert graph.statistics.batches == 2
        graph.forward()
        assert graph.statistics.batches == 2


def test_values_of_several_nodes_take_one_run_of_what_they_need(device):
    with db.Graph(device=device) as graph:
        x = F.input(graph, [1.0, 2.0])
        unasked = F.exp(x)
        empty, twice = F.input(graph, np.zeros((0, 3))), x * 2.0
        found = graph.values([twice, empty, x, x])
        assert [value.tolist() for value in found] == [[2, 4], [], [1, 2], [1, 2]]
        assert found[1].shape == (0, 3)
        found[2][...] = 9
        assert found[3].tolist() == x.value.tolist() == [1, 2]
        assert len(graph.plans) == 1 and "Exp" not in graph.explain()
        assert graph.values([]) == []
        np.testing.assert_allclose(unasked.value, np.exp([1, 2]), rtol=1e-6)


def test_values_after_backward_are_the_loss_and_what_was_kept():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        loss = F.sum(x)
        graph.backward(loss)
        assert [value.tolist() for value in graph.values([x, loss, x * 3.0])] == [[1, 2], 3, [3, 6]]
    with pytest.raises(GraphError, match="values: the graph is closed"):
        graph.values([x])


def test_values_of_what_is_no_node_of_the_graph_raise():
    with db.Graph() as graph, db.Graph() as other:
        with pytest.raises(DtypeError, match="values: a node expected, got list"):
            graph.values([[1.0]])
        with pytest.raises(GraphError, match="belongs to another graph"):
            graph.values([F.input(other, 1.0)])


def test_logits_folded_into_the_loss_are_computed_only_when_read():
    model = Tagger()
    with db.Graph() as graph:
        logits = F.linear(model.hidden(graph, [1, 2]), model.projection)
        F.cross_entropy(logits, [0, 1])
        graph.forward()
        assert "LinearMap " in graph.explain()
        assert sum(line.split()[1] == "LinearMap" for line in graph.explain().splitlines()) == 1
        assert logits.value.shape == (2, 5)
        assert sum(line.split()[1] == "LinearMap" for line in graph.explain().splitlines()) == 2


# Backward -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["by_agenda", "by_depth", "one_by_one"])
def test_backward_after_reading_gives_the_same_gradients(policy):
    model = Tagger("float64")
    train(model, BATCH, policy=policy)
    expected = gradients(model)
    with db.Graph(dtype="float64", policy=policy) as graph:
        losses = model.losses(graph, BATCH)
        for loss in losses[:2]:
            assert np.isfinite(loss.value)
        graph.backward(F.mean(losses))
    for found, gradient in zip(gradients(model), expected, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-12, atol=1e-14)


def test_gradients_of_two_graphs_add_up():
    model = Tagger("float64")
    train(model, BATCH[:2])
    first = gradients(model)
    train(model, BATCH[2:])
    second = gradients(model)
    train(model, BATCH[:2])
    train(model, BATCH[2:])
    for total, a, b in zip(gradients(model), first, second, strict=True):
        np.testing.assert_allclose(total, a + b, rtol=1e-12, atol=1e-14)


def test_two_losses_of_one_graph_that_was_run_forward_first():
    parameter = db.Parameter(np.array([1.0, -2.0]))
    with db.Graph(dtype="float64") as graph:
        x = F.parameter(graph, parameter)
        squares, cubes = F.sum(x * x), F.sum(x * x * x)
        graph.forward()
        graph.backward(squares)
        assert parameter.grad.tolist() == [2, -4]
        graph.backward(cubes)
        assert parameter.grad.tolist() == [2 + 3, -4 + 12]


def test_a_second_backward_over_freed_values_raises_and_adds_nothing():
    parameter = db.Parameter(np.array([[1.0, 2.0], [3.0, 0.0]]))
    builds = (
        lambda x: F.sum(x * x),
        lambda x: F.sum(F.max(x, dim=0)),  # backward reads what forward saved, no value
        lambda x: F.sum(db.scan(summing, x, init=2)[0]),
    )
    for build in builds:
        parameter.zero_grad()
        with db.Graph(dtype="float64") as graph:
            loss = build(F.tanh(F.parameter(graph, parameter)))
            graph.backward(loss)
            before = parameter.grad.copy()
            with pytest.raises(FreedError, match="for several losses"):
                graph.backward(loss)
            assert np.array_equal(parameter.grad, before)


@db.cell
def summing(x, h, params):
    h = F.tanh(h * x)
    return h, h


def test_values_are_freed_by_backward_unless_kept():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        y = F.tanh(x)
        z = F.exp(y).keep()
        graph.backward(F.sum(z))
        assert x.value.tolist() == [1, 2]
        np.testing.assert_allclose(z.value, np.exp(np.tanh([1, 2])), rtol=1e-6)
        with pytest.raises(FreedError, match=f"{y.label()}: the value was freed"):
            _ = y.value


def test_a_kept_node_has_a_gradient():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        y = (x * x).keep()
        graph.backward(F.sum(y * 3.0))
        assert y.gradient.tolist() == [3, 3]
        assert x.gradient.tolist() == [6, 12]


def test_a_node_kept_after_its_value_was_read_has_a_gradient():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [[1.0, 5.0], [2.0, 0.0]])
        y = F.max(x * x, dim=0)  # backward reads saved places, which reading must not skip
        assert y.value.tolist() == [4, 25]
        x.keep()
        graph.backward(F.sum(y))
        assert x.gradient.tolist() == [[0, 10], [4, 0]]


def test_a_node_that_was_not_kept_has_none():
    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        graph.backward(F.sum(F.tanh(x).keep()))
        with pytest.raises(FreedError, match="its gradient was not kept"):
            _ = x.gradient


def test_the_gradient_of_a_kept_node_that_does_not_matter_is_zero():
    with db.Graph() as graph:
        x, y = F.input(graph, [1.0]).keep(), F.input(graph, [1.0, 2.0]).keep()
        graph.backward(F.sum(x))
        assert y.gradient.tolist() == [0, 0]


def test_nodes_the_loss_does_not_need_are_not_run_by_backward():
    with db.Graph() as graph:
        x = F.input(graph, [1.0]).keep()
        unused = F.exp(x)
        graph.backward(F.sum(F.tanh(x)))
        assert "Exp" not in graph.explain()
        assert unused.value == pytest.approx(np.exp(1))


def test_an_unused_node_over_freed_values_raises_and_spoils_nothing_else():
    with db.Graph() as graph:
        hidden = F.tanh(F.input(graph, [1.0]).keep())
        unused = hidden * hidden
        graph.backward(F.sum(F.exp(hidden)))
        with pytest.raises(FreedError, match=hidden.label()):
            _ = unused.value
        assert F.exp(F.input(graph, [0.0])).value.tolist() == [1]


def test_a_frozen_parameter_gets_no_gradient_and_the_others_their_own():
    model = Tagger("float64")
    train(model, BATCH)
    expected = gradients(model)
    model.weight.frozen = model.table.frozen = True
    train(model, BATCH)
    assert model.weight.grad is None and model.table.grad is None
    np.testing.assert_allclose(model.bias.grad, expected[2], rtol=1e-12)
    np.testing.assert_allclose(model.projection.grad, expected[3], rtol=1e-12)


@pytest.mark.parametrize("computed", [False, True])
def test_a_loss_of_constants_has_no_gradient_whatever_else_the_graph_reads(computed):
    for others in ("no parameter", "a frozen one", "one of another loss"):
        parameter = db.Parameter(np.ones(2, np.float32))
        parameter.frozen = others == "a frozen one"
        with db.Graph() as graph:
            x = F.input(graph, [1.0, 2.0])
            loss, other = F.sum(x), None if others == "no parameter" else F.sum(parameter * x)
            if computed:
                assert loss.value == 3
            for given in ({}, {"gradient": 1.0}):
                with pytest.raises(NoGradientError, match=r"Sum #\d+ depends on no parameter"):
                    graph.backward(loss, **given)
            assert loss.value == 3 and (other is None or other.value == 3)
            x.keep()
            graph.backward(loss)
            assert x.gradient.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_loss_may_have_any_shape_of_one_element(shape):
    with db.Graph() as graph:
        x = F.input(graph, np.full(shape, 2.0)).keep()
        loss = x * x
        graph.backward(loss)
        assert x.gradient == np.full(shape, 4.0)
    assert loss.value == np.full(shape, 4.0)


def test_a_loss_of_more_elements_raises():
    with db.Graph() as graph, pytest.raises(ShapeError, match="backward starts from a scalar"):
        graph.backward(F.input(graph, [1.0, 2.0]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("reads", [False, True])
def test_a_loss_that_is_not_finite_raises_and_leaves_gradients_untouched(bad, reads):
    model = Tagger()
    train(model, BATCH)
    before = [p.grad for p in model.parameters()]
    copies = [g.dense() if isinstance(g, db.RowSparse) else g.copy() for g in before]
    with db.Graph() as graph:
        loss = F.mean(model.losses(graph, BATCH)) * bad
        if reads:
            graph.forward()
        with pytest.raises(NumericError, match="no gradient was added"):
            graph.backward(loss)
    for parameter, grad, copy in zip(model.parameters(), before, copies, strict=True):
        assert parameter.grad is grad
        assert np.array_equal(grad.dense() if isinstance(grad, db.RowSparse) else grad, copy)


def test_backward_needs_a_graph_that_keeps_what_it_reads():
    with db.Graph(grad=False) as graph:
        loss = F.sum(F.input(graph, [1.0]))
        with pytest.raises(GraphError, match="grad=False"):
            graph.backward(loss)


# Making one ---------------------------------------------------------------------------------------


@pytest.mark.skipif(devices.has_gpu(), reason="there is a GPU")
def test_a_device_that_is_not_there_raises():
    with pytest.raises(BackendError, match="CUDA is not available"):
        db.Graph(device="cuda")


@pytest.mark.parametrize("dtype", ["float16", "int32", "complex64"])
def test_other_dtypes_raise(dtype):
    with pytest.raises(DtypeError, match="float32 or float64"):
        db.Graph(dtype=dtype)


def test_an_unknown_policy_raises():
    with pytest.raises(ValueError, match=r"known policies are .*by_agenda"):
        db.Graph(policy="by_magic")


def test_a_graph_says_what_it_is():
    graph = db.Graph()
    F.input(graph, [1.0])
    assert repr(graph) == "Graph(1 nodes, float32, 0 runs)"
    assert len(graph) == 1
    graph.close()
    assert repr(graph).startswith("Graph(closed")


@pytest.mark.parametrize("read", [False, True])
def test_backward_from_a_detached_value_reaches_nothing(read):
    with db.Graph() as graph:
        x = F.input(graph, 2.0).keep()
        loss = F.detach(x * 3)
        if read:
            assert loss.value == 6
        with pytest.raises(NoGradientError, match="Detach #2 depends on no parameter"):
            graph.backward(loss)
        assert loss.value == 6


@pytest.mark.parametrize("kind", [db.cell, db.block, lambda function: function])
def test_a_parameter_that_a_function_finds_around_it_is_reached(kind):
    weight = db.Parameter(np.eye(3), "weight")
    doubled = kind(lambda x: F.tanh(F.linear(x, weight)))
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones(3))
        graph.backward(F.sum(doubled(doubled(x)) + 0.0))
    assert weight.grad.any()
