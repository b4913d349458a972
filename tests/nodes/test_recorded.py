import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.nodes.elementwise import Tanh


def parameter(*shape):
    return db.Parameter(np.ones(shape, np.float32))


W, B, SCALE = parameter(3, 4), parameter(3), parameter(4)
MAPS = {
    "linear": lambda x: F.linear(x, W, B),
    "layer_norm": lambda x: F.layer_norm(x, SCALE, None, 1e-3),
    "gelu": F.gelu,
    "clip": lambda x: F.clip(x, 0, 1),
    "scale": lambda x: x * 3.0,
    "add": lambda x: x + x,
    "softmax": F.softmax,
    "softmax of tokens": lambda x: F.softmax(x, dim=0),
    "dropout": lambda x: F.dropout(x, 0.5),
}


def facts(node):
    return node.shape, node.ndim, node.rows, node.width, node.ragged, node.sig


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS)
def test_a_node_like_an_earlier_one_is_what_it_would_be_alone(make):
    def inputs(graph):
        matrices = [F.input(graph, np.ones((rows, 4))) for rows in (2, 0, 5)]
        keys = F.input(graph, np.ones((4, 4)))
        return [*matrices, F.input(graph, np.ones(4)), matrices[0] @ F.transpose(keys)]

    assert make(inputs(db.Graph())[0])._traits.keeps_rows
    alone = [facts(make(inputs(db.Graph())[k])) for k in range(5)]
    graph = db.Graph()
    assert [facts(make(x)) for _ in range(2) for x in inputs(graph)] == alone * 2


def test_an_input_that_does_not_fit_is_refused_after_one_that_does():
    graph = db.Graph()
    F.linear(F.input(graph, np.ones((2, 4))), W)
    for wrong in (np.ones((2, 3)), np.ones(3), np.ones(())):
        with pytest.raises(ShapeError, match="input features and weight differ"):
            F.linear(F.input(graph, wrong), W)
    one = parameter(2, 1)
    assert F.linear(F.input(graph, [1.0]), one).shape == (2,)
    with pytest.raises(ShapeError, match="input features and weight differ"):
        F.linear(F.input(graph, 1.0), one)  # as wide as the vector, but a scalar


def test_a_subclass_with_a_shape_rule_of_its_own_is_asked_for_every_node():
    class Halved(Tanh):
        __slots__ = ()

        def infer_shape(self, *shapes):
            return (shapes[0][0] // 2, shapes[0][1])

    assert Tanh.keeps_rows and not Halved.keeps_rows
    graph = db.Graph()
    assert [Halved(F.input(graph, np.ones((n, 4)))).rows for n in (2, 4, 9)] == [1, 2, 4]
