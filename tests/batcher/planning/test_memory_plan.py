"""Lifetimes of blocks, as the planner sees them."""

import numpy as np
import pytest
from hypothesis import given

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.planning.in_place import InPlace
from dynbatch.batcher.planning.stages import StepGraph
from dynbatch.memory import live_peak
from dynbatch.testing import strategies
from tests.poison import assert_disjoint, poisoned_memory
from tests.random_examples import examples
from tests.reference_models import Tagger, sentences

ALLOCATE = Executor._allocate


@pytest.fixture
def plans(monkeypatch):
    """The plans of all runs of a test."""
    found = []

    def allocate(self, plan):
        found.append(plan.memory)
        return ALLOCATE(self, plan)

    monkeypatch.setattr(Executor, "_allocate", allocate)
    return found


def kinds(plan):
    """Each stage as its direction and the kinds that run in it."""
    return [
        (
            "backward" if stage.is_backward else "forward",
            [s.node_type.__name__ for s in stage.steps],
        )
        for stage in plan.stages
    ]


def test_what_leads_from_the_losses_to_their_mean_is_differentiated_before_they_are_computed(
    plans,
):
    with db.Graph() as graph:
        graph.backward(F.mean(Tagger().losses(graph, sentences([2, 3]))))
        (plan,) = plans
        assert kinds(plan) == [
            ("backward", ["Total"]),
            ("forward", ["Lookup"]),
            ("forward", ["LinearMap"]),
            ("forward", ["Tanh"]),
            ("forward", ["LinearCrossEntropy"]),
            ("forward", ["Total"]),
            ("backward", ["Tanh"]),
            ("backward", ["LinearMap"]),
            ("backward", ["Lookup"]),
        ]
        assert [step.node_type.__name__ for stage in plan.stages for step in stage.steps
                if step in plan.graph.fused] == ["LinearCrossEntropy"]  # fmt: skip


def test_values_live_from_their_kernel_to_their_last_reader(plans):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 3))).keep()
        y = F.tanh(x)  # backward reads the output
        z = y + 1.0  # and of this one nothing
        loss = F.sum(z)
        graph.backward(loss)
        (plan,) = plans
        names = [kind for _, kind in kinds(plan)]
        assert names == [["Sum"], ["Shift"], ["Input"], ["Tanh"], ["Shift"], ["Sum"], ["Tanh"],
                         ["Input"]]  # fmt: skip
        blocks = {
            step.node_type.__name__: step.block
            for stage in plan.stages
            for step in stage.steps
            if not stage.is_backward
        }
        spans = sorted((i.first, i.last) for i in plan.intervals if i.size == 6)
        assert (3, 6) in spans  # y: from its kernel to its own backward
        assert (4, 5) in spans  # z: until the sum has read it
        assert blocks["Input"].kept


def test_steps_without_a_gradient_to_send_are_not_differentiated(plans):
    frozen = db.Parameter(np.ones((3, 3), np.float32))
    frozen.frozen = True
    with db.Graph() as graph:
        x = F.tanh(F.linear(F.lookup(graph, frozen, [0, 2]), frozen))
        y = F.exp(F.input(graph, np.ones((2, 3))).keep())
        graph.backward(F.sum(x * y))
        backward = [kind for way, kind in kinds(plans[0]) if way == "backward"]
    assert sorted(kind for stage in backward for kind in stage) == [
        "Exp",
        "Input",
        "Multiply",
        "Sum",
    ]


@examples(20)
@given(strategies.random_graphs())
def test_places_never_overlap_and_the_peak_is_near_the_least_possible(random_graph):
    found = []

    def allocate(self, plan):
        found.append(plan.memory)
        return ALLOCATE(self, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "_allocate", allocate)
        with db.Graph(dtype="float64", seed=0) as graph:
            loss = random_graph.build(graph).loss
            graph.keep(loss)  # also a loss that no parameter is in has a gradient then
            graph.backward(loss)
    for plan in found:
        assert_disjoint(plan.intervals)
        live, planned = live_peak(plan.intervals), plan.elements
        # Blocks of a few elements cannot always fill the gaps that alignment leaves.
        assert live <= planned <= 1.25 * live + 64


def test_the_peak_of_the_tagger_is_the_largest_sum_of_live_blocks(plans):
    with db.Graph() as graph:
        graph.backward(F.mean(Tagger().losses(graph, sentences([20, 33, 7, 1] * 8))))
    (plan,) = plans
    live = live_peak(plan.intervals)
    assert live * 4 <= graph.peak_bytes <= 1.05 * live * 4


WEIGHT = np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype(np.float32)


def deep_gradient(rows, before=None):
    """Matrices alive, and the gradient of one weight at 20 depths."""
    weight = db.Parameter(WEIGHT.copy(), "weight")
    weight.grad = before
    with db.Graph() as graph:
        x = F.constant(graph, 0.5, (rows, 64))
        for _ in range(20):
            x = F.tanh(F.linear(x, weight))
        graph.backward(F.sum(x))
        assert before is None or weight.grad is before
        return round(graph.peak_bytes / (4 * 64 * rows)), weight.grad


@pytest.mark.parametrize("rows", [600, 200, 7])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_weight_at_many_depths_keeps_no_matrix_that_its_gradient_has(rows, is_there, monkeypatch):
    def before():
        return np.full_like(WEIGHT, 0.3) if is_there else None

    live, gradient = deep_gradient(rows, before())
    gather = StepGraph._gather

    def at_the_end(graph, *args):
        gather(graph, *args)
        graph.gathered.clear()

    monkeypatch.setattr(StepGraph, "_gather", at_the_end)
    kept, same = deep_gradient(rows, before())
    np.testing.assert_array_equal(gradient, same)
    assert (live, kept) == ({600: 22, 200: 24, 7: 40}[rows], 40)


def test_a_gradient_that_products_were_added_to_is_as_before_where_backward_fails():
    before = np.full_like(WEIGHT, 0.3)
    weight = db.Parameter(WEIGHT.copy(), "weight")
    weight.grad = before
    with db.Graph() as graph, pytest.raises(db.errors.NumericError):
        x = F.constant(graph, 0.5, (600, 64))
        for _ in range(3):
            x = F.tanh(F.linear(x, weight))
        graph.backward(F.sum(x) / F.constant(graph, 0.0))
    assert weight.grad is before and (before == np.float32(0.3)).all()


def test_a_run_without_a_loss_keeps_every_value(plans):
    with db.Graph() as graph:
        for node in (F.tanh(F.input(graph, np.ones((2, 3)))),):
            F.exp(node)
        graph.forward()
        assert all(interval.last > 10**9 for interval in plans[0].intervals)


def in_place(build, **settings):
    """The chains of blocks that are one place, as sizes, and the gradient of the input."""
    chains = []
    find = InPlace.chains

    def noted(self, *columns):
        found = find(self, *columns)
        chains.append([len(chain) for chain in found])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InPlace, "chains", noted)
        with db.Graph(dtype="float64", **settings) as graph:
            x = F.input(graph, np.linspace(-1, 1, 12).reshape(4, 3)).keep()
            with poisoned_memory():
                graph.backward(F.sum(build(x)))
            return sorted(*chains or [[]]), x.gradient, graph.peak_bytes


def test_an_output_is_written_over_an_input_that_nothing_else_reads():
    # z = 2x + 1 over 2x, and exp(z) over z: tanh keeps its own output, and reads exp's.
    chains, gradient, peak = in_place(lambda x: F.tanh(F.exp(2 * x + 1)))
    separate = in_place(lambda x: F.tanh(F.exp(2 * x + 1)), check=True)
    # Forward 2x, 2x + 1, exp; backward the gradients of tanh, exp, shift, scale and x.
    assert chains == [3, 5]
    assert separate[0] == []
    np.testing.assert_array_equal(gradient, separate[1])
    assert peak < separate[2]


def test_what_another_kernel_still_reads_is_not_written_over():
    def build(x):
        y = 2 * x
        return F.sum(F.concat([y + 1, y - 3]), dim=1)  # two steps of one stage read y

    chains, gradient, _ = in_place(build)
    np.testing.assert_array_equal(gradient, np.full((4, 3), 4.0))
    assert all(length >= 2 for length in chains)

    def squares(x):
        y = 2 * x
        return y * y  # backward reads y

    np.testing.assert_allclose(in_place(squares)[1], 8 * np.linspace(-1, 1, 12).reshape(4, 3))


def deep(layers):
    """A block of layers that gives what the second makes, its negative, and what the last makes."""
    weights = [db.Parameter(np.full((6, 6), 0.1 * k, np.float32)) for k in range(layers)]

    @db.block
    def run(graph, x):
        made = []
        for weight in weights:
            x = F.tanh(F.linear(x, weight))
            made.append(x)
        return made[1], -made[1], made[-1]

    return run


def test_values_inside_of_a_block_share_memory_where_no_gradients_are_wanted():
    peaks, found = {}, {}
    for layers, grad in [(4, False), (12, False), (12, True)]:
        block = deep(layers)
        with db.Graph(grad=grad) as graph:
            rows = [F.input(graph, np.full((n, 6), 0.5, np.float32)) for n in (3, 1, 5)]
            results = [node for x in rows for node in block(graph, x)]
            graph.forward()
            found[layers, grad] = [node.value.copy() for node in results]
            peaks[layers, grad] = graph.statistics.peak_bytes
    assert peaks[4, False] == peaks[12, False] < peaks[12, True] / 2
    for one, other in zip(found[12, False], found[12, True], strict=True):
        np.testing.assert_array_equal(one, other)
