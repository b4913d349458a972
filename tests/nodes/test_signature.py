import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.nodes.operation import signature_type
from dynbatch.nodes.unary.node_types import Tanh


def signatures(*builds):
    with db.Graph() as graph:
        return [build(graph).sig for build in builds]


def matrix(graph, length, width=4):
    return F.input(graph, np.zeros((length, width)))


def weight(*shape):
    return db.Parameter(np.zeros(shape, np.float32))


def test_lengths_do_not_enter_the_signature():
    a, b = signatures(lambda g: F.softmax(matrix(g, 3)), lambda g: F.softmax(matrix(g, 0)))
    assert a == b


def test_elementwise_nodes_batch_at_any_size():
    a, b = signatures(lambda g: F.tanh(matrix(g, 3, 4)), lambda g: F.tanh(F.input(g, 1.0)))
    assert a == b
    assert signature_type(a) is Tanh


def test_widths_enter_the_signature_of_other_nodes():
    w = weight(2, 4)
    a, b = signatures(lambda g: F.linear(matrix(g, 3), w), lambda g: F.layer_norm(matrix(g, 3, 5)))
    c, d = signatures(
        lambda g: F.layer_norm(matrix(g, 3, 5)), lambda g: F.layer_norm(matrix(g, 3, 6))
    )
    assert len({a, b, d}) == 3 and b == c


def test_parameters_enter_by_identity():
    one, same, other = weight(2, 4), weight(2, 4), weight(2, 4)
    a, b, c = signatures(
        lambda g: F.linear(matrix(g, 3), one),
        lambda g: F.linear(matrix(g, 1), one),
        lambda g: F.linear(matrix(g, 3), same),
    )
    assert a == b != c
    with_bias, without = signatures(
        lambda g: F.linear(matrix(g, 3), other, weight(2)),
        lambda g: F.linear(matrix(g, 3), other),
    )
    assert with_bias != without


def test_static_attributes_enter_and_numbers_of_single_nodes_do_not():
    a, b = signatures(lambda g: F.clip(matrix(g, 1), 0, 1), lambda g: F.clip(matrix(g, 1), 0, 2))
    assert a != b
    a, b = signatures(lambda g: matrix(g, 1) * 2, lambda g: matrix(g, 1) * 3)
    assert a == b


def test_signatures_are_the_same_in_every_graph():
    assert signatures(lambda g: F.tanh(matrix(g, 1))) == signatures(lambda g: F.tanh(matrix(g, 2)))


def test_a_signature_that_the_graph_knows_is_the_one_that_another_graph_derives():
    """A graph looks signatures up; whatever tells two of them apart is part of what it looks up."""
    w, u, bias = weight(4, 4), weight(4, 4), weight(4)
    builds = [
        lambda g: F.linear(matrix(g, 3), w),
        lambda g: F.linear(matrix(g, 3), u),
        lambda g: F.linear(matrix(g, 3), w, bias),
        lambda g: F.sum(matrix(g, 3), dim=0),
        lambda g: F.sum(matrix(g, 3), dim=-1),
        lambda g: F.sum(matrix(g, 3, 5), dim=0),
        lambda g: F.softmax(matrix(g, 3) @ F.transpose(matrix(g, 5))),
        lambda g: F.softmax(matrix(g, 3, 5)),
        lambda g: matrix(g, 2, 3) @ matrix(g, 3, 5),
        lambda g: F.concat([matrix(g, 3)]),
        lambda g: F.concat([matrix(g, 3)] * 3),
        lambda g: F.parameter(g, bias),
    ]
    apart = [signatures(build)[0] for build in builds]
    assert signatures(*builds, *reversed(builds)) == apart + apart[::-1]
    assert len(set(apart)) == len(builds) - 1  # any number of inputs may be joined at once
