"""`backward(memory_limit=)`: never exceeded, and the gradients are what they are without it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.execution import executor
from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.planning.recompute import freed_after_forward
from dynbatch.batcher.planning.stages import StageKind
from dynbatch.cells.scan.scan import Scan
from dynbatch.errors import MemoryLimitError, OutOfMemory
from dynbatch.kernels import arrays
from dynbatch.memory import Pool
from dynbatch.nodes.operation import ELEMENT
from dynbatch.testing import check_limits, load_graph, random_graphs, strategies
from dynbatch.testing.precision import dense_gradient
from tests.poison import poisoned_memory
from tests.random_examples import examples
from tests.reference_models import sentences

pytestmark = pytest.mark.usefixtures("short_search")


class Stack(models.Module):
    """A deep network of sentence-grain nodes: what a step of training holds grows with depth."""

    def __init__(self, layers=4, width=6):
        generator = np.random.default_rng(0)
        self.table = db.Parameter(generator.standard_normal((20, width)))
        self.scale = db.Parameter(np.full(width, 1.5))
        self.layers = [models.Linear(width, width) for _ in range(layers)]
        for parameter in self.parameters():
            parameter.replace(parameter.value.astype(np.float64))

    def loss(self, graph, words, tags):
        x = F.lookup(graph, self.table, words) * F.parameter(graph, self.scale)
        for layer in self.layers:
            x = F.layer_norm(x + F.dropout(F.gelu(layer(x)), 0.25))
        return F.cross_entropy(x, tags)


class Recurrent(models.Module):
    """A bi-LSTM, whose backward runs in two batches side by side."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.table = db.Parameter(generator.standard_normal((20, 4)), "table")
        self.encoder = models.LSTM(4, 3, bidirectional=True)
        self.output = models.Linear(6, 5)
        for parameter in self.parameters():
            parameter.replace(parameter.value.astype(np.float64))

    def loss(self, graph, words, tags):
        return F.cross_entropy(self.output(self.encoder(F.lookup(graph, self.table, words))), tags)


def step(model, batch, limit=None, measure=None, **settings):
    """The loss and all gradients of one mini-batch, and what was held."""
    for parameter in model.parameters():
        parameter.zero_grad()
    with db.Graph(dtype="float64", seed=3, **settings) as graph:
        loss = F.mean([model.loss(graph, *sentence) for sentence in batch])
        if measure is not None:
            measure(graph, loss)
        graph.backward(loss, memory_limit=limit)
        use = graph.memory_use
        assert use.peak_bytes == graph.peak_bytes
    return float(loss.value), [dense_gradient(p) for p in model.parameters()], use


def least(model, batch, **settings):
    """The smallest limit, as the error for a lower one says."""
    with db.Graph(dtype="float64", seed=3, **settings) as graph:
        loss = F.mean([model.loss(graph, *sentence) for sentence in batch])
        with pytest.raises(MemoryLimitError, match="memory_limit is 1 bytes") as caught:
            graph.backward(loss, memory_limit=1)
        found = caught.value.least_bytes
        assert f"needs {found:,} at the least" in str(caught.value)
        graph.backward(loss)  # the graph is as it was
    return found


def test_a_limit_that_is_too_low_names_the_largest_sentence():
    model, batch = Stack(), sentences([5, 1, 9, 3])
    with db.Graph(dtype="float64") as graph:
        loss = F.mean([model.loss(graph, *sentence) for sentence in batch])
        with pytest.raises(MemoryLimitError, match="micro-batches, sentence 2 the largest of them"):
            graph.backward(loss, memory_limit=1)


@pytest.mark.parametrize("kind", [Stack, Recurrent])
def test_no_limit_between_the_minimum_and_the_peak_is_exceeded_and_gradients_are_equal(kind):
    model, batch = kind(), sentences([5, 1, 9, 3, 3, 7, 0, 2])
    loss, gradients, whole = step(model, batch)
    minimum = least(model, batch)
    assert minimum < 0.5 * whole.peak_bytes
    told = set()
    for limit in np.linspace(minimum, whole.peak_bytes, 5).astype(int).tolist():
        with poisoned_memory():
            same, others, use = step(model, batch, limit)
        assert use.peak_bytes <= limit
        np.testing.assert_allclose(same, loss, rtol=1e-12)
        for one, other in zip(gradients, others, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)
        told.add(use.saving)
    assert "" in told
    assert any("micro-batches" in saving for saving in told)
    if kind is Stack:  # forward runs again, and the mini-batch stays whole
        assert any(saving.startswith("recompute ") for saving in told)


def test_an_estimate_with_a_limit_equals_what_is_measured():
    model, batch = Stack(), sentences([5, 1, 9, 3])
    _, _, whole = step(model, batch)
    limit = whole.peak_bytes * 2 // 3
    planned = []
    _, _, use = step(
        model, batch, limit, lambda graph, loss: planned.append(graph.estimate(loss, limit))
    )
    assert planned == [use]
    assert use.saving


@pytest.mark.slow
@examples(4)
@given(strategies.random_graphs())
def test_no_limit_changes_a_number_of_a_random_graph(random_graph):
    with poisoned_memory():
        check_limits(random_graph)


@pytest.mark.parametrize("seed", [318, 486])
@pytest.mark.parametrize("joins", ["F.sum", "+"])
def test_what_parts_share_is_made_again_once(seed, joins):
    with poisoned_memory():
        random_graph = replace(random_graphs.draw(seed), joins=joins, backwards=1, reads=0)
        check_limits(random_graph, policies=["by_bound"], shares=[0.0])


def test_gradients_add_to_what_was_there_and_stay_if_the_loss_is_not_finite():
    model, batch = Recurrent(), sentences([4, 2, 6])
    _, gradients, _ = step(model, batch)
    limit = least(model, batch)
    with db.Graph(dtype="float64", seed=3) as graph:
        graph.backward(F.mean([model.loss(graph, *s) for s in batch]), memory_limit=limit)
        assert "3 micro-batches" in graph.memory_use.saving
    # `least` has left its own backward's gradients, and those of `step` were there before.
    for parameter, one in zip(model.parameters(), gradients, strict=True):
        np.testing.assert_allclose(dense_gradient(parameter), 3 * one, rtol=1e-9, atol=1e-12)
    before = [dense_gradient(p).copy() for p in model.parameters()]
    with db.Graph(dtype="float64") as graph:
        losses = [model.loss(graph, *s) for s in batch]
        losses[1] = losses[1] / F.constant(graph, 0.0)
        with pytest.raises(db.errors.NumericError):
            graph.backward(F.mean(losses), memory_limit=2 * limit)
    for parameter, one in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(dense_gradient(parameter), one)


def test_a_failure_within_a_part_leaves_gradients_and_pool_as_they_were(monkeypatch):
    model, batch, pool = Recurrent(), sentences([4, 2, 6]), Pool()
    limit = least(model, batch)
    for parameter in model.parameters():
        parameter.zero_grad()
    with db.Graph(dtype="float64", pool=pool) as graph:
        loss = F.mean([model.loss(graph, *s) for s in batch])
        calls = []

        def broken(kind, *args):
            calls.append(kind)
            raise RuntimeError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(Scan, "backward_batch", classmethod(broken))
            with pytest.raises(RuntimeError, match="broken"):
                graph.backward(loss, memory_limit=limit)
        assert calls
        assert pool.used_bytes == 0
        assert all(p.grad is None for p in model.parameters())
        graph.backward(loss, memory_limit=limit)
        assert any(p.grad is not None for p in model.parameters())


def test_what_cannot_be_split_says_why():
    model = Stack()
    with db.Graph(dtype="float64") as graph:
        losses = [model.loss(graph, *s) for s in sentences([3, 4])]
        with pytest.raises(OutOfMemory, match=r"cannot be split: Exp #\d+ joins sentences"):
            graph.backward(F.exp(F.mean(losses)), memory_limit=100)
        _ = losses[0].value
        loss = F.mean(losses)
        _ = loss.value
        with pytest.raises(
            OutOfMemory, match="was computed before, and values stay: call backward first"
        ):
            graph.backward(loss, memory_limit=100)
        graph.backward(loss)


def test_what_is_recomputed_is_told_as_a_share_of_forward():
    embed, tall = models.Embedding(5, 8, rng=0), models.Linear(8, 64, rng=0)
    project = models.Linear(64, 8, rng=0)
    with db.Graph() as graph:
        hidden = F.tanh(tall(embed(graph, [1] * 50)))
        loss = F.cross_entropy(project(hidden), [2] * 50)
        whole = graph.estimate(loss)
        use = graph.estimate(loss, memory_limit=whole.peak_bytes - 1_000)
    assert whole.recompute_share == 0
    forward = 50 * (ELEMENT * 8 + (8 * 64 + ELEMENT * 64) + ELEMENT * 64 + 8 * (64 + ELEMENT))
    assert use.saving == "recompute Lookup"
    assert use.recompute_share == 50 * ELEMENT * 8 / forward


@pytest.mark.parametrize("limit", ["two", "", 0, -5, "3 feet", True, "1.2.3MB"])
def test_a_limit_is_a_number_of_bytes(limit):
    with db.Graph() as graph:
        loss = F.sum(F.input(graph, [1.0]).keep())
        with pytest.raises(ValueError, match=r"memory_limit: .* is not a number of bytes"):
            graph.backward(loss, memory_limit=limit)
        graph.backward(loss, memory_limit="1 KiB")


@pytest.mark.parametrize("mode", ["check", "guard"])
def test_limits_hold_where_every_batch_is_looked_at(mode):
    model, batch = Stack(), sentences([5, 1, 9, 3])
    _, gradients, whole = step(model, batch)
    for limit in (whole.peak_bytes // 2, least(model, batch, **{mode: True})):
        _, others, use = step(model, batch, limit, **{mode: True})
        assert use.peak_bytes <= limit
        for one, other in zip(gradients, others, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [Stack, Recurrent])
def test_a_gpu_keeps_to_a_limit(cuda, kind):
    model, batch = kind(), sentences([5, 1, 9, 3])
    loss, gradients, whole = step(model, batch)
    model.to("cuda")
    minimum = least(model, batch, device="cuda")
    for limit in (whole.peak_bytes * 2 // 3, minimum):
        same, others, use = step(model, batch, limit, device="cuda")
        assert use.peak_bytes <= limit
        np.testing.assert_allclose(same, loss, rtol=1e-12)
        for one, other in zip(gradients, others, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)
    assert "micro-batches" in use.saving


def test_where_a_pool_has_no_room_the_error_says_what_would_fit():
    model, batch = Stack(), sentences([5, 1, 9, 3, 3, 7, 0, 2])
    _, _, whole = step(model, batch)
    pool = Pool(limit_bytes=whole.peak_bytes // 2)
    with db.Graph(dtype="float64", seed=3, pool=pool) as graph:
        loss = F.mean([model.loss(graph, *s) for s in batch])
        with pytest.raises(OutOfMemory) as caught:
            graph.backward(loss)
        message = str(caught.value)
        assert f"peak: {whole.peak_bytes:,} bytes: " in message
        assert "kept for backward " in message
        assert "by type LayerNormalization " in message
        assert "about 3 of its 8 sentences fit in the " in message
        limit = int(message.split("memory_limit=")[1].split(")")[0])
        assert limit <= pool.limit_bytes
        graph.backward(loss, memory_limit=limit)  # as it advises
        assert graph.memory_use.saving in message
    with db.Graph(dtype="float64", seed=3, pool=Pool(limit_bytes=1000)) as graph:
        with pytest.raises(OutOfMemory, match="not one sentence fits in the 768 bytes left"):
            graph.backward(F.mean([model.loss(graph, *s) for s in batch]))


@db.cell
def joined(x, y):
    return F.tanh(x * y) + y


def test_a_cell_that_joins_sentences_reads_their_values():
    model, batch = Recurrent(), sentences([4, 2, 6])
    with db.Graph(dtype="float64") as graph:
        total, *others = [model.loss(graph, *s) for s in batch]
        for loss in others:
            total = joined(total, loss)
        with pytest.raises(MemoryLimitError, match=r"split: .* joins sentences") as caught:
            graph.backward(total, memory_limit=1)
        graph.backward(total, memory_limit=caught.value.least_bytes)


@pytest.mark.parametrize("stage", [0, 7, 14, 21, 28])
def test_an_interrupt_brings_gradients_of_before_back(monkeypatch, stage):
    model, batch = Recurrent(), sentences([4, 2, 6])
    limit = least(model, batch)
    for parameter in model.parameters():
        parameter.grad = np.ones(parameter.shape)
    model.table.grad = db.RowSparse(np.array([1, 3]), np.ones((2, 4)), (20, 4))
    before = [parameter.grad for parameter in model.parameters()]
    run_stage, stages = Executor._run_stage, []

    def interrupted(self, *args, **named):
        stages.append(None)
        if len(stages) == stage + 1:
            raise KeyboardInterrupt
        return run_stage(self, *args, **named)

    monkeypatch.setattr(Executor, "_run_stage", interrupted)
    with db.Graph(dtype="float64") as graph, pytest.raises(KeyboardInterrupt):
        graph.backward(F.mean([model.loss(graph, *s) for s in batch]), memory_limit=limit)
    for parameter, one in zip(model.parameters(), before, strict=True):
        assert parameter.grad is one
        assert (dense_gradient(parameter) <= 1).all()


@pytest.mark.parametrize("where", ["commit", "add", "flush"])
def test_where_adding_up_fails_no_gradient_is_half_of_one(monkeypatch, where):
    model, batch = Recurrent(), sentences([4, 2, 6])
    limit = least(model, batch)
    for parameter in model.parameters():
        parameter.grad = np.ones(parameter.shape)
    before = [parameter.grad for parameter in model.parameters()]
    calls, copy = [], arrays.copy

    def broken(*args):
        calls.append(args)
        if where == "add" and len(calls) < 3:
            return copy(*args)
        if where != "flush" or len(calls) == 1:
            raise MemoryError

    with db.Graph(dtype="float64") as graph, pytest.raises(MemoryError):
        loss = F.mean([model.loss(graph, *s) for s in batch])
        graph._executor.run(graph._request(loss, limit))
        if where == "flush":
            monkeypatch.setattr(graph._executor, "flush", broken)
        elif where == "add":
            monkeypatch.setattr(arrays, "copy", broken)
        else:
            monkeypatch.setattr(executor, "add_left", broken)
        graph._executor.finish(add_gradients=True)
    for parameter, one in zip(model.parameters(), before, strict=True):
        # As before, or forgotten; never some of what the parts left.
        assert parameter.grad is None or (parameter.grad is one and (one == 1).all())
    assert all(p.grad is None for p in model.parameters()) is (where != "commit")


def test_parts_use_the_memory_of_gradients_of_the_step_before():
    model, batch = Recurrent(), sentences([4, 2, 6])
    limit = least(Recurrent(), batch)  # this model has run nothing yet
    step(model, batch, limit)
    first = [p.grad for p in model.output.parameters()]
    step(model, batch, limit)
    assert all(p.grad is one for p, one in zip(model.output.parameters(), first, strict=True))


def test_what_backward_reads_is_not_taken_for_free_to_free(monkeypatch):
    model, batch = Stack(layers=1), sentences([5, 3, 4, 6])
    model.layers *= 2  # the products of one layer wait for each other, until the end of a part
    limit = least(model, batch)
    parts = []

    def checked(plan):
        freed = freed_after_forward(plan)
        blocks = {block for step in freed for block in step.blocks}
        for stage in plan.stages:
            for one in stage.steps if stage.is_backward else ():
                for position, source in enumerate(one.sources):
                    if one.node_type.retains.input(position) and not one.is_structural:
                        assert blocks.isdisjoint(source.blocks)
        parts.append(sum(stage.kind is StageKind.ACCUMULATE for stage in plan.stages))
        return freed

    monkeypatch.setattr("dynbatch.batcher.planning.recompute_search.freed_after_forward", checked)
    step(model, batch, limit)
    assert max(parts) > 1


def test_explain_and_dump_tell_parts_from_runs(tmp_path):
    model, batch = Recurrent(), sentences([4, 2, 6])
    limit = least(model, batch)
    with db.Graph(dtype="float64", seed=3) as graph:
        loss = F.mean([model.loss(graph, *s) for s in batch])
        graph.backward(loss, memory_limit=limit)
        assert len(graph.plans) > 1
        assert "another part of the mini-batch: memory_limit" in graph.explain()
        assert "an earlier run" not in graph.explain()
        graph.dump(tmp_path / "graph.npz")
    with load_graph(tmp_path / "graph.npz") as loaded:
        assert loaded.runs == loaded.losses
        assert len(loaded.runs) == 1
