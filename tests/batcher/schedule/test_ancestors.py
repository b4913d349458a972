"""Scheduling returns values: it writes on no node, no call and no table."""

from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.ancestors import (
    ancestors,
    ancestors_among,
)
from dynbatch.batcher.schedule.folds import out_of_date
from dynbatch.batcher.schedule.schedule import schedule
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.table import CallTable
from dynbatch.nodes.node import Node
from tests.cells.calls.test_calls import H, compose, leaf, mix, tree_parameters


@contextmanager
def frozen(graph):
    """All nodes there are cannot be set, nor tables or their arrays; new nodes can be made."""
    nodes = {id(node) for node in graph.nodes}

    def refuse(x, name, value):
        if isinstance(x, CallTable) or id(x) in nodes:
            raise AssertionError(f"{x!r}.{name} was set")
        object.__setattr__(x, name, value)

    arrays = [a for t in graph.tables for a in (t.ready, t.depth, t.run_of, t.position)]
    with pytest.MonkeyPatch.context() as patch:
        for owner in (Node, CallTable):
            patch.setattr(owner, "__setattr__", refuse, raising=False)
        for array in arrays:
            array.flags.writeable = False
        yield
    for array in arrays:
        array.flags.writeable = True


def test_scheduling_writes_on_no_node_and_no_table():
    p = tree_parameters()
    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, np.ones((5, H - 1)))
        first = [leaf(xs[k], p) for k in range(2)]
        assert first[0][0].value.shape == (H,)  # some calls have run
        states = [*first, *[leaf(xs[k], p) for k in range(2, 5)]]
        while len(states) > 1:
            states[:2] = [compose(*states[:2], p)]
        later = mix(F.tanh(states[0][0]), (H, H), p)[0]  # a phase of its own
        loss = F.sum(db.stack([later, states[0][1]]))
        runs = [(table, list(table.runs), table.run_of.copy()) for table in graph.tables]
        for table in graph.tables:
            table.update()
        plans = []
        with frozen(graph):
            for _ in range(2):
                nodes = ancestors([loss], graph._folds, {}, graph.tables, graph.policy)
                assert sum([isinstance(node, RegionNode) for node in nodes]) == 2
                plans.append([type(node).__name__ for node in nodes])
            assert out_of_date([xs], graph.nodes)
            with pytest.raises(AssertionError, match="was set"):
                loss.phase = 3
        assert plans[0] == plans[1]
        for table, known, run_of in runs:
            assert table.runs == known
            np.testing.assert_array_equal(table.run_of[: run_of.size], run_of)
        assert np.isfinite(loss.value)


def test_a_plan_of_nodes_writes_on_none():
    with db.Graph() as graph:
        y = F.tanh(F.input(graph, [1.0]))
        with frozen(graph):
            assert len(schedule([*y.inputs, y]).steps) == 2


def build(graph, kept, extra):
    """Losses that may be folded, one of them of logits that something else reads, or is kept."""
    w = db.Parameter(np.ones((3, 2), np.float32))
    losses, logits = [], []
    for rows in (2, 0, 3):
        x = F.tanh(F.input(graph, np.ones((rows, 2))))
        logits.append(F.linear(x, w))
        losses.append(F.cross_entropy(logits[-1], [0] * rows, reduction="sum"))
    F.sum(F.exp(logits[0]))  # nobody needs it
    if kept:
        logits[1].keep()
    if extra:
        losses.append(F.sum(logits[2]))
    return F.mean(losses)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_one_pass_over_pending_nodes_finds_what_a_search_finds(kept, extra, computed):
    with db.Graph() as graph:
        loss = build(graph, kept, extra)
        if computed:
            _ = graph.nodes[1].value
            loss = F.mean([loss, build(graph, kept, extra)])
        found = [
            search([loss], graph._folds, graph._kept)
            for search in (ancestors, partial(ancestors_among, graph._pending))
        ]
        one, other = [[(node.index, type(node)) for node in nodes] for nodes in found]
        assert one == other and len(one) > 4
