import pytest
from hypothesis import given

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher import schedule as module
from dynbatch.batcher.plan import Structure
from dynbatch.batcher.policies import POLICIES
from dynbatch.batcher.schedule import ordered_for_readers, schedule, schedule_structure
from tests.batcher.test_policies import structures


def test_a_structure_seen_before_gives_the_same_plan_object():
    plans = []
    for _ in range(2):
        with db.Graph() as graph:
            nodes = [F.tanh(F.input(graph, [1.0] * size)) for size in (2, 3)]
            plans.append(schedule([x for n in nodes for x in (*n.inputs, n)]))
    assert plans[0] is plans[1]


def test_lengths_do_not_change_a_plan():
    plans = []
    for length in (2, 5):
        with db.Graph() as graph:
            _ = F.sum(F.tanh(F.input(graph, [[1.0]] * length))).value
            plans.append(graph.plans[0])
    assert plans[0] is plans[1]


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_plans", type(module._plans)())
    for kinds in range(module.CACHED_PLANS + 5):
        schedule_structure(Structure((kinds,), ((),)), "by_depth")
    assert len(module._plans) == module.CACHED_PLANS
    # The oldest went first.
    assert ("by_depth", Structure((0,), ((),))) not in module._plans


def test_inputs_that_are_computed_already_are_left_out():
    with db.Graph() as graph:
        x = F.tanh(F.input(graph, [1.0]))
        assert x.value is not None
        plan = schedule([F.exp(x)])
        assert plan.structure.inputs == ((),)


def test_an_unknown_policy_raises():
    with pytest.raises(ValueError, match="unknown policy 'by_magic'"):
        schedule([], "by_magic")


@given(structures())
def test_ordering_for_readers_keeps_every_step_and_its_nodes(structure):
    for policy in POLICIES.values():
        steps = list(policy(structure))
        ordered = ordered_for_readers(structure, steps)
        assert [(s.signature, sorted(s.nodes)) for s in ordered] == [
            (s.signature, sorted(s.nodes)) for s in steps
        ]


def test_outputs_lie_as_their_reader_takes_them():
    with db.Graph() as graph:
        made = [F.tanh(F.input(graph, [float(k)])) for k in range(3)]
        for x in made[::-1]:  # read in the reverse of the order of creation
            F.exp(x)
        graph.forward()
        assert graph.statistics.copied_bytes == 0
