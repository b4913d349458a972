"""The memory that a step will hold is known before it runs: equal to what is then measured."""

import numpy as np
import pytest
from hypothesis import given

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.execution.executor import Executor
from dynbatch.memory import Pool
from dynbatch.testing import strategies
from tests.random_examples import examples
from tests.reference_models import Tagger, sentences


def tagger_loss(graph, lengths=(3, 1, 7)):
    return F.mean(Tagger().losses(graph, sentences(lengths)))


def test_an_estimate_equals_what_is_measured_and_leaves_no_trace(monkeypatch):
    pool = Pool()
    with db.Graph(pool=pool) as graph:
        loss = tagger_loss(graph)
        with monkeypatch.context() as patch:
            patch.setattr(Executor, "_run_stage", None)  # no kernel runs
            planned = graph.estimate(loss)
        assert pool.upstream_allocations == graph.peak_bytes == len(graph.plans) == 0
        assert graph.statistics.nodes == 0
        graph.backward(loss)
        assert planned == graph.memory_use
        assert planned.peak_bytes == graph.peak_bytes > 0


@examples(15)
@given(strategies.random_graphs())
def test_estimates_of_random_graphs_equal_what_is_measured(random_graph):
    with db.Graph(dtype="float64", seed=0) as graph:
        program = random_graph.build(graph)
        loss = program.loss
        graph.keep(loss)  # also a loss that no parameter is in has a gradient then
        before, planned = graph.peak_bytes, graph.estimate(loss)
        graph.backward(loss)
        assert graph.peak_bytes == max(before, planned.peak_bytes)
        if planned.peak_bytes > before:
            assert planned == graph.memory_use


def test_an_estimate_of_values_counts_what_earlier_runs_hold():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((5, 4)))
        y = F.tanh(x)
        _ = y.value
        held = graph.peak_bytes
        z = F.softmax(y)
        planned = graph.estimate()
        assert planned.by_cause["earlier runs"] == held > 0
        assert planned.peak_bytes == held + 5 * 4 * 4
        _ = z.value
        assert planned.peak_bytes == graph.peak_bytes
        # A loss after it reads what is there already.
        loss = F.sum(z.keep())
        planned = graph.estimate(loss)
        graph.backward(loss)
        assert planned.peak_bytes == graph.peak_bytes


def test_an_estimate_of_a_block_holds_no_node_that_inference_then_frees():
    block = db.block(lambda x: F.softmax(F.exp(F.tanh(x))))
    with db.Graph(grad=False) as graph:
        ys = [block(F.input(graph, np.ones((n, 4)))) for n in (5, 3)]
        planned = graph.estimate()
        graph.values(ys)
        assert planned == graph.memory_use


def test_the_peak_is_split_by_cause_and_by_node_type():
    with db.Graph() as graph:
        use = graph.estimate(tagger_loss(graph))
    assert sum(use.by_cause.values()) == use.peak_bytes
    assert sum(use.by_type.values()) == use.peak_bytes - use.by_cause["gaps"]
    assert use.live_bytes <= use.peak_bytes
    assert use.live_bytes == max(sum(causes.values()) for _, causes in use.stages)
    labels = [label for label, _ in use.stages]
    assert labels[0].startswith("early backward ")
    assert labels[1] == "forward Lookup"
    assert labels[-1] == "backward Lookup"
    # 11 words: their embeddings, 4 wide, and nothing else but the losses' gradients.
    assert use.stages[1][1] == {"activations": 11 * 4 * 4, "gradients": (1 + 3) * 4}
    assert f"peak {use.peak_bytes:,} bytes" in str(use)


@pytest.mark.parametrize("loss", [None, "vector"])
def test_an_estimate_asks_for_a_loss_as_backward_does(loss):
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        if loss is None:
            assert graph.estimate().peak_bytes == 8
        else:
            with pytest.raises(db.errors.ShapeError, match="scalar"):
                graph.estimate(x)


def test_blocks_are_summed_as_if_none_took_the_room_of_another():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((5, 4)))
        use = graph.estimate(F.sum(F.tanh(F.tanh(x.keep()))))
    # x, both tanh, the loss; a gradient of each.
    assert use.blocks_bytes == 2 * (3 * 5 * 4 + 1) * 8 > use.peak_bytes


def held_tables(value, seen):
    """Bytes of integer arrays that lists, dicts and objects of dynbatch lead to."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return value.nbytes if value.dtype.kind in "iu" and value.base is None else 0
    if isinstance(value, dict):
        return sum(held_tables(one, seen) for one in value.values())
    if isinstance(value, list | tuple):
        return sum(held_tables(one, seen) for one in value)
    if type(value).__module__.startswith("dynbatch.cells."):
        names = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
        held = [getattr(value, name, None) for name in names]
        return held_tables([*held, *getattr(value, "__dict__", {}).values()], seen)
    return 0


@pytest.mark.parametrize("lengths", [(20, 33, 7, 1) * 4, (1,), (0, 5)])
def test_tables_of_a_scan_are_those_that_its_run_holds(lengths):
    model = models.LSTM(4, 3)
    with db.Graph() as graph:
        outputs = [model(F.input(graph, np.ones((length, 4)))) for length in lengths]
        loss = F.sum([F.sum(output) for output in outputs])
        planned = graph.estimate(loss).tables_bytes
        graph.backward(loss)
        assert graph.memory_use.tables_bytes == planned
        (step,) = [s for s in graph._executor.steps if s.node_type.__name__ == "Scan"]
        run = step.batch.memo["run"]
        held = held_tables(run.shards, set())
        told = step.node_type.index_bytes(step.batch)
        assert held * 0.8 - 200 <= told <= held * 1.25 + 200


def test_estimates_of_others_change_nothing():
    with db.Graph(dtype="float64") as graph:
        losses = [F.sum(F.tanh(F.input(graph, np.ones((n, 4))).keep())) for n in (3, 5)]
        for loss in losses:
            _ = loss.value
        loss = F.mean(losses)
        planned = graph.estimate(loss)
        graph.estimate(losses[0])  # a loss is kept
        with pytest.raises(db.errors.OutOfMemory):
            graph.estimate(losses[0], memory_limit=1)
        assert graph.estimate(loss) == planned
        graph.backward(loss)
        assert graph.memory_use == planned
    model = Tagger()
    with db.Graph() as graph:
        loss = F.mean(model.losses(graph, sentences((3, 1))))
        graph.backward(loss)
        told = graph.explain()
        assert "+grad" in told
        spent = graph.statistics.host_seconds
        graph.estimate(loss)
        assert graph.statistics.host_seconds == spent
        assert graph.explain() == told


def test_a_computed_loss_that_passes_no_gradient_on_can_be_estimated():
    with db.Graph(dtype="float64") as graph:
        loss = F.detach(F.input(graph, 2.0)).keep()
        assert graph.estimate().peak_stage == "forward Detach"
        graph.forward()
        held = graph.peak_bytes
        use = graph.estimate(loss)
        assert use.peak_bytes > held
        assert use.by_cause["gradients"] == 8
        graph.backward(loss)
        assert graph.memory_use == use
        assert loss.gradient == 1
