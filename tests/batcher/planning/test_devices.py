"""A step is planned for a GPU without one, and takes there what was planned, to the byte."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dynbatch as db
from benchmarks.memory.planned import MODELS, held, loss_of
from dynbatch import backend
from dynbatch import nodes as F
from dynbatch.batcher.steps.parameter_gradients import Claim
from dynbatch.errors import BackendError, GraphError
from dynbatch.kernels.cuda.runtime import queue as queue_module
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.dry_run import DryQueue
from dynbatch.memory import Pool
from dynbatch.memory.upstream import DeviceMemory
from dynbatch.parameter import Parameter
from dynbatch.testing.precision import dense_gradient
from tests.marks import exhaustive
from tests.sentence_models import KINDS

LENGTHS = (5, 3, 1, 11, 4)
OTHERS = [name for name in KINDS if name not in (*MODELS, "driver")]  # which values decide


@pytest.fixture
def parameters(monkeypatch: pytest.MonkeyPatch) -> list[Parameter]:
    """All parameters that the test makes."""
    made: list[Parameter] = []
    init = Parameter.__init__

    def record(self: Parameter, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        made.append(self)

    monkeypatch.setattr(Parameter, "__init__", record)
    return made


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """CuPy is not installed, until the patches are undone."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", None)
        yield patch


@pytest.mark.cuda
@pytest.mark.parametrize("limited", [False, True], ids=["whole", "within a limit"])
@pytest.mark.parametrize("name", [*MODELS, *map(exhaustive, OTHERS)])
def test_a_step_takes_on_a_gpu_what_was_planned_without_one(
    name: str, limited: bool, parameters: list[Parameter], no_cupy: Any, request: Any
) -> None:
    build = KINDS[name]()
    with db.Graph(seed=3) as graph:
        loss = loss_of(graph, build, LENGTHS)
        limit = int(0.9 * graph.estimate(loss, device="cuda").peak_bytes) if limited else None
        planned = graph.estimate(loss, limit, device="cuda")
    no_cupy.undo()

    request.getfixturevalue("cuda")
    device = backend.device("cuda")
    for parameter in parameters:
        parameter.to("cuda")
    pool = Pool(upstream=DeviceMemory(device))
    with db.Graph("cuda", seed=3, pool=pool) as graph:
        loss = loss_of(graph, build, LENGTHS)
        assert graph.estimate(loss, limit) == planned
        uploaded = queue().uploaded_bytes
        graph.backward(loss, limit)
        assert queue().uploaded_bytes - uploaded == planned.tables_bytes > 0
        assert graph.memory_use == planned
        assert graph.peak_bytes == planned.peak_bytes
    read = [p for p in parameters if p.grad is not None or (p.frozen and p.size > 1)]  # no count
    assert {
        "arena": pool.statistics().peak_requested_bytes,
        "parameters": sum([held(parameter.value) for parameter in read]),
        "gradients": sum([held(parameter.grad) for parameter in read]),
    } == {
        "arena": planned.peak_bytes,
        "parameters": planned.parameter_bytes,
        "gradients": planned.gradient_bytes,
    }


def test_a_plan_for_a_gpu_differs_from_that_for_the_cpu_and_leaves_the_graph_as_it_was(
    no_cupy: Any,
) -> None:
    build = KINDS["transformer"]()
    with db.Graph(seed=3) as graph:
        loss = loss_of(graph, build, LENGTHS)
        own = graph.estimate(loss)
        there = graph.estimate(loss, device="cuda:1")
        assert there.peak_bytes != own.peak_bytes  # of norms a GPU keeps the input, say
        assert graph.estimate(loss, device="cpu") == own == graph.estimate(loss)
        graph.backward(loss)
        assert graph.memory_use == own


def test_values_can_be_planned_without_a_loss(cuda: Any) -> None:
    x = np.ones((3, 4), np.float32)
    with db.Graph() as graph:
        F.softmax(F.input(graph, x))
        planned = graph.estimate(device="cuda")
    with db.Graph("cuda") as graph:
        F.softmax(F.input(graph, x))
        graph.forward()
        assert graph.memory_use == planned
    assert (planned.parameter_bytes, planned.gradient_bytes) == (0, 0)


def test_gradients_of_rows_are_planned_with_their_numbers_on_the_cpu_alone() -> None:
    table = db.Parameter(np.ones((50, 4), np.float32))
    table.frozen_rows = [7]
    with db.Graph() as graph:
        rows = [F.lookup(graph, table, ids) for ids in ([1, 2, 2], [7, 1, 9])]
        loss = F.sum([F.sum(each) for each in rows])
        assert graph.estimate(loss, device="cuda").gradient_bytes == 3 * 4 * 4
        planned = graph.estimate(loss)
        graph.backward(loss)
    assert planned.gradient_bytes == 3 * (4 * 4 + 8) == table.grad.nbytes  # type: ignore[union-attr]
    assert planned.parameter_bytes == 50 * 4 * 4
    assert "parameters 800; their gradients 72; index tables" in str(planned)
    assert planned.device_bytes is None and "in all" not in str(planned)


def test_a_dry_run_leaves_parameters_alone_that_another_thread_trains(no_cupy: Any) -> None:
    weight, table = db.Parameter(np.ones((3, 4), np.float32)), db.Parameter(np.ones((5, 4)))
    arrays = [(each.value, each.gradient_state) for each in (weight, table)]
    claim = Claim()
    claim.take([weight, table])
    with db.Graph() as graph:
        loss = F.sum(F.linear(F.lookup(graph, table, [1, 4, 1]), weight))
        use = graph.estimate(loss, device="cuda")
        arrays[1] = table.value, table.gradient_state  # which took the graph's dtype
    for parameter, (value, state) in zip((weight, table), arrays, strict=True):
        assert parameter.value is value and parameter.gradient_state == state == (None, None)
    assert (use.parameter_bytes, use.gradient_bytes) == (4 * (12 + 20), 4 * (12 + 8))
    assert use.device_bytes is not None and use.tables_bytes > 0
    assert use.device_bytes > use.peak_bytes + 4 * (12 + 20) + 4 * (12 + 8)
    assert f"in all {use.device_bytes:,}" in str(use)
    claim.release()


def test_gradients_that_parameters_have_stay_as_they_are(no_cupy: Any) -> None:
    build = KINDS["tagger"]()
    with db.Graph(seed=3) as graph:
        graph.backward(loss_of(graph, build, LENGTHS))
    with db.Graph(seed=3) as graph:
        loss = loss_of(graph, build, LENGTHS)
        read = {p.uid: p for node in graph.nodes for p in node.all_parameters()}.values()
        before = [(p.grad, dense_gradient(p)) for p in read if p.grad is not None]
        limit = int(0.4 * graph.estimate(loss, device="cuda").peak_bytes)
        assert "micro-batches" in graph.estimate(loss, limit, device="cuda").saving
    assert len(before) > 3
    trained = [parameter for parameter in read if parameter.grad is not None]
    for (grad, numbers), parameter in zip(before, trained, strict=True):
        assert parameter.grad is grad
        np.testing.assert_array_equal(dense_gradient(parameter), numbers)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_dry_run_that_breaks_off_leaves_nothing_behind(
    error: type[BaseException], no_cupy: Any, monkeypatch: Any
) -> None:
    launch, calls = DryQueue.launch, itertools.count()

    def broken(self: Any, *given: Any, **named: Any) -> Any:
        if next(calls) == 9:
            raise error("broken")
        return launch(self, *given, **named)

    with db.Graph(seed=3) as graph:
        loss = loss_of(graph, KINDS["tagger"](), LENGTHS)
        planned = graph.estimate(loss, device="cuda")
        with monkeypatch.context() as patch:
            patch.setattr(DryQueue, "launch", broken)
            with pytest.raises(error, match="broken"):
                graph.estimate(loss, device="cuda")
        assert backend.of_thread.module is None
        assert not any([isinstance(each, DryQueue) for each in queue_module._local.queues.values()])
        own = graph.estimate(loss)
        assert graph.estimate(loss, device="cuda") == planned
        graph.backward(loss)
        assert graph.memory_use == own


def test_tables_of_new_batches_are_planned_where_a_graph_has_run(cuda: Any) -> None:
    weight = db.Parameter(np.ones((3, 4), np.float32)).to("cuda")

    def built(graph: db.Graph) -> db.Node:
        return F.tanh(F.linear(F.input(graph, np.ones((5, 4))), weight))

    def loss_of_some(y: db.Node) -> db.Node:
        return F.sum(F.exp(F.gather_rows(y, [4, 0, 4])))

    with db.Graph("cuda") as graph:
        y = built(graph)
        value = y.value
        loss = loss_of_some(y)
        told = graph.explain()
        planned = graph.estimate(loss)
        assert graph.explain() == told and np.array_equal(y.value, value)
        before = queue().uploaded_bytes
        graph.backward(loss)
        assert 0 < planned.tables_bytes <= queue().uploaded_bytes - before
        assert planned.device_bytes is not None and planned.device_bytes > planned.peak_bytes
        gradient = dense_gradient(weight)
    weight.zero_grad()
    with db.Graph("cuda") as graph:
        graph.backward(loss_of_some(built(graph)))
    np.testing.assert_array_equal(dense_gradient(weight), gradient)


def test_devices_that_cannot_be_planned_for_are_refused() -> None:
    with db.Graph() as graph:
        x = F.tanh(F.input(graph, np.ones(3)))
        with pytest.raises(BackendError, match="device 'tpu' is unknown"):
            graph.estimate(device="tpu")
        assert x.value.size == 3
        F.exp(x)
        with pytest.raises(GraphError, match=r"has run on cpu, and device is 'cuda'(?s:.*)before"):
            graph.estimate(device="cuda")
        assert graph.estimate(device="cpu") == graph.estimate()


def test_a_device_that_is_planned_for_has_a_name_and_no_arrays(no_cupy: Any) -> None:
    assert [backend.planned_device(name).name for name in ("cpu", "cuda", "cuda:2")] == [
        "cpu", "cuda", "cuda:2",
    ]  # fmt: skip
    with pytest.raises(BackendError, match=r"is planned for, and has no arrays(?s:.*)is_cuda"):
        _ = backend.planned_device("cuda").xp
