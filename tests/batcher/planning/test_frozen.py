"""Scheduling and planning write on no node, step, block or batch."""

from contextlib import contextmanager
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.planning import run_plan
from dynbatch.batcher.planning.recompute_search import RecomputeSearch
from dynbatch.batcher.planning.stages import StepGraph
from dynbatch.batcher.steps import preparation
from dynbatch.batcher.steps.block import BatchInput, Block
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.errors import MemoryLimitError
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from tests.reference_models import Tagger, sentences

FROZEN = (Node, StepRun, Block, BatchInput, Batch)


class Planning:
    """Counts of planning: how often it ran, and what it assigned to which objects."""

    def __init__(self):
        self.calls = 0
        self.assigned = []
        self._frozen = set()

    @contextmanager
    def freeze(self, objects):
        before, self._frozen = self._frozen, self._frozen | {id(x) for x in objects}
        self.calls += 1
        try:
            yield
        finally:
            self._frozen = before

    def assign(self, what, name, value):
        if id(what) in self._frozen:
            self.assigned.append(f"{type(what).__name__}.{name}")
        object.__setattr__(what, name, value)


def parts_of(steps):
    """The steps with all that belongs to them."""
    return [
        part
        for step in steps
        for part in (step, *step.blocks, *step.sources, step.batch, *step.nodes)
    ]


@pytest.fixture
def planning(monkeypatch):
    noted = Planning()
    schedule, plan_memory, fit = preparation.schedule, run_plan.plan_memory, RecomputeSearch.fit
    make = StepGraph.__init__

    def frozen_schedule(nodes, *arguments):
        with noted.freeze(nodes):
            return schedule(nodes, *arguments)

    def frozen_plan(graph, *arguments, **settings):
        with noted.freeze(parts_of([*graph.past, *graph.new])):
            return plan_memory(graph, *arguments, **settings)

    def frozen_fit(search, **settings):
        with noted.freeze(parts_of([*search._graph.past, *search._graph.new])):
            return fit(search, **settings)

    def frozen_graph(graph, parts, past, *arguments):
        steps = [step for part in parts for stage in part for step in stage]
        with noted.freeze(parts_of([*past, *steps])):
            make(graph, parts, past, *arguments)

    monkeypatch.setattr(preparation, "schedule", frozen_schedule)
    monkeypatch.setattr(run_plan, "plan_memory", frozen_plan)
    monkeypatch.setattr(RecomputeSearch, "fit", frozen_fit)
    monkeypatch.setattr(StepGraph, "__init__", frozen_graph)
    for kind in FROZEN:
        monkeypatch.setattr(
            kind, "__setattr__", lambda what, name, value: noted.assign(what, name, value)
        )
    yield noted
    assert noted.calls > 0
    assert noted.assigned == []


def tagger_loss(graph):
    return F.mean(Tagger().losses(graph, sentences([5, 1, 9, 3])))


def lstm_loss(graph):
    model = models.LSTM(4, 3, bidirectional=True)
    outputs = [model(F.input(graph, np.ones((n, 4), np.float32))) for n in (3, 5, 1)]
    return F.mean([F.sum(output * output) for output in outputs])


@pytest.mark.parametrize("loss_of", [tagger_loss, lstm_loss])
def test_runs_of_values_and_of_gradients_are_planned_without_assignments(planning, loss_of):
    with db.Graph() as graph:
        loss = loss_of(graph)
        graph.estimate(loss)
        graph.backward(loss)
    with db.Graph() as graph:
        loss = loss_of(graph)
        _ = loss.value
        further = loss * 2.0  # a second run, which goes back through the first
        graph.backward(further)
    with db.Graph(grad=False) as graph:
        _ = loss_of(graph).value


@pytest.mark.parametrize("loss_of", [tagger_loss, lstm_loss])
def test_limits_and_micro_batches_are_planned_without_assignments(planning, loss_of):
    savings = set()
    with db.Graph() as graph:
        loss = loss_of(graph)
        peak = graph.estimate(loss).peak_bytes
        with pytest.raises(MemoryLimitError) as caught:
            graph.estimate(loss, memory_limit=1)
        for limit in np.linspace(caught.value.least_bytes, peak, 5).astype(int).tolist():
            savings.add(graph.estimate(loss, limit).saving)
        graph.backward(loss, caught.value.least_bytes)
    assert len(savings) > 1


def test_calls_of_cells_are_planned_without_assignments(planning):
    weight = db.Parameter(np.eye(3, dtype=np.float32), "weight")

    @db.cell
    def compose(left, right):
        return F.tanh(F.linear(left + right, weight))

    with db.Graph() as graph:
        leaves = [F.input(graph, np.full(3, k, np.float32)) for k in range(4)]
        pairs = [compose(*leaves[:2]), compose(*leaves[2:])]
        loss = F.sum(compose(*pairs))
        graph.estimate(loss)
        graph.backward(loss)


def test_an_estimate_leaves_steps_that_have_run_as_they_are(planning):
    with db.Graph() as graph:
        loss = tagger_loss(graph)
        _ = loss.value
        further = loss * 2.0
        with planning.freeze([*parts_of(graph._executor.steps), *graph.nodes]):
            assert graph.estimate(loss).peak_bytes > 0
        graph.backward(further)


def test_a_plan_cannot_be_changed(monkeypatch):
    plans = []
    plan_memory = run_plan.plan_memory
    monkeypatch.setattr(
        run_plan, "plan_memory", lambda *a, **k: plans.append(plan_memory(*a, **k)) or plans[-1]
    )
    with db.Graph() as graph:
        graph.backward(tagger_loss(graph))
    (plan,) = plans
    with pytest.raises(FrozenInstanceError):
        plan.elements = 0
    with pytest.raises(AttributeError):
        next(iter(plan.placements.values())).keeps = False
    with pytest.raises(AttributeError):
        plan.stages[0].steps = []
    assert isinstance(plan.stages, tuple) and isinstance(plan.intervals, tuple)
