import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing import check_gradient, gradient


class Cube(db.Node):
    """x³, with the derivative that `slope` gives."""

    __slots__ = ("slope",)
    static = ("slope",)
    retains = db.Retain(inputs=True)
    any_shape = True

    def infer_shape(self, *shapes):
        return shapes[0]

    @classmethod
    def forward_batch(cls, batch, y, x):
        y.flat[...] = x.flat**3

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        batch.first.slope(batch.input(0).flat, dy.flat, dx.flat)


def right(x, dy, dx):
    dx[...] = 3 * x * x * dy


def without_dy(x, dy, dx):
    dx[...] = 3 * x * x


def adding(x, dy, dx):
    dx += 3 * x * x * dy


def last_element_wrong(x, dy, dx):
    dx[...] = 3 * x * x * dy
    dx[-1:] *= 1.001


def test_a_right_gradient_passes():
    check_gradient(lambda graph, x: Cube(x, slope=right), shapes=[(5, 3)])
    check_gradient(lambda graph, x: Cube(x, slope=right), shapes=[()])
    check_gradient(lambda graph, x: Cube(x, slope=right), shapes=[(0, 3)])


@pytest.mark.parametrize("slope", [without_dy, adding, last_element_wrong])
def test_a_wrong_gradient_fails(slope):
    with pytest.raises(AssertionError, match=r"input 0 of shape \(5, 3\), element"):
        check_gradient(lambda graph, x: Cube(x, slope=slope), shapes=[(5, 3)])


def test_the_message_names_array_element_and_both_numbers():
    with pytest.raises(AssertionError) as caught:
        check_gradient(
            lambda graph, a, b: a + Cube(b, slope=last_element_wrong),
            inputs=[np.ones((2, 2)), np.full((2, 2), 2.0)],
        )
    message = str(caught.value)
    assert "input 1 of shape (2, 2), element (1, 1): backward gives " in message
    given, expected = (
        float(part.split(",")[0].split(".\n")[0])
        for part in (message.split("backward gives ")[1], message.split("differences ")[1])
    )
    assert given == pytest.approx(1.001 * expected, rel=1e-6)
    assert "1 of 4 elements checked differ" in message


def test_gradients_of_parameters_are_checked_in_float64_and_given_back():
    weight = db.Parameter(np.ones((3, 4), np.float32), "weight")
    weight.grad = gradient = np.full((3, 4), 7, np.float32)
    value = weight.value
    check_gradient(
        lambda graph, x: F.linear(x, weight), shapes=[(2, 4)], parameters=[weight, weight]
    )
    assert weight.value is value and weight.grad is gradient
    assert (value == 1).all() and (gradient == 7).all()


def test_a_wrong_gradient_of_a_parameter_fails_with_its_name(monkeypatch):
    from dynbatch.batcher.steps.parameter_gradients import StepGradients

    weight = db.Parameter(np.ones((3, 4), np.float32), "weight")
    add = StepGradients.outer
    monkeypatch.setattr(StepGradients, "outer", lambda self, p, x, dy: add(self, p, x, dy * 1.01))
    with pytest.raises(AssertionError, match="parameter 'weight'"):
        check_gradient(lambda graph, x: F.linear(x, weight), shapes=[(2, 4)], parameters=[weight])
    assert weight.dtype == np.float32


def test_a_module_may_be_given_for_its_parameters():
    linear = db.models.Linear(4, 3)
    check_gradient(lambda graph, x: linear(x), shapes=[(2, 4)], parameters=linear)


def test_frozen_parameters_are_left_out():
    weight = db.Parameter(np.ones((3, 4), np.float32))
    weight.frozen = True
    check_gradient(lambda graph, x: F.linear(x, weight), shapes=[(2, 4)], parameters=[weight])


def test_several_outputs_and_an_input_without_effect():
    check_gradient(lambda graph, a, b: [F.tanh(a), a * a], shapes=[(2, 3), (4,)])


def test_dropout_keeps_its_mask_while_elements_vary():
    check_gradient(lambda graph, x: F.dropout(x, 0.5), shapes=[(6, 5)])


def test_outputs_that_are_not_finite_are_refused():
    with pytest.raises(AssertionError, match=r"output 0, element \(1,\) is nan"):
        check_gradient(lambda graph, x: F.log(x), inputs=[np.array([1.0, -1.0])])


def test_large_arrays_are_sampled():
    check_gradient(lambda graph, x: F.tanh(x), shapes=[(100, 100)], most=3)
    with pytest.raises(AssertionError, match="3 of 3 elements checked"):
        check_gradient(lambda graph, x: Cube(x, slope=without_dy), shapes=[(100, 100)], most=3)


@pytest.fixture
def graphs(monkeypatch):
    """The number of graphs that a check has made."""
    made = []
    monkeypatch.setattr(
        gradient, "Graph", lambda *_, **options: made.append(0) or db.Graph(**options)
    )
    return made


def test_one_graph_serves_all_differences(graphs):
    weight = db.Parameter(np.ones((3, 4), np.float32))
    check_gradient(lambda graph, x: F.linear(x, weight), shapes=[(2, 4)], parameters=[weight])
    assert len(graphs) == 4  # for finite values, for backward, for all losses, and to compare them


@pytest.mark.parametrize(
    ("build", "compared"),
    [
        (lambda graph, x: x * float(x.value[0]), 0),  # its graph runs in two parts
        (lambda graph, x: x * float(x.array[0]), 1),
        (lambda graph, x: F.input(graph, x.array * 2.0) * x, 1),
    ],
    ids=["a value", "a number of an array", "an array"],
)
def test_what_is_made_of_numbers_is_made_anew_for_each_difference(build, compared, graphs):
    """Its gradient lacks what flows through these numbers, and the differences have it."""
    with pytest.raises(AssertionError, match="input 0 of shape"):
        check_gradient(build, inputs=[np.array([2.0, 3.0])])
    assert len(graphs) == 3 + compared + 2 * 2


def test_a_parameter_that_is_read_as_numbers_is_wrong_too(graphs):
    weight = db.Parameter(np.ones((3, 4)), "weight")
    with pytest.raises(AssertionError, match="parameter 'weight'"):
        check_gradient(
            lambda graph, x: F.linear(x, weight) * float(weight.value.sum()),
            shapes=[(2, 4)], parameters=[weight],
        )  # fmt: skip
