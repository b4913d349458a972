import sys

import numpy as np
import pytest
from hypothesis import given

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule import policies
from dynbatch.batcher.schedule import schedule as module
from dynbatch.batcher.schedule.plan import Plan, Structure
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.batcher.schedule.schedule import (
    ordered_for_readers,
    schedule,
    schedule_structure,
    structure_of,
)
from dynbatch.errors import GraphError
from dynbatch.recent import Recent
from tests.batcher.schedule.structures import structures


def test_a_cycle_made_by_hand_is_an_error():
    with db.Graph() as graph:
        first = F.tanh(F.input(graph, [1.0]))
        second = F.sigmoid(first)
        first.inputs = (second,)
        with pytest.raises(GraphError, match=r"Tanh #1 reads Sigmoid #2.*\n.*no cycles"):
            second.value  # noqa: B018
        first.inputs = ()
        assert graph.values([F.tanh(F.input(graph, [0.0]))])[0] == 0


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


def test_a_plan_is_known_by_positions_whatever_the_indices(monkeypatch):
    def nodes_after(others: int, first_runs: bool = True) -> list:
        for _ in range(others):
            F.input(graph, [1.0])
        x = F.input(graph, [1.0])
        y = F.tanh(x)
        return [x, y, y * y][not first_runs :]

    structures_made = []
    made = module.structure_of
    monkeypatch.setattr(
        module, "structure_of", lambda *nodes: structures_made.append(made(*nodes)) or made(*nodes)
    )
    monkeypatch.setattr(module, "_plans_of_nodes", Recent(8))
    plans = []
    with db.Graph() as graph:
        for nodes in (nodes_after(0), nodes_after(3), nodes_after(0, first_runs=False)):
            for roots in (None, nodes[-1:]):
                plans.append(schedule(nodes, roots=roots))
                assert plans[-1].structure == made(nodes, roots)
    assert len(structures_made) == 4
    assert plans[:2] == plans[2:4]


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_plans", Recent(module.CACHED_PLANS))
    for kinds in range(module.CACHED_PLANS + 5):
        schedule_structure(Structure((kinds,), ((),)), "by_depth")
    assert len(module._plans) == module.CACHED_PLANS
    # The oldest went first.
    assert module._plans.find(("by_depth", Structure((0,), ((),)), True)) is None


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


def chain(count, kinds=1):
    """Nodes of `kinds` kinds in turn, each reading the one before."""
    inputs = ((), *[(node,) for node in range(count - 1)])
    return Structure(tuple(node % kinds for node in range(count)), inputs)


def wide(count, kinds=1):
    """Nodes of `kinds` kinds in turn, none reading another."""
    return Structure(tuple(node % kinds for node in range(count)), ((),) * count)


def comb(count):
    """A chain with an output at every second node; the outputs wait for its end."""
    inputs = ((), *[(node - node % 2,) for node in range(count - 1)])
    return Structure(tuple(node % 2 for node in range(count)), inputs)


HUGE = 100_000
SHAPES = {
    "chain": lambda count: chain(count),
    "chain of two kinds": lambda count: chain(count, 2),
    "chain of as many kinds": lambda count: chain(count, count),
    "wide": lambda count: wide(count),
    "wide of as many kinds": lambda count: wide(count, count),
    "comb": comb,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["chain", "wide", "wide of as many kinds"])
def test_a_hundred_thousand_nodes_are_scheduled(name, monkeypatch):
    monkeypatch.setattr(module, "_plans", Recent(module.CACHED_PLANS))
    monkeypatch.setattr(policies, "_fitted", Recent(policies.FITTED_POLICIES))
    structure = SHAPES[name](HUGE)
    for policy in ("by_agenda", "learned"):
        plan = schedule_structure(structure, policy)
        assert len(plan.steps) == plan.lower_bound == (1 if name == "wide" else HUGE)


def lines_run(function):
    """The number of lines of the batcher that a call runs, which no clock disturbs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if "batcher" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SHAPES)
def test_work_grows_with_the_nodes_and_not_with_their_square(name, policy, monkeypatch):
    def work(count):
        structure = SHAPES[name](count)
        monkeypatch.setattr(policies, "_fitted", Recent(policies.FITTED_POLICIES))

        def plan():
            steps = ordered_for_readers(structure, list(POLICIES[policy](structure)))
            found = Plan(structure, tuple(steps), policy)
            found.validate()
            assert found.lower_bound <= len(steps)

        return lines_run(plan)

    assert work(600) < 2.5 * work(300)


def test_the_structure_of_nodes_is_found_in_one_pass():
    def work(count):
        with db.Graph() as graph:
            nodes = [F.input(graph, [1.0])]
            for _ in range(count):
                nodes.append(F.tanh(nodes[-1]))
            return lines_run(lambda: structure_of(nodes))

    assert work(600) < 2.5 * work(300)


def test_a_plan_is_found_again_by_nodes_alike_and_by_no_others():
    def plan_of(build):
        with db.Graph() as graph:
            build([F.input(graph, np.ones((rows, 4))) for rows in (2, 3)])
            return schedule(graph.nodes)

    def chain(xs):
        return [F.tanh(F.tanh(x)) for x in xs]

    assert plan_of(chain) is plan_of(chain)
    others = [
        lambda xs: [F.tanh(y) for y in [F.tanh(x) for x in xs]],
        lambda xs: [F.tanh(F.sigmoid(x)) for x in xs],
        lambda xs: [F.tanh(F.tanh(xs[0])) for _ in xs],
        lambda xs: [F.tanh(F.tanh(x)) for x in xs[::-1]],
        lambda xs: [*chain(xs), xs[0] + xs[0]],
    ]
    found = [plan_of(build).structure for build in (chain, *others)]
    assert len(set(found)) == len(found)
    for build, structure in zip((chain, *others), found, strict=True):
        with db.Graph() as graph:
            build([F.input(graph, np.ones((rows, 4))) for rows in (2, 3)])
            assert structure_of(graph.nodes) == structure
