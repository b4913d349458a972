"""Inference frees what no variable holds, runs what somebody can ask for, and loses nothing."""

import random

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import FreedError

linear = models.Linear(4, 4, rng=0)
lstm = models.LSTM(4, 4, rng=0)


@db.block
def two_results(x):
    hidden = F.tanh(linear(x))
    return hidden, F.softmax(hidden * 2.0)


def rows(graph, count=3, seed=0):
    return F.input(graph, np.random.default_rng(seed).standard_normal((count, 4)))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_peak_of_a_chain_is_that_of_three_values_however_long_it_is(device, request):
    if device == "cuda":
        request.getfixturevalue("cuda")
    layer = models.Linear(64, 64, rng=0).to(device)
    for length in (3, 12):
        values = {}
        for grad in (False, True):
            with db.Graph(device, grad=grad) as graph:
                h = x = F.input(graph, np.linspace(-1, 1, 200 * 64).reshape(200, 64))
                for _ in range(length):
                    h = F.tanh(layer(h))
                planned = graph.estimate()
                values[grad] = h.value
                assert graph.peak_bytes == planned.peak_bytes
                assert graph.memory_use.by_cause == planned.by_cause
                if not grad:
                    assert graph.peak_bytes == 3 * 200 * 64 * 4
                    assert np.abs(x.value).max() == 1
        np.testing.assert_array_equal(values[False], values[True])


def test_what_a_variable_a_list_or_a_name_holds_can_be_read():
    with db.Graph(grad=False) as graph:
        hidden = F.tanh(linear(rows(graph)))
        listed = [F.relu(hidden * 2.0)]
        F.sigmoid(listed[0]).named("gate")
        kept = F.exp(graph["gate"]).keep().index
        y = F.sum(F.log(graph.nodes[kept]))
        first = y.value
        runs = len(graph.plans)
        np.testing.assert_array_equal(listed[0].value, np.maximum(hidden.value * 2, 0))
        np.testing.assert_allclose(graph["gate"].value.sum(), first, rtol=1e-6)
        assert (graph.nodes[kept].value > 1).all()
        assert len(graph.plans) == runs  # nothing ran twice


def test_reading_a_freed_value_says_how_to_keep_it():
    with db.Graph(grad=False) as graph:
        y = F.sum(F.tanh(linear(rows(graph))))
        _ = y.value
        with pytest.raises(FreedError, match=r"Tanh #2: the value was freed after its last reader"):
            _ = y.inputs[0].value
        with pytest.raises(FreedError, match=r"fix:  call node.keep\(\) before the run"):
            _ = F.exp(graph.nodes[1]).value
        assert np.isfinite(y.value)
        assert len(graph.plans) == 1


def test_the_error_names_the_node_that_is_read_and_not_another_of_its_batch():
    with db.Graph(grad=False) as graph:
        sums = [F.sum(F.tanh(rows(graph, n))) for n in (2, 3, 4)]
        _ = sums[0].value
        with pytest.raises(FreedError, match="Tanh #4"):
            _ = F.exp(sums[1].inputs[0]).value
        assert np.isfinite([one.value for one in sums]).all()


@pytest.mark.parametrize("grad", [False, True])
def test_nodes_that_nobody_can_ask_for_run_with_forward_alone(grad):
    with db.Graph(grad=grad) as graph:
        x = rows(graph)
        F.exp(linear(x))
        y = F.tanh(x)
        _ = y.value
        assert graph.statistics.nodes == 2
        for _ in range(3):  # they are passed over once
            _ = F.relu(y).value
            assert not graph._pending
        runs = graph.statistics.nodes
        graph.forward()
        assert graph.statistics.nodes == runs + 2
        np.testing.assert_array_equal(graph.nodes[2].value, np.exp(linear(x).value))


def test_what_waits_for_a_later_run_finds_its_inputs():
    with db.Graph(grad=False) as graph:
        middle = F.tanh(linear(rows(graph)))
        a, b = F.sum(F.exp(middle)), F.sum(F.relu(middle * 3.0))
        number = middle.index
        del middle
        graph.values([a])
        runs = graph.statistics.nodes
        assert b.value > 0  # from the value of `middle`
        assert graph.statistics.nodes == runs + 3
        np.testing.assert_allclose(np.exp(graph.nodes[number].value).sum(), a.value, rtol=1e-6)


def test_forward_passes_over_dead_nodes_whose_inputs_were_freed():
    with db.Graph(grad=False) as graph:
        hidden = F.tanh(linear(rows(graph)))
        dead = F.exp(F.sum(hidden)).index
        y = F.relu(hidden)
        del hidden
        first = y.value
        waits = F.exp(y)
        graph.forward()
        np.testing.assert_array_equal(waits.value, np.exp(first))
        with pytest.raises(FreedError, match="Tanh #2"):
            _ = graph.nodes[dead].value


def test_a_result_of_a_block_that_waits_for_a_later_run_stays():
    with db.Graph(grad=False) as graph:
        hidden, result = two_results(rows(graph))
        first = graph.values([hidden])[0]
        np.testing.assert_array_equal(result.value, F.softmax(F.input(graph, first) * 2.0).value)
        hidden, result = two_results(rows(graph))
        end = F.sum(result * result)
        del result
        graph.values([hidden])
        assert end.value > 0


@pytest.mark.parametrize("holds", [False, True])
def test_logits_that_a_loss_makes_itself_stay_readable_if_held(holds):
    with db.Graph(grad=False) as graph:
        logits = linear(F.tanh(rows(graph)))
        loss = F.cross_entropy(logits, [0, 1, 2])
        number = logits.index
        if not holds:
            del logits
        _ = loss.value
        if holds:
            expected = F.cross_entropy(F.input(graph, logits.value), [0, 1, 2]).value
            np.testing.assert_allclose(loss.value, expected, rtol=1e-6)
        else:
            with pytest.raises(FreedError):
                _ = graph.nodes[number].value


def test_views_results_of_blocks_tokens_and_calls_stay_readable():
    seen = {}
    for grad in (False, True):
        with db.Graph(grad=grad, seed=0) as graph:
            x = rows(graph, 5)
            view = F.detach(F.tanh(linear(x)))
            _, result = two_results(F.relu(x))
            outputs = lstm(F.exp(x))
            token = outputs[3]
            end = F.sum(F.concat([view, result, outputs])) + F.sum(F.tanh(token))
            _ = end.value
            seen[grad] = [node.value for node in (end, view, result, outputs, token)]
            assert len(graph.plans) == 1
    for freed, all_kept in zip(seen[False], seen[True], strict=True):
        np.testing.assert_array_equal(freed, all_kept)


FUNCTIONS = [F.tanh, F.relu, F.exp, linear, F.detach, F.softmax, lambda x: F.reshape(x, (-1, 4)),
             lambda x: two_results(x)[1], lambda x: x[0:2] if len(x) > 2 else x]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_no_held_value_is_lost_and_all_have_the_bits_of_a_graph_that_keeps_all(seed):
    def values(grad):
        chooses = random.Random(seed)
        with db.Graph(grad=grad, seed=0) as graph:
            nodes, read = [rows(graph, n, n) for n in (3, 5, 1)], []
            for _ in range(60):
                x = chooses.choice(nodes) * 0.5
                y = chooses.choice(FUNCTIONS)(x)
                if chooses.random() < 0.3:
                    y = F.concat([y, chooses.choice(FUNCTIONS)(y)], dim=0)
                nodes.append(y)
                if chooses.random() < 0.6:
                    nodes.pop(chooses.randrange(len(nodes)))
                if chooses.random() < 0.1:
                    read.append(chooses.choice(nodes).value)
                if chooses.random() < 0.1:
                    read += graph.values([chooses.choice(nodes)])
            del x, y
            return [*read, *[node.value for node in nodes]], graph.peak_bytes

    freed, low = values(False)
    kept, high = values(True)
    for a, b in zip(freed, kept, strict=True):
        np.testing.assert_array_equal(a, b)
    assert low < high


@pytest.mark.parametrize("settings", [{"check": True}, {"guard": True}, {"policy": "one_by_one"}])
def test_inference_can_be_checked_and_dumped(settings, tmp_path):
    with db.Graph(grad=False, **settings) as graph:
        y = F.sum(F.tanh(linear(rows(graph))))
        _ = y.value
        assert "Tanh" in graph.explain()
        graph.dump(tmp_path / "graph.npz")
    assert db.testing.replay(tmp_path / "graph.npz") is None
