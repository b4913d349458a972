"""Reasons that kept batches of one node type apart, in `explain()`."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.nodes.signature import intern_signature
from dynbatch.reporting.reasons import apart
from dynbatch.reporting.run_record import record_of


def found(graph, kind):
    """(batches, apart from, reason) of a node type, in words."""
    record = record_of(graph._executor, 0.0)
    return [tuple(pair[1:]) for pair in apart(record) if pair.node_type == kind]


def reasons(build, kind, **options):
    with db.Graph(**options) as graph:
        build(graph)
        graph.forward()
    return [reason for _, _, reason in found(graph, kind)]


def parameter(name, *shape):
    return db.Parameter(np.ones(shape, "float32"), name=name)


def test_parameters_are_named():
    a, b = parameter("a.weight", 3, 2), parameter("b.weight", 3, 2)
    bias = parameter("a.bias", 3)

    def build(graph):
        x = F.input(graph, [1.0, 2.0])
        F.linear(x, a), F.linear(x, b), F.linear(x, a, bias)

    assert reasons(build, "LinearMap") == [
        "parameter differs: 'a.weight' / 'b.weight'",
        "parameter differs: none / 'a.bias'",
        "parameter differs: 'b.weight' / 'a.weight'",
    ]


def test_parameters_without_names_of_their_own_are_told_by_shape_or_number():
    same = [parameter("weight", 3, 2), parameter("weight", 3, 2)]
    unnamed = [db.Parameter(np.ones(shape, "float32")) for shape in ((3, 2), (4, 2))]

    def build(graph):
        x = F.input(graph, [1.0, 2.0])
        for p in (*same, *unnamed):
            F.linear(x, p)

    texts = reasons(build, "LinearMap")
    assert texts[0] == "parameter differs: two called 'weight'"
    assert texts[-1] == (
        "parameter differs: unnamed (3, 2) / unnamed (4, 2), widths differ: 2 → 3 / 2 → 4"
    )


def test_static_attributes_are_given_with_both_values():
    def build(graph):
        x = F.input(graph, [1.0, 2.0])
        F.elu(x, 0.1), F.elu(x, 0.3)

    assert reasons(build, "Elu") == ["static attribute alpha differs: 0.1 / 0.3"]


def test_widths():
    def build(graph):
        F.layer_norm(F.input(graph, [[1.0, 2.0]]))
        F.layer_norm(F.input(graph, [[1.0, 2.0, 3.0]]))

    assert reasons(build, "LayerNormalization") == ["widths differ: 2 → 2 / 3 → 3"]


def test_a_chain_depends_on_itself():
    def build(graph):
        x = F.input(graph, [1.0])
        for _ in range(3):
            x = F.tanh(x)

    assert reasons(build, "Tanh") == ["depends on each other"]
    with db.Graph() as graph:
        build(graph)
        graph.forward()
    ((first, second, _),) = found(graph, "Tanh")
    assert (first, second) == ((1, 2, 3), ())


@pytest.mark.parametrize("policy", ["by_depth", "one_by_one"])
def test_what_could_have_run_together_is_the_policys(policy):
    def build(graph):
        a, b = F.input(graph, [1.0]), F.input(graph, [2.0])
        F.tanh(a), F.tanh(F.exp(b))

    assert reasons(build, "Tanh", policy=policy) == [f"kept apart by the policy {policy}"]


def test_a_descendant_through_other_kinds_depends():
    def build(graph):
        F.tanh(F.exp(F.tanh(F.input(graph, [1.0]))))

    assert reasons(build, "Tanh") == ["depends on each other"]


def test_a_value_read_in_between_ends_a_run():
    with db.Graph() as graph:
        for number in (1.0, 2.0):
            _ = F.tanh(F.input(graph, [number])).value
    assert [reason for _, _, reason in found(graph, "Tanh")] == [
        "an earlier run: a value was read in between"
    ]


def test_scans_are_told_apart_by_the_parameters_of_their_cells():
    class Weights:
        def __init__(self, name):
            self.U = parameter(name, 1, 1)

    @db.cell
    def cell(x, h, p):
        h = F.tanh(x + F.linear(h, p.U))
        return h, h

    one, other = Weights("one.U"), Weights("other.U")
    with db.Graph() as graph:
        xs = F.input(graph, [[1.0], [2.0]])
        for weights in (one, other):
            db.scan(cell, xs, init=1, params=weights)
        graph.forward()
    assert [reason for _, _, reason in found(graph, "Scan")] == [
        "parameter differs: 'one.U' / 'other.U'"
    ]


def test_a_signature_of_ones_own_is_compared_part_by_part():
    class Bucketed(db.Node):
        __slots__ = ()

        def infer_shape(self, shape):
            return shape

        def signature(self):
            return intern_signature((Bucketed, self.inputs[0].rows > 1))

        @classmethod
        def forward_batch(cls, batch, y, x):
            y.flat[...] = x.flat

    def build(graph):
        for length in (1, 2):
            Bucketed(F.input(graph, [[1.0]] * length))

    assert reasons(build, "Bucketed") == ["part of the signature differs: False / True"]


def test_many_signatures_are_compared_with_the_next_three_only():
    def build(graph):
        x = F.input(graph, [1.0])
        for k in range(50):
            F.elu(x, 0.1 + k)

    assert len(reasons(build, "Elu")) == 47 * 3 + 2 + 1


def test_the_reasons_stay_when_graph_and_parameters_are_gone():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        for name in ("a", "b"):
            F.linear(x, parameter(name, 1, 2))
        graph.forward()
        inside = graph.explain()
    assert "parameter differs: 'a' / 'b'" in inside
    assert graph.explain() == inside


def test_batches_that_could_not_be_more_have_no_reason():
    with db.Graph() as graph:
        for length in (1, 4):
            F.tanh(F.input(graph, [[1.0]] * length))
        graph.forward()
    record = record_of(graph._executor, 0.0)
    assert apart(record) == []


# Calls of cells ----------------------------------------------------------------------------------


@db.cell
def step(x, h):
    return F.tanh(x + h)


@db.cell
def apart_from_it(x):
    return F.sigmoid(x)


def calls(graph, build):
    for k in range(3):
        build(F.input(graph, [0.1 * k, 1.0]))
    graph.forward()
    return " ".join(graph.explain().split())


def test_ordinary_nodes_between_calls_cost_a_phase():
    with db.Graph() as graph:
        told = calls(graph, lambda x: step(F.exp(step(step(x, 2), x)), x))
        assert "1 calls of step 6 6 2" in told
        assert "1 inside: 2 batches (lower bound 2)" in told
        assert "3 inside: 1 batch (lower bound 1)" in told
        assert "1 / 3: ordinary nodes between calls: phase 1 / 2" in told


def test_regions_of_other_cells_and_of_earlier_runs():
    with db.Graph() as graph:
        told = calls(graph, lambda x: (step(x, 2), apart_from_it(x)))
        assert "other cells, which do not read each other" in told
        later = calls(graph, lambda x: step(x, x))
        assert "an earlier run: a value was read in between" in later


def test_calls_with_other_parameters_are_told_by_them():
    @db.cell
    def linear(x, p):
        return F.linear(x, p)

    weights = [db.Parameter(np.ones((2, 2), "float32"), name) for name in ("a", "b")]
    with db.Graph() as graph:
        told = calls(graph, lambda x: [linear(x, weight) for weight in weights])
        assert "parameter differs: 'a' / 'b'" in told
