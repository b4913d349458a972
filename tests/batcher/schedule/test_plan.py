import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.plan import BatchStep, Plan, Structure
from dynbatch.errors import PlanError
from tests.reference_models import Tagger, sentences

# Two sentences, each node 0 -> 1 -> 2 of kinds 7, 8, 7.
STRUCTURE = Structure((7, 8, 7, 7, 8, 7), ((), (0,), (1,), (), (3,), (4,)))


def plan(*steps: tuple[int, tuple[int, ...]]) -> Plan:
    return Plan(STRUCTURE, tuple(BatchStep(*step) for step in steps), "by hand")


def test_a_plan_that_runs_every_node_after_its_inputs_is_valid():
    plan((7, (0, 3)), (8, (1, 4)), (7, (2, 5))).validate()


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([(7, (0, 3)), (8, (1, 4)), (7, (2,))], "1 nodes never run"),
        ([(7, (0, 3)), (8, (1, 4)), (7, (2, 5)), (7, (0,))], "runs twice"),
        ([(7, (0, 3, 3)), (8, (1, 4)), (7, (2, 5))], "runs twice"),
        ([(7, (0,)), (8, (1, 4)), (7, (3, 2, 5))], "node 4 runs before node 3, its input"),
        ([(7, (0, 3)), (8, (1, 4, 2)), (7, (5,))], "node 2 has another signature"),
        ([(7, (0, 3, 2)), (8, (1, 4)), (7, (5,))], "node 2 runs before node 1, its input"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(steps, problem):
    with pytest.raises(PlanError, match=problem):
        plan(*steps).validate()


def test_the_lower_bound_is_the_longest_chain_of_each_kind_summed():
    assert plan().lower_bound == 2 + 1
    chain = Structure((1, 1, 1, 2), ((), (0,), (1,), ()))
    assert Plan(chain, (), "by hand").lower_bound == 3 + 1


def test_stages_join_consecutive_steps_that_do_not_read_each_other():
    found = plan((7, (0,)), (7, (3,)), (8, (1,)), (8, (4,)), (7, (2, 5)))
    assert found.stages == [(0, 1), (2, 3), (4,)]


def test_equal_plans_compare_equal():
    assert plan((7, (0, 3))) == plan((7, (0, 3)))
    assert plan((7, (0, 3))) != plan((7, (3, 0)))


GOLDEN = """\
plan by by_bound: 17 nodes in 5 batches (lower bound 5)
     0  Lookup               x 4
     1  LinearMap            x 4
     2  Tanh                 x 4
     3  LinearCrossEntropy   x 4
     4  Total                x 1"""


def test_the_plan_of_the_tagger_is_the_golden_one():
    with db.Graph() as graph:
        graph.backward(F.mean(Tagger().losses(graph, sentences([3, 1, 7, 2]))))
        assert str(graph.plans[0]) == GOLDEN


LATE_SUMS = """\
plan by by_bound: 12 nodes in 5 batches (lower bound 5)
     0  Input                x 3
     1  Tanh                 x 2
     2  Sigmoid              x 2
     3  Concat               x 2
     4  Sum                  x 3"""


def test_kinds_whose_other_members_come_late_wait_for_them():
    with db.Graph() as graph:
        F.sum(F.input(graph, [[3.0, 4.0]]))
        for _ in range(2):
            x = F.input(graph, [[1.0], [2.0]])
            F.sum(F.concat([F.tanh(x), F.sigmoid(x)]))
        graph.forward()
        assert str(graph.plans[0]) == LATE_SUMS
