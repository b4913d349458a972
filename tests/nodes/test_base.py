import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, EmptyBatchError
from dynbatch.nodes.arithmetic import Add
from dynbatch.nodes.base import as_ids, signature_type
from dynbatch.nodes.elementwise import Tanh
from dynbatch.nodes.linear import LinearMap


def signatures(*builds):
    with db.Graph() as graph:
        return [build(graph).sig for build in builds]


def matrix(graph, length, width=4):
    return F.input(graph, np.zeros((length, width)))


def weight(*shape):
    return db.Parameter(np.zeros(shape, np.float32))


# The signature ------------------------------------------------------------------------------------


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


# Operators ----------------------------------------------------------------------------------------


def test_operators_with_numbers_on_either_side():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0, 4.0])
        for node, expected in (
            (x + 1, [2, 3, 5]),
            (1 + x, [2, 3, 5]),
            (x - 1, [0, 1, 3]),
            (1 - x, [0, -1, -3]),
            (x * 2, [2, 4, 8]),
            (2 * x, [2, 4, 8]),
            (x / 2, [0.5, 1, 2]),
            (2 / x, [2, 1, 0.5]),
            (-x, [-1, -2, -4]),
            (x**2, [1, 4, 16]),
            (np.float32(3) * x, [3, 6, 12]),
            (x + np.array(1), [2, 3, 5]),
        ):
            assert node.value.tolist() == expected


def test_an_array_is_not_broadcast_over_nodes():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        with pytest.raises(DtypeError, match="a node or a number expected"):
            _ = np.ones(2) * x


def test_indexing_and_length():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        assert (len(x), len(x[0])) == (3, 2)
        assert x[1].value.tolist() == [3, 4]
        assert x[-1:].value.tolist() == [[5, 6]]
        assert x[0][1].value == 2


# Errors and names ---------------------------------------------------------------------------------


def test_a_node_without_inputs_needs_a_graph():
    with pytest.raises(EmptyBatchError, match="no graph was given"):
        Tanh()


def test_a_node_says_what_it_is():
    with db.Graph() as graph:
        assert repr(F.tanh(matrix(graph, 3))) == "Tanh #1 (3, 4)"


def test_what_a_subclass_must_define_is_named():
    class Nothing(db.Node):
        __slots__ = ()

        def infer_shape(self, *shapes):
            return shapes[0]

    with db.Graph() as graph, pytest.raises(NotImplementedError, match=r"Nothing\.forward"):
        _ = Nothing(matrix(graph, 1)).value


def test_ids_are_copied_to_int64():
    ids = np.array([1, 2], np.uint8)
    array = as_ids("test", ids)
    ids[0] = 9
    assert array.dtype == np.int64 and array.tolist() == [1, 2]
    assert as_ids("test", []).dtype == np.int64
    assert as_ids("test", range(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("ids", [[0.5], [[1]], 3, [True], ["a"], [None]])
def test_other_ids_raise(ids):
    with pytest.raises(db.errors.ShapeError, match="one-dimensional sequence of integers"):
        as_ids("test", ids)


@pytest.mark.parametrize("kind", [Tanh, Add, LinearMap])
def test_a_type_of_the_users_own_may_compute_with_arrays_whatever_it_derives_from(kind):
    """On a GPU all before it is started first: nothing says that it calls kernels only."""
    own = type("Own", (kind,), {"__slots__": (), "__module__": __name__})
    assert kind.names_kernels and not own.names_kernels


# The hooks of a node type -------------------------------------------------------------------------


def test_hooks_by_their_older_names_are_taken_and_free_the_name():
    class Twice(db.Node):
        __slots__ = ()
        any_shape = True
        inplace_forward = True

        def infer_shape(self, *shapes):
            return shapes[0]

        @classmethod
        def forward(cls, batch, y, x):
            np.multiply(x.flat, 2, out=y.flat)

        @classmethod
        def backward(cls, batch, dy, dx):
            np.multiply(dy.flat, 2, out=dx.flat)

    assert "backward" not in Twice.__dict__ and "forward" not in Twice.__dict__
    assert Twice.inplace_forward
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        graph.backward(F.sum(Twice(x)))
        assert x.gradient.tolist() == [2.0, 2.0]
