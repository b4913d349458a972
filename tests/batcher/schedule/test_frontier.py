from hypothesis import given
from hypothesis import strategies as st

from dynbatch.batcher.schedule.frontier import BoundedFrontier, Frontier
from dynbatch.batcher.schedule.plan import Plan, Structure
from tests.batcher.schedule.structures import naive_lower_bound, structures

# Two chains of kind 1 that end in kind 2: 0 -> 1 -> 2(end) and 3 -> 4(end).
CHAINS = Structure((1, 1, 2, 1, 2), ((), (0,), (1,), (), (3,)))


def test_a_node_is_ready_once_its_inputs_have_run():
    frontier = Frontier(CHAINS)
    assert frontier.ready == {1: [0, 3]}
    assert frontier.take(1) == [0, 3]
    assert frontier.ready == {1: [1], 2: [4]}


def test_a_node_that_reads_another_twice_waits_for_it_once():
    frontier = Frontier(Structure((1, 2), ((), (0, 0))))
    frontier.take(1)
    assert frontier.ready == {2: [1]}


def test_the_average_depth_is_over_nodes_that_have_not_run():
    frontier = Frontier(CHAINS)
    assert frontier.priority == {1: ((0 + 1 + 0) / 3, 0)}
    frontier.take(1)
    assert frontier.priority[1] == (1.0, 1)
    assert frontier.priority[2] == ((2 + 1) / 2, 4)


def test_restart_forgets_what_has_run():
    frontier = BoundedFrontier(CHAINS)
    before = (dict(frontier.ready), frontier.bound, frontier.lowers(1))
    while frontier.ready:
        frontier.take(frontier.lowest())
    assert frontier.bound == 0
    frontier.restart()
    assert (frontier.ready, frontier.bound, frontier.lowers(1)) == before


def test_a_batch_that_leaves_a_chain_as_long_does_not_lower_the_bound():
    frontier = BoundedFrontier(CHAINS)
    frontier.take(1)
    assert not frontier.lowers(2)  # node 2, of the other chain, is as good an end as node 4
    assert frontier.lowers(1)
    assert frontier.lowest() == 1
    frontier.take(1)
    assert frontier.lowers(2)


@given(structures(), st.data())
def test_the_bound_falls_by_one_where_a_batch_lowers_it_and_stays_elsewhere(structure, data):
    frontier = BoundedFrontier(structure)
    assert frontier.bound == naive_lower_bound(structure)
    taken = above = 0
    while frontier.ready:
        signature = data.draw(st.sampled_from(sorted(frontier.ready)))
        before, lowers = frontier.bound, frontier.lowers(signature)
        frontier.take(signature)
        assert frontier.bound == before - lowers
        taken += 1
        above += not lowers
    assert taken == Plan(structure, (), "").lower_bound + above


@given(structures(), st.data())
def test_lowest_is_the_least_of_all_that_is_ready(structure, data):
    """In any order of taking: the entries of what was taken meanwhile do not count."""
    plain, bounded = Frontier(structure), BoundedFrontier(structure)
    while plain.ready:
        assert plain.lowest() == min(plain.ready, key=plain.priority.__getitem__)
        lowest = min(bounded.ready, key=lambda s: (not bounded.lowers(s), bounded.priority[s]))
        assert bounded.lowest() == lowest
        signature = data.draw(st.sampled_from(sorted(plain.ready)))
        assert plain.take(signature) == bounded.take(signature)
