import pytest
from hypothesis import given

from dynbatch.batcher.schedule import policies as module
from dynbatch.batcher.schedule.plan import Plan, Structure
from dynbatch.batcher.schedule.policies import (
    POLICIES,
    by_agenda,
    by_bound,
    by_depth,
    learned,
    one_by_one,
)
from dynbatch.recent import Recent
from tests.batcher.schedule.structures import structures, trees
from tests.batcher.schedule.topologies import TOPOLOGIES, mini_batch


@pytest.fixture
def unfitted(monkeypatch):
    """No kind is known; returns the structures that are fitted from here on."""
    fitted = []

    def fit(structure):
        fitted.append(structure)
        return machine(structure)

    machine = module.fit
    monkeypatch.setattr(module, "_fitted", Recent(module.FITTED_POLICIES))
    monkeypatch.setattr(module, "fit", fit)
    return fitted


@given(structures())
def test_every_policy_gives_a_valid_plan_between_the_bounds(structure):
    for name, policy in POLICIES.items():
        plan = Plan(structure, tuple(policy(structure)), name)
        plan.validate()
        assert plan.lower_bound <= len(plan.steps) <= len(structure)


@given(structures())
def test_steps_of_a_stage_do_not_read_each_other(structure):
    for name, policy in POLICIES.items():
        plan = Plan(structure, tuple(policy(structure)), name)
        assert [step for stage in plan.stages for step in stage] == list(range(len(plan.steps)))
        for stage in plan.stages:
            made = {node for step in stage for node in plan.steps[step].nodes}
            for node in made:
                assert made.isdisjoint(structure.inputs[node])


@given(structures())
def test_the_number_of_batches_does_not_depend_on_the_order_of_sentences(structure):
    """Two copies of a graph side by side batch as one does."""
    count = len(structure)
    twice = Structure(
        structure.signatures * 2,
        structure.inputs + tuple(tuple(i + count for i in x) for x in structure.inputs),
    )
    for policy in (by_depth, by_agenda, by_bound):
        assert len(list(policy(twice))) == len(list(policy(structure)))


def test_by_depth_splits_what_lies_at_different_depths():
    structure = Structure((1, 2, 1, 1), ((), (0,), (1,), ()))
    assert [step.nodes for step in by_depth(structure)] == [(0, 3), (1,), (2,)]


def test_by_agenda_joins_the_ends_of_chains_of_different_lengths():
    # 0 -> 1 -> 2(end), 3 -> 4(end): the ends are one batch, though their depths differ.
    structure = Structure((1, 2, 3, 1, 3), ((), (0,), (1,), (), (3,)))
    assert [step.nodes for step in by_agenda(structure)] == [(0, 3), (1,), (2, 4)]
    assert len(list(by_depth(structure))) == 4


def test_one_by_one_is_the_order_of_creation():
    structure = Structure((1, 1), ((), ()))
    assert [step.nodes for step in one_by_one(structure)] == [(0,), (1,)]


# Batches of 64 random sentences: the lower bound, and what each policy needs.
BATCHES = {
    #                          bound  by_depth  by_agenda  by_bound  learned
    "chain":                   (40, 76, 58, 40, 40),
    "LSTM by operation":       (300, 336, 336, 300, 300),
    "balanced tree":           (9, 15, 12, 9, 9),
    "left-leaning tree":       (39, 75, 57, 39, 39),
    "random tree":             (15, 27, 22, 15, 15),
    "random tree, no outputs": (14, 14, 14, 14, 14),
    "tree of two cells":       (19, 38, 29, 24, 23),
    "bi-LSTM and tree":        (91, 200, 125, 91, 91),
    "characters and words":    (55, 121, 75, 55, 55),
    "lattice":                 (50, 119, 94, 68, 66),
    "parser":                  (181, 185, 182, 181, 181),
}  # fmt: skip


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_batches_of_each_policy_on_each_topology(name, unfitted):
    structure = mini_batch(TOPOLOGIES[name])
    found = [Plan(structure, (), "none").lower_bound]
    for policy in ("by_depth", "by_agenda", "by_bound", "learned"):
        plan = Plan(structure, tuple(POLICIES[policy](structure)), policy)
        plan.validate()
        found.append(len(plan.steps))
    assert tuple(found) == BATCHES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_learned_stays_below_the_others_on_mini_batches_it_was_not_fitted_on(name, unfitted):
    learned(mini_batch(TOPOLOGIES[name]))
    for seed in (1, 2, 3):
        structure = mini_batch(TOPOLOGIES[name], seed=seed)
        fewest = min(len(list(policy(structure))) for policy in (by_depth, by_agenda))
        assert len(list(learned(structure))) <= fewest
    assert len(unfitted) == 1


@given(structures())
def test_learned_has_no_more_batches_than_any_other_where_it_was_fitted(structure):
    module._fitted.clear()
    fewest = min(len(list(policy(structure))) for policy in (by_depth, by_agenda, by_bound))
    assert len(list(learned(structure))) <= fewest


@given(trees())
def test_trees_of_any_shape_take_no_more_batches_than_the_lower_bound(structure):
    module._fitted.clear()
    bound = Plan(structure, (), "none").lower_bound
    for policy in (by_bound, learned):
        assert len(list(policy(structure))) == bound


def test_by_bound_lets_outputs_wait_until_all_are_ready():
    # by_agenda takes the outputs (kind 3) of the short chains before the long ones have ended.
    structure = mini_batch(TOPOLOGIES["chain"], sentences=8)
    outputs = structure.signatures.count(3)
    assert [len(step.nodes) for step in by_bound(structure) if step.signature == 3] == [outputs]
    assert sum(step.signature == 3 for step in by_agenda(structure)) > 1


def test_a_kind_of_structure_is_fitted_once(unfitted):
    first, second = mini_batch(TOPOLOGIES["chain"]), mini_batch(TOPOLOGIES["chain"], seed=1)
    for structure in (first, second, first):
        assert list(learned(structure)) == list(learned(structure))
    assert unfitted == [first]
    learned(mini_batch(TOPOLOGIES["lattice"]))
    assert len(unfitted) == 2


def test_the_kinds_that_are_remembered_are_bounded(unfitted):
    for kind in range(module.FITTED_POLICIES + 3):
        learned(Structure((kind,), ((),)))
    assert len(module._fitted) == module.FITTED_POLICIES
    learned(Structure((0,), ((),)))  # the oldest went first
    assert len(unfitted) == module.FITTED_POLICIES + 4
