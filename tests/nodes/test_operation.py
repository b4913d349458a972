from abc import ABC, abstractmethod

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import EmptyBatchError
from dynbatch.nodes.arithmetic import Add
from dynbatch.nodes.linear import LinearMap
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.unary.node_types import Tanh


def matrix(graph, length, width=4):
    return F.input(graph, np.zeros((length, width)))


def test_a_node_without_inputs_needs_a_graph():
    with pytest.raises(EmptyBatchError, match="no graph was given"):
        Tanh()


def test_what_a_subclass_must_define_is_named():
    class Nothing(db.Operation):
        __slots__ = ()

        def infer_shape(self, *shapes):
            return shapes[0]

    with db.Graph() as graph, pytest.raises(NotImplementedError, match=r"Nothing\.forward"):
        _ = Nothing(matrix(graph, 1)).value


@pytest.mark.parametrize("kind", [Tanh, Add, LinearMap])
def test_a_type_of_the_users_own_may_compute_with_arrays_whatever_it_derives_from(kind):
    """On a GPU all before it is started first: nothing says that it calls kernels only."""
    own = type("Own", (kind,), {"__slots__": (), "__module__": __name__})
    assert kind.names_kernels and not own.names_kernels


def test_hooks_by_their_older_names_are_taken_and_free_the_name():
    class Twice(db.Operation):
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


def test_a_type_written_on_node_is_an_operation():
    class Base(db.Node):
        """A base of a user's types, without kernels of its own."""

        __slots__ = ("factor",)

        def infer_shape(self, *shapes):
            return super().infer_shape(*shapes) if not shapes else shapes[0]

    class Scaled(Base):
        __slots__ = ()

        @classmethod
        def forward_batch(cls, batch, y, x):
            np.multiply(x.values, batch.array("factor")[0], out=y.values)

    assert issubclass(Scaled, db.Operation) and issubclass(Base, db.Operation)
    with db.Graph() as graph:
        assert Scaled(F.input(graph, [1.0, 2.0]), factor=3.0).value.tolist() == [3.0, 6.0]


def test_what_a_type_overrides_is_known_of_its_class():
    class Saving(db.Operation):
        __slots__ = ()

        @classmethod
        def saved(cls, batch):
            return {"all": (1, 1)}

    class Inheriting(Saving):
        __slots__ = ()

    for node_type in (Saving, Inheriting):
        assert node_type.saves and node_type.reads_values() and node_type.splits
    assert not (LinearMap.saves or Add.saves or Add.reads_values()) and LinearMap.reads_values()


def test_attributes_are_those_that_the_type_adds_to_a_node():
    class Scaled(db.Operation):
        def infer_shape(self, x):
            return x

    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        node = Scaled(x, factor=2.0)
        assert node.attributes() == {"factor": 2.0}
        assert node.rebuild(x).factor == 2.0
        assert list((x * 2.0).attributes()) == ["number"]


def test_a_type_of_ones_own_mixes_in_abstract_methods():
    class Doubled(Operation, ABC):
        shape_rule = "x (…) -> (…)"

        @abstractmethod
        def description(self):
            pass

    class Named(Doubled):
        def description(self):
            return "twice x"

    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        assert Named(x).description() == "twice x"
        with pytest.raises(TypeError, match="abstract method"):
            Doubled(x)


def test_node_types_have_no_metaclass_which_would_slow_down_isinstance():
    assert type(Operation) is type


def test_attributes_of_our_types_lie_in_slots():
    types, waiting = [], [Operation]
    while waiting:
        types += waiting[-1].__subclasses__()
        waiting += waiting.pop().__subclasses__()
    assert len(types) > 100
    assert [each for each in types if each.is_built_in and each.__dictoffset__] == []
