"""`recompute`: what backward makes again gives the gradients that keeping everything gives."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.cells.scan import prefix
from dynbatch.cells.scan.scan import Scan
from dynbatch.nodes.batch import Batch
from dynbatch.testing.precision import dense_gradient
from tests.cells.cell_cases import CASES, D, H
from tests.cells.step_by_step import assert_equal_outcomes, outcome
from tests.marks import quick
from tests.poison import poisoned_memory

SETTINGS = (1, 2, 3, "sqrt", 100)
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=12)

some_cases = pytest.mark.parametrize(
    "case",
    [CASES[name] for name in ("lstm", "gru", "attention_in_the_recurrence", "keys_and_values")],
    ids=lambda case: case.cell.__name__,
)


@pytest.fixture
def threads():
    """Sets the number of threads; afterwards it is what it was."""
    before = db.num_threads()
    yield db.set_num_threads
    db.set_num_threads(before)


def assert_same(case, batch, steps=SETTINGS, **graph):
    """Every outcome with these settings is that of keeping everything."""
    expected = outcome(db.scan, case.cell, batch, **graph)
    for each in steps:
        with poisoned_memory():
            found = outcome(partial(db.scan, recompute=each), case.cell, batch, **graph)
        assert_equal_outcomes(found, expected, 1e-11)


@pytest.mark.parametrize("case", quick(list(CASES.values())[1::3], CASES.values()), ids=list(CASES))
def test_gradients_are_those_of_keeping_everything(case):
    batch = case.batch()
    batch.reverse = len(case.cell.__name__) % 2 == 0
    assert_same(case, batch)


@some_cases
@pytest.mark.parametrize("lengths", [(0, 0), (1,), (7,), (0, 17, 1, 0, 2), (1, 1, 1)])
def test_any_lengths(case, lengths):
    assert_same(case, case.batch(lengths))
    assert_same(case, case.batch(lengths, zeros=True), (2, "sqrt"))


@some_cases
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_threads(case, count, threads):
    threads(count)
    assert_same(case, case.batch(np.random.default_rng(0).integers(0, 9, 30)))


@some_cases
@pytest.mark.parametrize("guarded", [{"check": True}, {"guard": True}], ids=["check", "guard"])
def test_graphs_that_look_at_every_batch(case, guarded):
    assert_same(case, case.batch(), (1, "sqrt"), **guarded)


@some_cases
def test_values_read_before_backward_and_without_one(case):
    batch = case.batch()
    run = partial(db.scan, recompute=2)
    expected = outcome(db.scan, case.cell, batch)
    found = outcome(run, case.cell, batch, before_backward=True)
    assert_equal_outcomes(found, expected, 1e-11)
    values = outcome(db.scan, case.cell, batch, grad=False)
    with poisoned_memory():
        assert_equal_outcomes(outcome(run, case.cell, batch, grad=False), values, 1e-12)


def test_frozen_weights():
    case = CASES["lstm"]
    batch = case.batch()
    for parameter in batch.parameters[::2]:
        parameter.frozen = True
    assert_same(case, batch)


def test_masks_of_a_recurrence_are_the_same_when_it_runs_again():
    @db.cell
    def dropping(x, h, p):
        h = F.tanh(F.dropout(0.9 * h, 0.5) + F.dropout(x, 0.5))
        return h, h

    def gradient(recompute):
        with db.Graph(dtype="float64", seed=2) as graph:
            x = F.input(graph, np.random.default_rng(0).standard_normal((9, 20))).keep()
            ys, _ = db.scan(dropping, x, 20, recompute=recompute)
            graph.backward(F.sum(ys * ys))
            return x.gradient

    expected = gradient(None)
    assert np.count_nonzero(expected == 0) > 20
    for steps in (1, 4):
        np.testing.assert_allclose(gradient(steps), expected, rtol=1e-12, atol=1e-14)


def test_a_second_loss_runs_forward_again():
    weight = db.Parameter(np.array([[0.5, -1.0], [0.25, 2.0]]), "weight")

    @db.cell
    def attending(x, h, p, memory):
        h = F.tanh(x + F.linear(F.attention(h, memory), weight))
        return h, h

    def gradients(recompute):
        found = []
        with db.Graph(dtype="float64") as graph:
            x = F.input(graph, np.random.default_rng(0).standard_normal((5, 2)))
            ys, _ = db.scan(attending, x, 2, memory=x, recompute=recompute)
            losses = F.sum(ys), F.sum(ys * ys)
            graph.forward()
            for loss in losses:
                weight.zero_grad()
                graph.backward(loss)
                found.append(dense_gradient(weight))
        return found

    for found, expected in zip(gradients(2), gradients(None), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


# Less to hold ------------------------------------------------------------------------------------


def peak_of(recompute, lengths=(40,) * 8, width=16):
    """Bytes of the arena of one step of an LSTM."""
    lstm = models.LSTM(4, width, rng=0, recompute=recompute)
    with db.Graph() as graph:
        losses = [F.sum(lstm(F.constant(graph, 1.0, (n, 4)))) for n in lengths]
        graph.backward(F.sum(losses))
        return graph.peak_bytes


def test_chunks_take_less_memory():
    peaks = {steps: peak_of(steps) for steps in (None, 20, "sqrt", 5)}
    assert peaks[5] < peaks["sqrt"] < peaks[20] < peaks[None]
    assert peaks["sqrt"] < peaks[None] / 2
    assert peak_of(7) == peaks["sqrt"]


def test_gates_of_one_weight_take_no_more_room_than_weights_of_their_own():
    rooms = []
    for name in ("lstm", "lstm_by_gates"):
        case = CASES[name]
        batch = case.batch()
        with db.Graph(dtype="float64") as graph:
            xs = F.constant(graph, 1.0, (3, D))
            db.scan(case.cell, xs, (H, H), batch.params, return_state=False)
            (node,) = [node for node in graph.nodes if isinstance(node, Scan)]
            made = Batch([node], graph.dtype)
            rooms.append((Scan.workspace(made), Scan.workspace_backward(made)))
    assert all(one <= several for one, several in zip(*rooms, strict=True))


def test_a_batch_may_be_told_to_recompute_and_says_what_is_worth_a_try(monkeypatch):
    tried = []
    saved = Scan.saved.__func__

    def noted(node_type, batch):
        tried.append(Scan.recompute_choices(batch))
        return saved(node_type, batch)

    without = peak_of(None)
    monkeypatch.setattr(Scan, "saved", classmethod(noted))
    monkeypatch.setattr(Scan, "recompute_of", classmethod(lambda node_type, nodes: 7))
    assert peak_of(None) < without / 2
    assert tried[0] == [40, 20, 10, 7, 5, 3, 2, 1]
    assert Scan.recomputes and not db.Operation.recomputes


@pytest.mark.parametrize("recompute", ["sqr", -1, 1.5, True, [3]])
def test_other_settings_are_refused(recompute):
    with db.Graph() as graph, pytest.raises(ValueError, match="a number of steps, 1 or more"):
        db.scan(CASES["gru"].cell, F.constant(graph, 1.0, (2, D)), H, recompute=recompute)


# Chunks ----------------------------------------------------------------------------------------


@given(LENGTHS, st.integers(0, 7))
def test_chunks_hold_every_step_once_and_no_more_rows_than_said(lengths, steps):
    found = prefix.extents(np.array(lengths), steps)
    assert [e.first for e in found] == [0, *[e.end for e in found[:-1]]]
    assert found[-1].end == max(lengths)
    assert sum(e.rows for e in found) == sum(lengths)
    assert all(e.running == sum(n > e.first for n in lengths) for e in found)
    if steps:
        assert all(e.rows <= steps * np.count_nonzero(lengths) for e in found)
    else:
        assert len(found) == 1


@given(LENGTHS, st.integers(0, 5), st.integers(1, 3), st.booleans())
def test_chunks_are_scans_of_their_own(lengths, steps, shards, reverse):
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    layout = prefix.prefix_layout(np.array(lengths), offsets, reverse, shards)
    found = prefix.cut(layout, prefix.extents(np.array(lengths), steps))
    rows = np.concatenate([shard.order for chunk in found for shard in chunk])
    assert np.array_equal(np.sort(rows), np.arange(sum(lengths)))
    states = [row for chunk in found for x in chunk for row in range(x.found.start, x.found.stop)]
    assert states == [*range(sum(x.running for chunk in found[1:] for x in chunk))]
    for chunk in found:
        assert [x.span.start for x in chunk] == [0, *[x.span.stop for x in chunk[:-1]]]
        for shard, whole in zip(chunk, layout, strict=True):
            of_layout = np.arange(whole.span.start, whole.span.stop)
            in_place = whole.order[shard.place.start - whole.start : shard.place.stop - whole.start]
            assert np.array_equal(shard.order, in_place)
            earlier, inside = shard.earlier(), shard.earlier() >= 0
            step = -1 if not reverse else 1
            assert np.array_equal(shard.order[earlier[inside]], shard.order[inside] + step)
            first = shard.order[: shard.running]
            assert (earlier[: shard.running] < 0).all()
            if shard.first:
                before = whole.order[
                    np.isin(of_layout, np.arange(shard.before.start, shard.before.stop))
                ]
                assert np.array_equal(before, first + step)
            last = np.minimum(shard.lengths[: shard.running], shard.first + len(shard.steps)) - 1
            sentences = shard.sentences[: shard.running]
            token = shard.lengths[: shard.running] - 1 - last if reverse else last
            assert np.array_equal(shard.order[shard.last()], offsets[sentences] + token)
