"""Nodes that a loss's gradient does not reach share no batch with those that it reaches."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.nodes.operation import signature_type
from dynbatch.reporting.reasons import REACH

ROWS = (3, 1, 2)


def weight(name):
    return db.Parameter(np.random.default_rng(0).standard_normal((2, 2)), name)


def batches(graph, node_type):
    """The number of nodes in each batch of a type, in order."""
    steps = [step for plan in graph.plans for step in plan.steps]
    named = [step for step in steps if signature_type(step.signature).__name__ == node_type]
    return [len(step.nodes) for step in named]


def matrices(graph):
    return [F.input(graph, np.full((rows, 2), rows / 2)) for rows in ROWS]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_infinite_slope_of_what_no_loss_reads_makes_no_gradient_nan(policy):
    first, gradients = weight("first"), []
    for beside in (False, True):
        first.zero_grad()
        with db.Graph(dtype="float64", policy=policy) as graph:
            xs = [F.linear(x, first).keep() for x in matrices(graph)]
            loss = F.sum([F.sum(F.log(F.exp(x))) for x in xs])
            unread = [F.log(F.relu(x) * 0.0).keep() for x in xs if beside]
            graph.backward(loss)
            assert all([np.isneginf(node.value).all() for node in unread])
            gradients.append([first.grad, *[x.gradient for x in xs]])
    for alone, in_company in zip(*gradients, strict=True):
        assert np.isfinite(alone).all()
        np.testing.assert_array_equal(in_company, alone)


def kept(x):
    x.keep()
    return []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "read",
    [kept, lambda x: [F.argmax(x, dim=0)], lambda x: [F.detach(x)]],
    ids=["by no loss", "by an argmax", "detached"],
)
def test_a_parameter_that_no_gradient_reaches_has_none(read, policy):
    first, second = weight("first"), weight("second")
    with db.Graph(dtype="float64", policy=policy) as graph:
        losses = []
        for x in matrices(graph):
            read_by_losses = [F.tanh(F.linear(x, first)), *read(F.tanh(F.linear(x, second)))]
            losses += [F.sum(y) for y in read_by_losses]
        graph.backward(F.sum(losses))
    assert first.grad is not None
    assert second.grad is None


def test_without_a_loss_all_share_a_batch_and_explain_says_why_they_do_not():
    first, second = weight("first"), weight("second")
    for with_loss, sizes in ((False, [6]), (True, [3, 3])):
        with db.Graph(dtype="float64") as graph:
            xs = matrices(graph)
            losses = [F.sum(F.tanh(F.linear(x, first))) for x in xs]
            unread = [F.tanh(F.linear(x, second)).keep() for x in xs]
            if with_loss:
                graph.backward(F.sum(losses))
            else:
                graph.values([*losses, *unread])
            assert batches(graph, "Tanh") == sizes
            assert batches(graph, "Input") == [3]  # of no parameter, and for all
            assert (REACH in graph.explain()) is with_loss
            bound = graph.explain().split("lower bound ")[1]
            assert int(bound.split(",")[0].split(")")[0]) == graph.statistics.batches


def three_maps(x, p):
    return F.tanh(F.linear(x, p[0])), F.tanh(F.linear(x, p[1])), F.tanh(F.linear(x, p[2]))


three_maps_block = db.block(three_maps)


@pytest.mark.parametrize("read", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_a_blocks_weights_have_a_gradient_if_a_result_that_is_read_needs_them(read):
    weights = (weight("first"), weight("second"), weight("third"))
    with db.Graph(dtype="float64") as graph:
        results = [three_maps_block(x, weights) for x in matrices(graph)]
        graph.backward(F.sum([F.sum(each[k]) for each in results for k in read]))
        assert batches(graph, "three_maps") == [3]
    assert [k for k, each in enumerate(weights) if each.grad is not None] == list(read)


def test_calls_of_a_block_whose_results_are_read_otherwise_are_batches_of_their_own():
    weights = (weight("first"), weight("second"), weight("third"))
    reads, gradients = [(0,), (0, 1), (0,)], []
    for function in (three_maps_block, three_maps):
        for each in weights:
            each.zero_grad()
        with db.Graph(dtype="float64") as graph:
            results = [function(x, weights) for x in matrices(graph)]
            pairs = zip(results, reads, strict=True)
            graph.backward(F.sum([F.sum(each[k]) for each, read in pairs for k in read]))
            if function is three_maps_block:
                assert sorted(batches(graph, "three_maps")) == [1, 2]
        gradients.append([each.grad for each in weights])
    for inside, outside in zip(gradients[0][:2], gradients[1][:2], strict=True):
        np.testing.assert_allclose(inside, outside, rtol=1e-5)
    assert gradients[0][2] is gradients[1][2] is None


@db.cell
def logarithm(x, p):
    return F.log(F.linear(x, p))


@db.cell
def squashed(x, p):
    return F.tanh(F.linear(x, p))


@pytest.mark.parametrize("policy", POLICIES)
def test_calls_that_no_loss_reads_are_in_regions_of_their_own(policy):
    first, second, gradients = weight("first"), weight("second"), []
    first.replace(np.eye(2))
    for beside in (False, True):
        first.zero_grad()
        with db.Graph(dtype="float64", policy=policy) as graph:
            read = logarithm(F.input(graph, [1.0, 2.0]), first)
            if beside:
                unread = logarithm(F.input(graph, [0.0, 1.0]), first).keep()
                squashed(read, second).keep()
            graph.backward(F.sum(read))
            assert not beside or unread.value.tolist() == [-np.inf, 0]
            assert batches(graph, "RegionNode") == [1] * (1 + 2 * beside)
        gradients.append(first.grad)
    np.testing.assert_array_equal(gradients[0], gradients[1])
    assert second.grad is None
