import pytest
from hypothesis import given

from dynbatch.batcher.schedule import machine as module
from dynbatch.batcher.schedule.frontier import BoundedFrontier
from dynbatch.batcher.schedule.machine import Choice, Machine, fit, state_of
from dynbatch.batcher.schedule.plan import Plan, Structure
from dynbatch.batcher.schedule.policies import by_bound
from tests.batcher.schedule.structures import structures
from tests.batcher.schedule.topologies import lattice, mini_batch

# Of each kind one node is ready, and another waits for one of the other kind: no first batch lowers
# the bound.
CROSSED = Structure((1, 2, 1, 2), ((), (), (1,), (0,)))


def test_a_machine_without_a_table_takes_what_lowers_the_bound():
    structure = Structure((1, 1, 2, 1, 2), ((), (0,), (1,), (), (3,)))
    assert [step.nodes for step in Machine()(structure)] == [(0, 3), (1,), (2, 4)]


def test_states_are_the_ready_signatures_by_their_number_of_nodes():
    assert state_of(BoundedFrontier(Structure((5, 7, 7), ((), (), ())))) == (7, 5)
    assert state_of(BoundedFrontier(Structure((7, 5), ((), ())))) == (5, 7)


def test_the_table_overrules_the_bound():
    machine = Machine()
    assert machine.choose(BoundedFrontier(CROSSED)) == 1
    state = state_of(BoundedFrontier(CROSSED))
    machine.learn([Choice(state, 1, 1)])
    assert machine.choose(BoundedFrontier(CROSSED)) == 1  # as bad as the bound says of the other
    machine.learn([Choice((9,), 9, 1), Choice(state, 1, 1)])
    assert machine.choose(BoundedFrontier(CROSSED)) == 2


def test_a_regret_is_learned_as_the_rule_says():
    machine = Machine()
    # The last choice first: (8,) costs 1 at once, and so discount * 1 to (7, 8) before it.
    machine.learn([Choice((8,), 8, 1), Choice((7, 8), 7, 0)])
    assert machine._regrets[(8,)] == {8: 1.0}
    assert machine._regrets[(7, 8)] == {7: pytest.approx(module.RATE * module.DISCOUNT)}


def test_a_copy_does_not_learn_with_the_machine_it_is_of():
    machine = Machine()
    copied = machine.copy()
    machine.learn([Choice((1, 2), 1, 1)])
    assert not copied._regrets


@given(structures())
def test_a_fitted_machine_is_valid_and_never_worse_than_by_bound(structure):
    machine, num_batches = fit(structure)
    plan = Plan(structure, tuple(machine(structure)), "learned")
    plan.validate()
    assert len(plan.steps) == num_batches
    assert plan.lower_bound <= num_batches <= len(list(by_bound(structure)))


def test_a_fit_finds_what_the_bound_alone_does_not():
    structure = mini_batch(lattice)
    assert fit(structure)[1] < len(list(by_bound(structure)))


def test_a_fit_is_deterministic():
    structure = mini_batch(lattice, sentences=8)
    first, second = fit(structure)[0], fit(structure)[0]
    assert first._regrets == second._regrets
    assert list(first(structure)) == list(second(structure))


def count_takes(monkeypatch):
    taken = []

    class Counting(BoundedFrontier):
        def take(self, signature):
            nodes = super().take(signature)
            taken.append(len(nodes))
            return nodes

    monkeypatch.setattr(module, "BoundedFrontier", Counting)
    return taken


def test_a_fit_keeps_to_its_budget_of_nodes_and_episodes(monkeypatch):
    taken = count_takes(monkeypatch)
    monkeypatch.setattr(module, "NODES", 10_000)
    structure = mini_batch(lattice, sentences=8)
    fit(structure)
    assert len(structure) < sum(taken) <= 10_000
    taken.clear()
    fit(CROSSED)  # 3 batches, one above the bound: every episode is tried
    assert sum(taken) == module.EPISODES * len(CROSSED)


def test_a_fit_ends_where_the_bound_is_reached(monkeypatch):
    taken = count_takes(monkeypatch)
    fit(Structure((1, 2, 2), ((), (0,), ())))
    assert sum(taken) == 3


def test_more_signatures_than_a_table_can_know_are_not_fitted(monkeypatch):
    taken = count_takes(monkeypatch)
    for others, num_runs in ((module.SIGNATURES - 2, module.EPISODES), (module.SIGNATURES - 1, 1)):
        taken.clear()
        more = Structure(
            CROSSED.signatures + tuple(range(3, 3 + others)), CROSSED.inputs + ((),) * others
        )
        assert fit(more)[1] == 3 + others
        assert sum(taken) == num_runs * len(more)
