"""GPUs by number, with a stand-in for CuPy that has several: each run is on the one it names."""

import threading
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import backend, models, optim
from dynbatch import nodes as F
from dynbatch.errors import BackendError
from dynbatch.generation.engine import Engine
from dynbatch.kernels.arrays import fill
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.parameter import ModelBuffer, Parameter
from dynbatch.train.moment import Moment
from dynbatch.train.watch import Watched
from tests.cuda import devices
from tests.cuda.fake_cupy import settings
from tests.generation.tiny_models import tiny

pytestmark = pytest.mark.cuda


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


def texts(model, elsewhere, **settings):
    """The text of an engine whose steps find another GPU current."""
    with Engine(model, step_tokens=4) as engine:
        numbers = []
        for prompt in ([3, 1, 2, 5, 4, 1], [7], [4, 4]):
            elsewhere.use()
            numbers.append(engine.add(prompt, max_new_tokens=4, **settings))
        while not engine.is_idle:
            elsewhere.use()
            engine.step()
        elsewhere.use()
        return [[one.tokens for one in engine.results(number)] for number in numbers]


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3, "suppress_tokens": (3,)},
        {"do_sample": True, "top_k": 20, "num_return_sequences": 2, "seed": 3},
        {"num_beams": 3, "num_return_sequences": 2},
        {"process": lambda logits, ids: logits if backend.device("cuda:0").use() is None else None},
    ],
    ids=["edits", "samples", "beams", "hook"],
)
@pytest.mark.parametrize("name", ["gpt2", "t5", "lstm"])
def test_an_engine_writes_on_the_gpu_of_its_model(cp, name, settings):
    wanted = texts(tiny(name), backend.CPU, **settings)
    assert texts(tiny(name).to("cuda:1"), backend.device("cuda:0"), **settings) == wanted


def test_engines_on_two_gpus_take_turns(cp):
    engines = [Engine(tiny("gpt2").to(f"cuda:{k}")) for k in (0, 1)]
    for engine in engines:
        engine.add([3, 1, 2], max_new_tokens=4)
    while not engines[0].is_idle:
        for engine in engines:
            engine.step()
    first, second = [engine.results(0)[0].tokens for engine in engines]
    assert first == second and len(first) == 4
    for engine in engines:
        engine.add([3, 1, 2], num_beams=2, max_new_tokens=4)
        engine.step()
    for engine in engines:  # which gives back pages of the GPU that is not current
        engine.close()
        assert engine.caches.lent_bytes == 0


def test_an_update_is_watched_on_the_gpu_of_its_model(cp):
    def watched(device, elsewhere):
        model = models.Linear(3, 2, rng=0).to(device)
        optimizer = optim.Adam(model, 0.1)
        with db.Graph(device=device) as graph:
            graph.backward(F.sum(F.tanh(model(F.input(graph, np.ones((2, 3), np.float32))))))
        elsewhere.use()
        found = Watched(optimizer)
        elsewhere.use()
        optimizer.step()
        elsewhere.use()
        found.updated()
        elsewhere.use()
        return found.statistics()

    on_gpu = watched("cuda:1", backend.device("cuda:0"))
    for name, statistics in watched("cpu", backend.CPU).items():
        for key, number in statistics.items():
            np.testing.assert_allclose(on_gpu[name][key], number, rtol=1e-4, err_msg=key)


def test_gradients_of_models_on_two_gpus_are_watched_together(cp):
    pairs = [Parameter(np.full(3, k + 1.0)).to(f"cuda:{k}") for k in (0, 1)]
    found = Watched(optim.SGD(pairs, 0.1))
    found.updated()
    assert [one["mean"] for one in found.statistics().values()] == [1.0, 2.0]


class Tagger(models.Module):
    def __init__(self):
        self.embed = models.Embedding(7, 4, rng=0)
        self.share = Parameter(np.full(3, 1 / 3, np.float32))
        self.mean = ModelBuffer(np.ones(4, np.float32))
        self.output = models.Linear(4, 3, rng=1)

    def loss(self, graph, words):
        return F.cross_entropy(self.output(self.embed(graph, words)) * self.share, words % 3)


ACTS = {
    "RowSparse.dense": lambda given: given.model.embed.weight.grad.dense(),
    "RowSparse.__add__": lambda given: (
        given.model.embed.weight.grad + given.model.embed.weight.grad
    ).values,
    "Graph.values": lambda given: given.graph.values([given.loss])[0],
    "Node.gradient": lambda given: given.loss.gradient,
    "Graph.device_value": lambda given: given.graph.device_value(given.loss),
    "Parameter.numpy": lambda given: given.model.output.weight.numpy(),
    "Parameter.assign": lambda given: (
        given.model.output.weight.assign(np.ones((3, 4))), given.model.output.weight.value
    )[1],
    "copy.deepcopy": lambda given: deepcopy(given.model).output.weight.value,
    "Moment.restore": lambda given: (
        given.moment.restore(None), given.model.mean.value
    )[1],
    "clip_grad_value_": lambda given: (
        optim.clip_grad_value_(given.model, 0.01), given.model.output.weight.grad
    )[1],
    "EG.step": lambda given: (
        optim.EG([given.model.share], 0.1).step(), given.model.share.value
    )[1],
    "Optimizer.load_state_dict": lambda given: (
        given.optimizer.load_state_dict(given.optimizer.state_dict()),
        given.optimizer.state_dict()["embed.weight/gradient_sum"],
    )[1],
    "Average.applied": lambda given: averaged(given.model),
    "db.predict": lambda given: db.predict(
        given.model.eval(), lambda graph, words: given.model.embed(graph, words), [WORDS]
    )[0],
}  # fmt: skip
WORDS = np.array([1, 5, 5, 2])


def averaged(model):
    average = optim.Average(model, decay=0.5)
    average.update()
    with average.applied():
        return model.output.weight.numpy()


def after(act, device, elsewhere):
    """The value of something behind an update, on the host."""
    model = Tagger().to(device)
    optimizer = optim.Adam([model.embed.weight, model.output.weight], 0.1)
    moment = Moment.now([model.mean], None)
    with db.Graph(device=device) as graph:
        loss = model.loss(graph, WORDS).keep()
        graph.backward(loss)
        optimizer.step(clear=False)
        model.mean.assign(np.zeros(4))
        elsewhere.use()
        return to_host(act(SimpleNamespace(**locals())))


@pytest.mark.parametrize("name", ACTS)
def test_whatever_is_done_uses_the_gpu_of_its_arrays(cp, name):
    found = after(ACTS[name], "cuda:1", backend.device("cuda:2"))
    np.testing.assert_allclose(found, after(ACTS[name], "cpu", backend.CPU), rtol=1e-4, atol=1e-6)


def test_a_parameter_is_shared_after_what_is_queued_for_its_gpu(cp):
    parameter = Parameter(np.zeros(3, np.float32)).to("cuda:1")
    for number, copy in ((7.0, None), (8.0, True)):
        backend.device("cuda:1").use()
        fill(parameter.value, number)
        backend.device("cuda:0").use()
        shared = parameter.__dlpack__(stream=-1, copy=copy).take()
        backend.device("cuda:1").use()
        assert shared.get().tolist() == [number] * 3


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
