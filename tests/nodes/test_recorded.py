import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.nodes.unary.node_types import Tanh


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
    for wrong, problem in ((np.ones((2, 3)), "I"), (np.ones(3), "I"), (np.ones(()), "x has shape")):
        with pytest.raises(ShapeError, match=problem):
            F.linear(F.input(graph, wrong), W)
    one = parameter(2, 1)
    assert F.linear(F.input(graph, [1.0]), one).shape == (2,)
    with pytest.raises(ShapeError, match="x has shape"):
        F.linear(F.input(graph, 1.0), one)  # as wide as the vector, but a scalar


def test_a_subclass_with_a_shape_rule_of_its_own_is_asked_for_every_node():
    class Halved(Tanh):
        __slots__ = ()

        def infer_shape(self, *shapes):
            return (shapes[0][0] // 2, shapes[0][1])

    assert Tanh.keeps_rows and not Halved.keeps_rows
    graph = db.Graph()
    assert [Halved(F.input(graph, np.ones((n, 4)))).rows for n in (2, 4, 9)] == [1, 2, 4]


@db.cell
def summed(x, total, p):
    total = F.tanh(total + F.linear(x, p))
    return total, total


TABLE, RECURRENT = parameter(9, 4), parameter(4, 4)
KNOWN = {
    "lookup": (lambda x: F.lookup(x.graph, TABLE, [1] * x.rows), "table ids"),
    "concat": (lambda x: F.concat([x, x]), "along"),
    "cross_entropy": (lambda x: F.cross_entropy(x, [1] * x.rows), "rule smoothing by_class"),
    "scan": (lambda x: db.scan(summed, x, 4, RECURRENT)[0], "cell uid reverse given_states length"),
    "last state": (lambda x: db.scan(summed, x, 4, RECURRENT)[1], "part"),
}


@pytest.mark.parametrize("make, attributes", KNOWN.values(), ids=KNOWN)
def test_a_node_of_a_known_signature_is_what_its_type_makes(make, attributes):
    def seen(node):
        own = [getattr(node, name) for name in attributes.split()]
        again = node.rebuild(*node.inputs) if node.inputs else type(node)(
            graph=node.graph, **node.attributes()
        )  # fmt: skip
        assert facts(again) == facts(node)
        return facts(node), [v.tolist() if isinstance(v, np.ndarray) else v for v in own]

    def inputs(graph):
        return [F.input(graph, np.ones((rows, 4))) for rows in (2, 0, 5)]

    alone = [seen(make(inputs(db.Graph())[k])) for k in range(3)]
    graph = db.Graph()
    assert [seen(make(x)) for _ in range(2) for x in inputs(graph)] == alone * 2


def test_what_does_not_fit_is_refused_after_what_does():
    graph = db.Graph()
    x = F.input(graph, np.ones((2, 4)))
    F.concat([x, x])
    F.lookup(graph, TABLE, [1])
    db.scan(summed, x, 4, RECURRENT)
    with pytest.raises(db.errors.GraphError, match="different graphs"):
        F.concat([x, F.input(db.Graph(), np.ones((2, 4)))])
    with pytest.raises(ShapeError, match="equal numbers of tokens"):
        F.concat([x, F.input(graph, np.ones((3, 4)))])
    with pytest.raises(db.errors.DtypeError, match="not an integer"):
        F.concat([x, x], dim=-1.0)
    for wrong in (-1, 9, np.iinfo(np.int64).min, np.iinfo(np.int64).max):
        with pytest.raises(db.errors.VocabularyError, match="outside the table"):
            F.lookup(graph, TABLE, np.array([0, wrong, 0]))
    with pytest.raises(ShapeError, match="not an initial state"):
        db.scan(summed, x, 4.0, RECURRENT)
    with pytest.raises(db.errors.GraphError, match="different graphs"):
        db.scan(summed, x, F.input(db.Graph(), np.ones(4)), RECURRENT)


def test_a_parameter_of_another_dtype_is_refused_where_its_signature_is_known():
    weight, graph = parameter(3, 4), db.Graph()
    x = F.input(graph, np.ones((2, 4)))
    F.linear(x, weight)
    weight.replace(weight.value.astype(np.float64))
    with pytest.raises(db.errors.DtypeError, match="is float64, the graph float32"):
        F.linear(x, weight)


def test_a_type_keeps_the_init_of_its_bases():
    class Numbered(Tanh):
        def __init__(self, x, number):
            super().__init__(x)
            self.number = number

    class Both(Tanh):
        pass

    class Mixed(Both, Numbered):
        pass

    x = F.input(db.Graph(), np.ones((2, 4)))
    assert [Numbered(x, 3).number, Mixed(x, 4).number, Both(x).shape] == [3, 4, (2, 4)]


def test_a_subclass_of_a_type_with_a_rule_is_asked_of_its_arrays():
    class Ruled(db.Operation):
        __slots__ = ()
        shape_rule = "x (…) -> (…)"

    class Picky(Ruled):
        __slots__ = ()

        def check_given(self, values, rows):
            asked.append(rows)

    class Check:
        __slots__ = ()
        check_given = Picky.check_given

    class Mixed(Check, Ruled):
        __slots__ = ()

    graph, asked = db.Graph(), []
    Ruled(F.input(graph, np.ones((2, 4))))  # compiles the rule of the base
    for kind in (Picky, Mixed):
        for shape in ((3, 4), (4,), (), (2, 5, 4)):
            kind(F.input(graph, np.ones(shape)))
    assert asked == [(3, 3), (1, 1), (1, 1), (10, 10)] * 2


def test_a_rule_is_read_anew_for_the_attributes_of_a_subclass():
    class Kept(db.Operation):
        __slots__ = ("width",)
        static = ("width",)
        shape_rule = "x (…, D) -> (…, width)"

    class Loose(Kept):
        __slots__ = ()
        static = ()

    class Fixed(Tanh):
        __slots__ = ()
        shape_rule = "x (…, D) -> (…, D)"

    class Told(Fixed):
        __slots__ = ("D",)

    graph = db.Graph()
    x = F.input(graph, np.ones((2, 4)))
    assert Kept.keeps_rows and not Loose.keeps_rows
    assert [Loose(x, width=width).shape for width in (2, 3)] == [(2, 2), (2, 3)]
    assert Fixed.keeps_rows and not Told.keeps_rows and Told(x, D=4).shape == (2, 4)
    with pytest.raises(ShapeError, match=r"x \(2, 4\): 4 is not D"):
        Told(x, D=5)


def test_what_a_base_writes_beside_its_rule_stays_in_subclasses():
    class Written(db.Operation):
        __slots__ = ()
        shape_rule = "x (T, D) -> (T, D)"
        any_rank = True

        def infer_shape(self, x):
            return (*x[:-1], 7)

    class Checked(Written):
        __slots__ = ()

        def check_shape(self, x):
            pass

    class Named(Tanh):
        __slots__ = ()

        def signature(self):
            return super().signature()

    class Below(Named):
        __slots__ = ()

    x = F.input(db.Graph(), np.ones((2, 3, 4)))
    assert Checked(x).shape == (2, 3, 7) and not Checked.keeps_rows
    assert Tanh.keeps_rows and not Below.keeps_rows

    class Anew(Written):
        """A rule of its own takes the place of all that stood beside the base's."""

        __slots__ = ()
        shape_rule = "x (T, D) -> (D, T)"

    assert Anew(x[0]).shape == (4, 3)
