import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.nodes.linear import LinearMap
from dynbatch.testing import check_batching

SHAPES = [[(3, 4)], [(0, 4)], [(1, 4)], [(5, 4)]]


class Elementwise(db.Node):
    """A node of one input whose forward and backward the subclasses give."""

    __slots__ = ()
    any_shape = True
    retains = db.Retain(inputs=True)

    def infer_shape(self, *shapes):
        return shapes[0]

    @classmethod
    def forward_batch(cls, batch, y, x):
        y.flat[...] = x.flat

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        dx.flat[...] = dy.flat


class LooksAtNeighbours(Elementwise):
    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch, y, x):
        y.flat[...] = x.flat - x.flat.sum()


class ForgetsTheLastElement(Elementwise):
    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch, y, x):
        y.flat[:-1] = x.flat[:-1]


class WorksInPlace(Elementwise):
    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch, y, x):
        x.flat[...] *= 2
        y.flat[...] = x.flat


class MixesGradients(Elementwise):
    __slots__ = ()

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        dx.flat[...] = dy.flat[::-1]


class BreaksOnEmptySentences(Elementwise):
    """`reduceat` misreads empty segments."""

    __slots__ = ()
    any_shape = False

    def infer_shape(self, *shapes):
        return (shapes[0][1],)

    @classmethod
    def forward_batch(cls, batch, y, x):
        starts = np.minimum(x.offsets[:-1], max(len(x.values) - 1, 0))
        if len(x.values):
            np.add.reduceat(x.values, starts, axis=0, out=y.values)
        else:
            y.values[...] = 0

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        dx.values[...] = np.repeat(dy.values, dx.lengths, axis=0)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (LooksAtNeighbours, "value, element"),
        (ForgetsTheLastElement, r"sentence 0, output 0, element \(2, 3\) is nan"),
        (WorksInPlace, "modified its input"),
        (MixesGradients, "gradient, element"),
        (BreaksOnEmptySentences, "sentence 1, output 0: value"),
    ],
)
def test_a_node_type_that_batches_wrongly_fails(kind, problem):
    with pytest.raises(AssertionError, match=problem):
        check_batching(lambda graph, x: kind(x), shapes=SHAPES)


def test_a_node_type_that_batches_rightly_passes():
    check_batching(lambda graph, x: Elementwise(x), shapes=SHAPES)


def test_the_message_names_run_sentence_element_and_both_numbers():
    with pytest.raises(AssertionError) as caught:
        check_batching(lambda graph, x: LooksAtNeighbours(x), shapes=[[(2, 1)], [(3, 1)]])
    message = str(caught.value)
    assert "the whole mini-batch, policy by_depth, values read before backward" in message
    assert "sentence 0, output 0: value, element (0, 0) of shape (2, 1)" in message
    assert " batched, " in message and " alone." in message


def test_examples_mix_arrays_and_ids():
    table = db.Parameter(np.random.default_rng(0).standard_normal((9, 4)).astype("f4"), "table")
    examples = [
        (np.ones((2, 4)), [1, 8]),
        (np.zeros((0, 4)), []),
        (np.full((1, 4), 3.0), [1]),
    ]
    check_batching(
        lambda graph, x, ids: x * F.lookup(graph, table, ids), examples, parameters=[table]
    )
    assert table.dtype == np.float32


def test_a_parameter_whose_gradient_is_lost_in_a_batch_fails(monkeypatch):
    weight = db.Parameter(np.ones((4, 4), np.float32), "weight")

    def forgetful(cls, batch, dy, dx):
        if dx is not None:
            dx.values[...] = dy.values @ batch.first.weight.value
        x = batch.input(0)
        batch.parameter_gradients().outer(weight, x[0], dy[0])  # the first sentence only

    monkeypatch.setattr(LinearMap, "backward_batch", classmethod(forgetful))
    with pytest.raises(AssertionError, match="parameter 'weight': gradient"):
        check_batching(lambda graph, x: F.linear(x, weight), shapes=SHAPES, parameters=[weight])


def test_single_arrays_need_no_tuple():
    check_batching(lambda graph, x: F.tanh(x), [np.ones((2, 3)), np.zeros((0, 3))])


def test_one_sentence_is_checked_without_a_batch_that_leaves_it_out():
    check_batching(lambda graph, x: F.tanh(x), [np.ones((2, 3))])


def test_inputs_for_which_the_function_is_infinite_are_refused():
    with pytest.raises(AssertionError, match=r"sentence 1, output 0, element \(0, 0\) is -inf"):
        check_batching(lambda graph, x: F.log(x), [np.ones((2, 3)), np.zeros((1, 3))])


def test_shapes_of_inputs_in_place_of_sentences_are_refused():
    with pytest.raises(TypeError, match=r"rule: for each sentence a list of the shapes"):
        check_batching(lambda graph, x: x, shapes=[(5, 4)])
