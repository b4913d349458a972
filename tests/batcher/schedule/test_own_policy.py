"""`Graph(policy=function)`: a policy of the user's, for nodes and for calls of cells."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.policies import POLICIES, by_agenda
from dynbatch.errors import ArgumentError, GraphError, PlanError
from dynbatch.testing import check_policies, load_graph, replay
from dynbatch.testing.random_graphs import draw
from tests.cells.calls.test_calls import binary, trees


def last_ready(structure):
    """All that is ready of the signature of the last node that is: none of the built-in orders."""
    left = list(range(len(structure)))
    while left:
        waiting = set(left)
        ready = [node for node in left if waiting.isdisjoint(structure.inputs[node])]
        signature = structure.signatures[ready[-1]]
        batch = [node for node in ready if structure.signatures[node] == signature]
        left = [node for node in left if node not in batch]
        yield structure.batch(batch)


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_of_the_users_gives_the_same_values_and_gradients(seed):
    check_policies(draw(seed), policies=[last_ready])


def test_a_policy_decides_the_batches_of_calls():
    seen = []

    def one_call_each(structure):
        seen.append(structure)
        return [structure.batch([node]) for node in range(len(structure))]

    expected, _ = trees(binary)
    found, graph = trees(binary, policy=one_call_each)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    (region,) = [row for row in graph._record().rows if row.kind == "calls of leaf, compose"]
    assert region.batches == region.nodes
    assert region.nodes in map(len, seen)


def test_a_policy_is_called_once_a_structure_whatever_the_lengths():
    seen = []

    def noted(structure):
        seen.append(structure)
        return by_agenda(structure)

    for length in (2, 3):
        with db.Graph(policy=noted) as graph:
            F.tanh(F.input(graph, [1.0] * length)).value  # noqa: B018
    assert len(seen) == 1
    assert graph.plans[0].policy == "noted"
    for _ in range(2):
        trees(binary, policy=noted)
    assert len(seen) == len(set(seen))


def test_the_function_of_a_built_in_policy_is_that_policy():
    for name, function in POLICIES.items():
        assert db.Graph(policy=function).policy == name


@pytest.mark.parametrize(
    ("batches", "problem", "fix"),
    [
        (lambda s: [s.batch([0])], "1 nodes never run; the first is Tanh #1", "until all"),
        (lambda s: [s.batch([1]), s.batch([0])], "Tanh #1 runs before Input #0", "earlier batches"),
        (lambda s: [s.batch([0, 1])], "Tanh #1 has another signature", "structure.signatures"),
        (lambda s: [s.batch([0]), s.batch([0, 1])], "Tanh #1 has another", "gather"),
        (lambda s: [s.batch([0]), s.batch([0])], "one of Input #0 runs twice", "from the rest"),
        (lambda s: [[0], [1]], r"batch 0 is \[0\]", r"structure.batch\(nodes\)"),
        (lambda s: [s.batch([])], "a batch holds nodes", "at least one position"),
        (lambda s: [s.batch([2])], "a batch holds nodes", "at least one position"),
        (lambda s: None, "returned None", r"structure.batch\(nodes\)"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_refused(batches, problem, fix):
    def mine(structure):
        return batches(structure)

    with db.Graph(policy=mine) as graph:
        y = F.tanh(F.input(graph, [1.0]))
        with pytest.raises(PlanError, match=problem) as error:
            y.value  # noqa: B018
    assert "\n  rule: " in str(error.value)
    assert error.match(fix)


def test_a_wrong_batch_of_calls_names_the_call():
    def last_first(structure):
        nodes = range(len(structure))
        # As a node a region stands alone; among its calls the last one reads others.
        return [structure.batch([node]) for node in (nodes if len(nodes) < 4 else nodes[::-1])]

    @db.cell
    def twice(x):
        return x + x

    with db.Graph(policy=last_first) as graph:
        y = F.input(graph, [1.0])
        for _ in range(4):
            y = twice(y)
        with pytest.raises(PlanError, match=r"twice #4 runs before twice #3, its input"):
            y.value  # noqa: B018


@pytest.mark.parametrize("policy", ["by_magic", 3, None, dict, [by_agenda]])
def test_what_is_not_a_policy_is_refused_with_those_there_are(policy):
    with pytest.raises(ArgumentError, match=r"known policies are .*by_agenda.* or a function"):
        db.Graph(policy=policy)


def test_a_dump_asks_for_a_function_that_it_cannot_hold(tmp_path):
    path = tmp_path / "graph.npz"
    with db.Graph(policy=last_ready) as graph:
        F.tanh(F.input(graph, [0.0])).keep()
        graph.dump(path)
    with pytest.raises(GraphError, match=r"policy 'last_ready'"):
        load_graph(path)
    with load_graph(path, policy=last_ready) as loaded:
        loaded.run()
        assert loaded.nodes[1].value == [0.0]
    assert replay(path) is None
