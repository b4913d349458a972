"""The lower bound of several runs is that of one run of the same nodes."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F

D = 4
LENGTHS = (1, 4, 7, 3, 5, 2, 8)
READS = ("nothing", "each loss", "each step")

lin, recur, out = models.Linear(D, D), models.Linear(D, D), models.Linear(D, 2)
weights = [db.Parameter(np.full((D, D), 0.1, "float32"), f"w{k}") for k in range(3)]
layers = [models.TransformerEncoderLayer(D, 2, 2 * D, dropout=0.0) for _ in range(2)]


@db.cell
def leaf(x, p):
    return F.tanh(F.linear(x, p[0]))


@db.cell
def compose(left, right, p):
    return F.tanh(F.linear(left, p[1]) + F.linear(right, p[2]))


def words(graph, length):
    return F.input(graph, np.ones((length, D)))


def tagger(graph, length, read):
    return F.sum(F.tanh(lin(words(graph, length))))


def steps_by_hand(graph, length, read):
    x = words(graph, length)
    h = F.tanh(lin(x[0]))
    for k in range(1, length):
        h = F.tanh(lin(x[k]) + recur(h))
        read(h)
    return F.sum(out(h))


def tree(graph, length, read):
    x = words(graph, length)
    states = [leaf(x[k], weights) for k in range(length)]
    while len(states) > 1:
        pairs = zip(states[::2], states[1::2], strict=False)
        states = [compose(a, b, weights) for a, b in pairs] + states[len(states) // 2 * 2 :]
        read(states[0])
    return F.sum(out(states[0]))


def chain_of_calls_and_scores(graph, length, read):
    x = words(graph, length)
    h = leaf(x[0], weights)
    for k in range(1, length):
        h = compose(h, leaf(x[k], weights), weights)
        read(out(h))
    return F.sum(out(h))


def scores_between_calls(graph, length, read):
    """Calls read ordinary nodes that read calls: one phase after the other."""
    x = words(graph, length)
    h = leaf(x[0], weights)
    for k in range(1, length):
        h = compose(F.relu(lin(h)), leaf(x[k], weights), weights)
        read(h)
    return F.sum(out(h))


def blocks(graph, length, read):
    h = words(graph, length)
    for layer in layers:
        h = layer(h)
        read(h)
    return F.sum(h)


PROGRAMS = [
    tagger, steps_by_hand, tree, chain_of_calls_and_scores, scores_between_calls, blocks
]  # fmt: skip


def ran(program, reads):
    with db.Graph() as graph:
        losses = []
        for length in LENGTHS:
            read = (lambda x: x.value) if reads == "each step" else lambda x: None
            losses.append(program(graph, length, read))
            if reads != "nothing":
                losses[-1].value  # noqa: B018
        graph.backward(F.mean(losses))
        assert graph.lower_bound == graph._record().lower_bound
    return graph


@pytest.mark.parametrize("reads", READS[1:])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_bound_is_that_of_the_mini_batch_as_if_nothing_had_been_read_early(program, reads):
    whole, early = ran(program, "nothing"), ran(program, reads)
    assert whole.statistics.batches == whole.lower_bound == early.lower_bound
    assert early.statistics.batches >= len(LENGTHS) * whole.statistics.batches // 3
    assert len(early.plans) >= len(LENGTHS)


def test_a_node_that_runs_twice_counts_once():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 2)))
        row = x[1]
        y = F.tanh(row)
        graph.forward()
        row.keep()
        graph.backward(F.sum(F.tanh(y)))
    assert graph.lower_bound <= len({node for plan in graph.plans for node in plan.steps})


def test_a_mini_batch_in_parts_is_held_to_the_bound_of_one_part():
    def losses(graph):
        return F.mean([F.sum(F.tanh(lin(words(graph, length)))) for length in (20, 30, 25, 28)])

    with db.Graph() as graph:
        graph.backward(losses(graph))
        whole, peak = graph.lower_bound, graph.peak_bytes
    with db.Graph() as graph:
        graph.backward(losses(graph), memory_limit=peak * 2 // 3)
    assert graph.memory_use.saving and len(graph.plans) > 1
    assert graph.lower_bound == whole < graph.statistics.batches
