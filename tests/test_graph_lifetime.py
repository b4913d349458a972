"""The end of a graph, runs that fail, and runs that are repeated."""

import gc
import weakref

import numpy as np
import pytest

import dynbatch as db
from benchmarks.memory.planned import loss_of
from dynbatch import nodes as F
from dynbatch.errors import GraphError, OutOfMemory
from dynbatch.memory import Pool
from dynbatch.testing import NanPool
from tests.marks import exhaustive
from tests.reference_models import Tagger, gradients, sentences, train
from tests.sentence_models import KINDS

BATCH = sentences([3, 1, 7, 0, 2])

pytestmark = pytest.mark.usefixtures("dead_memory_is_nan")


@db.cell
def summing(x, h, params):
    h = F.tanh(h * x)
    return h, h


# The end of a graph -------------------------------------------------------------------------------


def test_after_the_block_the_loss_and_kept_nodes_stay_readable():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        y = F.tanh(x)
        loss = F.sum(y)
        graph.backward(loss)
    assert loss.value == pytest.approx(np.tanh([1, 2]).sum())
    assert x.value.tolist() == [1, 2]
    with pytest.raises(GraphError, match="the graph is closed"):
        _ = y.value
    with pytest.raises(GraphError, match="the graph is closed"):
        F.tanh(x)
    with pytest.raises(GraphError, match="the graph is closed"):
        graph.backward(loss)


def read_gradients(*nodes):
    """Gradients of nodes, on the host and as copies on the graph's device."""
    return [[node.gradient.tolist() for node in nodes], [len(x.device_gradient) for x in nodes]]


def test_after_the_block_gradients_of_kept_nodes_stay_readable():
    with db.Graph() as graph:
        x, unread = F.input(graph, [1.0, 2.0]).keep(), F.input(graph, [3.0]).keep()
        mate = F.input(graph, [3.0, 4.0])
        graph.backward(F.sum(x * x * mate))
        inside = read_gradients(x, unread)
        late = F.exp(x).keep()
        assert late.value.shape == (2,)
    assert read_gradients(x, unread) == inside == [[[6, 16], [0]], [2, 1]]
    for node in (mate, late):
        with pytest.raises(GraphError, match=r"gradient of .*: the graph is closed"):
            _ = node.gradient


def test_after_the_block_gradients_stay_readable_on_a_gpu(cuda):
    with db.Graph(device="cuda") as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        graph.backward(F.sum(x * x))
    assert x.gradient.tolist() == cuda.asnumpy(x.device_gradient).tolist() == [2, 4]


def test_a_closed_graph_still_counts_its_nodes():
    with db.Graph() as graph:
        graph.backward(F.sum(F.tanh(F.input(graph, [1.0, 2.0]).keep())))
    graph.close()
    assert (len(graph), len(graph.nodes)) == (3, 0)


def test_what_ran_can_be_explained_after_the_block():
    model = Tagger()
    with db.Graph() as graph:
        graph.backward(F.mean(model.losses(graph, BATCH)))
        inside = graph.explain()
    assert graph.explain() == inside
    assert "LinearCrossEntropy +grad" in inside


def test_nothing_survives_its_graph_even_without_the_garbage_collector():
    model = Tagger()
    gc.disable()
    try:
        with db.Graph() as graph:
            losses = model.losses(graph, BATCH)
            ys, last = db.scan(summing, F.input(graph, [[1.0], [2.0]]), init=1)
            losses += [F.sum(ys), F.sum(last)]
            references = [weakref.ref(node) for node in graph._nodes]
            losses[0].value  # noqa: B018
            graph.backward(F.mean(losses))
            references += [weakref.ref(node) for node in graph._nodes]
            arenas = [weakref.ref(arena) for arena, _ in graph._executor._arenas._arenas]
        del losses, ys, last
        assert [ref() for ref in references if ref() is not None] == []
        assert [ref() for ref in arenas if ref() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("name", [name for name in KINDS if name != "driver"])  # has generators
def test_no_model_leaves_cycles_to_the_garbage_collector(name):
    """On a GPU what they hold would stay in its memory until the next collection."""
    build = KINDS[name]()

    def step():
        with db.Graph() as graph:
            graph.backward(loss_of(graph, build, [3, 1, 5]))

    step()  # traces and compiles
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        step()
        gc.collect()
        left = {type(x).__name__ for x in gc.garbage if type(x).__module__.startswith("dynbatch")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == set()


def test_an_exception_in_the_block_gives_the_memory_back():
    pool = Pool()
    with pytest.raises(KeyError), db.Graph(pool=pool) as graph:
        assert F.input(graph, [1.0]).value == 1
        assert pool.used_bytes > 0
        raise KeyError
    assert pool.used_bytes == 0


@pytest.mark.parametrize("steps", [200, exhaustive(1000)])
def test_all_steps_use_the_same_bytes(steps):
    model, pool = Tagger(), Pool()
    batches = [sentences([3, 1, 5], seed) for seed in range(4)]
    for step in range(steps):
        train(model, batches[step % 4], pool=pool)
        for parameter in model.parameters():
            parameter.value -= np.float32(0.01) * (
                parameter.grad.dense()
                if isinstance(parameter.grad, db.RowSparse)
                else parameter.grad
            )
            parameter.zero_grad()
        assert pool.used_bytes == 0
        if step == 10:
            reserved, allocations = pool.reserved_bytes, pool.upstream_allocations
    assert (pool.reserved_bytes, pool.upstream_allocations) == (reserved, allocations)


# A run that fails ---------------------------------------------------------------------------------


class Fails(db.Node):
    """The identity, until told to fail."""

    __slots__ = ()
    any_shape = True
    fails = ()

    def infer_shape(self, *shapes):
        return shapes[0]

    @classmethod
    def forward_batch(cls, batch, y, x):
        if "forward" in cls.fails:
            raise RuntimeError("broken")
        y.flat[...] = x.flat

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        if "backward" in cls.fails:
            raise RuntimeError("broken")
        dx.flat[...] = dy.flat


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("reads", [False, True])
def test_a_run_that_failed_can_be_repeated(monkeypatch, when, reads):
    parameter = db.Parameter(np.array([1.0, -2.0]))
    with db.Graph(dtype="float64") as graph:
        x = F.parameter(graph, parameter)
        hidden = F.tanh(Fails(F.tanh(x) * x))
        loss = F.sum(hidden * x)
        if reads:
            graph.forward()
        monkeypatch.setattr(Fails, "fails", (when,))
        if not (reads and when == "forward"):
            with pytest.raises(RuntimeError, match="broken"):
                graph.backward(loss)
        assert parameter.grad is None
        monkeypatch.setattr(Fails, "fails", ())
        graph.backward(loss)
    value = parameter.value
    with db.Graph(dtype="float64") as graph:
        y = F.input(graph, value).keep()
        graph.backward(F.sum(F.tanh(F.tanh(y) * y) * y))
        np.testing.assert_allclose(parameter.grad, y.gradient, rtol=1e-12)


def test_memory_that_runs_out_can_be_asked_for_again():
    pool = Pool(limit_bytes=4096)
    with db.Graph(pool=pool) as graph:
        x = F.tanh(F.input(graph, np.ones((1000, 2))))
        with pytest.raises(OutOfMemory, match="limit"):
            _ = x.value
        pool.limit_bytes = None
        assert x.value.shape == (1000, 2)
        assert len(graph.plans) == 1


# Determinism --------------------------------------------------------------------------------------


def test_two_runs_give_the_same_plan_and_the_same_bits():
    model, outcomes, plans = Tagger(), [], []
    for _ in range(2):
        with db.Graph(pool=NanPool()) as graph:
            loss = F.mean(model.losses(graph, BATCH))
            graph.backward(loss)
            plans.append(graph.plans[0])
        outcomes.append([loss.value, *gradients(model)])
    assert plans[0] == plans[1]
    for a, b in zip(*outcomes, strict=True):
        assert np.array_equal(a, b)


def test_dropout_of_a_sentence_does_not_depend_on_its_neighbours():
    sentence, other = np.ones((5, 3)), np.full((4, 3), 2.0)

    def masks(batch):
        with db.Graph(seed=7) as graph:
            nodes = [F.dropout(F.input(graph, x), 0.5) for x in batch]
            return {x.shape: node.value for x, node in zip(batch, nodes, strict=True)}

    alone = masks([sentence])[5, 3]
    assert 0 < np.count_nonzero(alone) < alone.size
    assert np.array_equal(masks([sentence, other])[5, 3], alone)
    assert np.array_equal(masks([other, sentence])[5, 3], alone)
