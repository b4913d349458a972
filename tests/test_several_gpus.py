"""GPUs by number, with a stand-in for CuPy that has several: each run is on the one it names."""

import threading

import numpy as np
import pytest

import dynbatch as db
from dynbatch import backend, models, optim
from dynbatch import nodes as F
from dynbatch.errors import BackendError
from tests.cuda import devices
from tests.cuda.fake_cupy import settings


@pytest.fixture
def cp():
    with devices.device("shuffled") as module, module.cuda.Device(0):
        settings.devices = 3
        yield module


def step(device, elsewhere="cpu"):
    """A loss, and a weight after one step, of a model on a device; others are current between."""
    model = models.Linear(3, 2, rng=0).to(device)
    optimizer, average = optim.Adam(model, 0.1), optim.Average(model)
    with db.Graph(device=device) as graph:
        rows = [F.input(graph, np.full((n, 3), 0.5, np.float32)) for n in (1, 4)]
        loss = F.mean([F.sum(F.tanh(model(row))) for row in rows])
        graph.backward(loss)
        backend.device(elsewhere).use()
        value = loss.value.item()
    backend.device(elsewhere).use()
    optim.clip_grad_norm_(model, 0.1)
    backend.device(elsewhere).use()
    optimizer.step()
    backend.device(elsewhere).use()
    average.update()
    return value, model.weight


def test_a_model_is_trained_on_the_gpu_that_is_named(cp):
    for number in (0, 2):
        value, weight = step(f"cuda:{number}", "cuda:1")
        assert abs(value - step("cpu")[0]) < 1e-5
        np.testing.assert_allclose(weight.numpy(), step("cpu")[1].numpy(), rtol=1e-5)
        assert weight.device == backend.device(f"cuda:{number}")
        assert weight.value.data.device_id == number


def test_graphs_on_two_gpus_take_turns(cp):
    models_of = [models.Linear(3, 2, rng=0).to(f"cuda:{k}") for k in (0, 1)]
    graphs = [db.Graph(device=f"cuda:{k}") for k in (0, 1)]
    nodes = []
    for graph, model in zip(graphs, models_of, strict=True):
        nodes.append(model(F.input(graph, np.ones((2, 3), np.float32))))
    found = [node.value for node in nodes]
    again = [node.value for node in reversed(nodes)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(again, found[::-1])
    for graph in reversed(graphs):
        graph.close()


def test_another_thread_runs_a_graph_on_its_gpu(cp):
    model = models.Linear(3, 2, rng=0).to("cuda:1")
    found = []

    def run():
        with db.Graph(device=model.weight.device) as graph:
            found.append(model(F.input(graph, np.ones((1, 3), np.float32))).value)
        found.append(cp.cuda.runtime.getDevice())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    with db.Graph() as graph:
        wanted = models.Linear(3, 2, rng=0)(F.input(graph, np.ones((1, 3), np.float32))).value
    np.testing.assert_allclose(found[0], wanted, rtol=1e-6)
    assert found[1] == 1


def test_a_model_moves_from_one_gpu_to_another(cp):
    model = models.Linear(3, 2, rng=0)
    before = model.weight.numpy()
    for device in ("cuda:2", "cuda:0", "cpu", "cuda:1"):
        model.to(device)
        assert model.weight.device.name == device
        np.testing.assert_array_equal(model.weight.numpy(), before)


def test_arrays_of_two_gpus_in_one_graph_are_refused(cp):
    model = models.Linear(3, 2, rng=0).to("cuda:1")
    with cp.cuda.Device(2):
        array = cp.zeros((1, 3), np.float32)
    with db.Graph(device="cuda:0") as graph:
        with pytest.raises(BackendError, match="'weight' is on the cuda:1, the graph on cuda:0"):
            model(F.input(graph, np.ones((1, 3), np.float32)))
        with pytest.raises(BackendError, match="the array is on cuda:2, the graph on cuda:0"):
            F.input(graph, array)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cuda:3", "this machine has 3 GPUs, counted from 0"),
        ("cuda:", "device 'cuda:' is unknown"),
        ("cuda:one", "device 'cuda:one' is unknown"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(cp, name, told):
    with pytest.raises(BackendError, match=told):
        backend.device(name)
