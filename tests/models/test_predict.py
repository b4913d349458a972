"""`db.predict`: values of many examples, mini-batch by mini-batch."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.kernels.runtime.precision import round_to


class Mean(models.Module):
    """The mean of the words' vectors, after dropout."""

    def __init__(self):
        self.embed = models.Embedding(10, 4, rng=0)
        self.dropout = models.Dropout(0.5)
        self.graphs = []

    def vector(self, graph, ids):
        if graph not in self.graphs:
            self.graphs.append(graph)
        return F.mean(self.dropout(self.embed(graph, ids)), dim=0)


EXAMPLES = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1], [2]]


@pytest.mark.parametrize(("batch_size", "graphs"), [(1, 5), (2, 3), (5, 1), (64, 1)])
def test_each_example_has_its_value_in_order_whatever_the_mini_batches(batch_size, graphs):
    model = Mean()
    found = db.predict(model, model.vector, iter(EXAMPLES), batch_size=batch_size)
    wanted = [model.embed.weight.value[ids].mean(axis=0) for ids in EXAMPLES]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert len(model.graphs) == graphs and not model.graphs[0].grad


def test_the_model_is_in_evaluation_mode_meanwhile_also_after_an_error():
    model = Mean()
    modes = []

    def vector(graph, ids):
        modes.append(model.training)
        return model.vector(graph, ids)

    db.predict(model, vector, EXAMPLES)
    assert modes == [False] * 5 and model.training and model.dropout.training
    with pytest.raises(Exception, match="10"):
        db.predict(model, vector, [[1], [11]])
    assert model.training
    model.eval()
    db.predict(model, vector, EXAMPLES)
    assert not model.training


def test_factors_and_values_are_rounded_as_in_such_a_graph():
    project, x = models.Linear(3, 2, rng=0), np.ones((2, 3), np.float32)
    for settings in ({}, {"matmul": "bfloat16"}, {"precision": "bfloat16"}):
        with db.Graph(**settings) as graph:
            expected = project(F.input(graph, x)).value
        (found,) = db.predict(project, lambda graph, x: project(F.input(graph, x)), [x], **settings)
        np.testing.assert_array_equal(found, expected)
        assert (round_to(found, "bfloat16") == found).all() == ("precision" in settings)
    with pytest.raises(ArgumentError, match="half"):
        db.predict(project, lambda graph, x: project(F.input(graph, x)), [x], matmul="half")


def test_values_have_the_models_dtype():
    model = Mean().astype("float64")
    assert db.predict(model, model.vector, EXAMPLES)[0].dtype == np.float64


def test_a_model_without_parameters_and_no_examples_at_all():
    class Double(models.Module):
        def __call__(self, graph, x):
            return F.input(graph, x) * 2.0

    model = Double()
    assert db.predict(model, model, [[1.0], [2.0, 3.0]])[1].tolist() == [4.0, 6.0]
    assert db.predict(model, model, []) == []


def test_wrong_arguments_are_errors_with_a_fix():
    model = Mean()
    with pytest.raises(ArgumentError, match=r"a function, function\(graph, example\)"):
        db.predict(model, lambda graph: None, EXAMPLES)
    with pytest.raises(ArgumentError, match="give a list of examples"):
        db.predict(model, model.vector, 3)
    with pytest.raises(ArgumentError, match="batch_size is 0"):
        db.predict(model, model.vector, EXAMPLES, batch_size=0)


class Scaled(models.Module):
    """A linear map after a scale that was made of NumPy's numbers, which are float64."""

    def __init__(self):
        self.scale = db.Parameter(np.ones(3))
        self.linear = models.Linear(3, 2)

    def output(self, graph, x):
        return self.linear(F.input(graph, x) * self.scale)


def test_a_model_that_no_graph_has_read_is_predicted_in_the_dtype_in_which_it_is_trained():
    model = Scaled()
    (value,) = db.predict(model, model.output, [np.ones((2, 3))])
    with db.Graph() as graph:
        graph.backward(F.sum(model.output(graph, np.ones((2, 3)))))
    assert value.dtype == model.linear.weight.grad.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_model_is_predicted_in_the_dtype_that_it_keeps(dtype):
    model = Scaled()
    with db.Graph(dtype=dtype) as graph:
        _ = model.linear(F.input(graph, np.ones((2, 3)))).value  # the scale is not read
    assert db.predict(model, model.output, [np.ones((2, 3))])[0].dtype == dtype
