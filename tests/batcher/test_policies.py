from hypothesis import given
from hypothesis import strategies as st

from dynbatch.batcher.plan import Plan, Structure
from dynbatch.batcher.policies import POLICIES, by_agenda, by_depth, one_by_one


@st.composite
def structures(draw):
    """Any acyclic graph of up to 14 nodes of 3 kinds."""
    count = draw(st.integers(1, 14))
    kinds = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    inputs = [
        tuple(draw(st.lists(st.integers(0, node - 1), max_size=3))) if node else ()
        for node in range(count)
    ]
    return Structure(tuple(kinds), tuple(inputs))


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


@given(structures(), st.data())
def test_the_number_of_batches_does_not_depend_on_the_order_of_sentences(structure, data):
    """Two copies of a graph side by side batch as one does."""
    count = len(structure)
    twice = Structure(
        structure.signatures * 2,
        structure.inputs + tuple(tuple(i + count for i in x) for x in structure.inputs),
    )
    for policy in (by_depth, by_agenda):
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
