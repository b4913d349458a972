"""A run that is done again: the same steps, with what their nodes read from outside."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import OutOfMemory
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.memory import Pool


def outputs(graph, model, inputs):
    """Nodes that need views, packed copies, moves and scratch."""
    lengths = {len(x): model(x) for x in inputs}
    turned = [F.reverse(x)[:, 1:] for x in inputs]
    rows = F.concat([*turned, *[y[:, :2] for y in lengths.values()]], dim=0)
    return [F.tanh(rows), *lengths.values()]


def counts_of(graph):
    found = graph.statistics
    return [found.nodes, found.batches, found.launches, found.copied_bytes]


def test_a_repeated_run_computes_what_a_new_graph_computes():
    rng, pool = np.random.default_rng(0), Pool()
    model = models.LSTM(3, 4)
    arrays = [rng.standard_normal((n, 3)).astype(np.float32) for n in (4, 1, 2)]
    graph = db.Graph(grad=False, pool=pool)
    inputs = [F.input(graph, x) for x in arrays]
    nodes = outputs(graph, model, inputs)
    graph.forward()
    again, counts = graph.repeated(), counts_of(graph)
    recorded = len(graph)
    for turn in range(4):
        for node, array in zip(inputs, arrays, strict=True):
            array[...] = rng.standard_normal(array.shape)
            node.array[...] = array
        again.run()
        with db.Graph(grad=False) as fresh:
            expected = outputs(fresh, model, [F.input(fresh, x) for x in arrays])
            for node, one in zip(nodes, expected, strict=True):
                assert node.value.tobytes() == one.value.tobytes()
        assert counts_of(graph) == [(turn + 2) * count for count in counts]
        assert len(graph) == recorded and len(graph._executor.plans) == 1
        held = pool.used_bytes
        if turn % 2:
            again.rest()
            assert pool.used_bytes == 0 < held
    graph.close()
    assert pool.used_bytes == 0


def test_a_rounding_counts_as_a_launch_no_more_when_a_run_is_repeated():
    model = models.Linear(70, 9, rng=0)
    with db.Graph(grad=False, precision="bfloat16") as graph:
        x = F.input(graph, np.ones((6, 70), np.float32))
        y = F.softmax(F.tanh(model(F.tanh(x))) * 2.0)
        graph.forward()
        assert graph._executor.plans and y.shape == (6, 9)
        again, launches = graph.repeated(), graph.statistics.launches
        rounded = again._memory.graph.rounded
        assert any(rounded.values())
        for turn in range(3):
            again.run()
            assert graph.statistics.launches == (turn + 2) * launches


def test_a_run_without_room_for_its_arena_may_be_tried_again():
    pool = Pool(limit_bytes=1 << 16)
    graph = db.Graph(grad=False, pool=pool)
    node = F.tanh(F.input(graph, np.ones((100, 30))))
    expected = node.value
    again = graph.repeated()
    again.rest()
    other = pool.take(14_000, np.dtype("float32"), "something else")
    with pytest.raises(OutOfMemory):
        again.run()
    pool.give(other)
    again.run()
    assert node.value.tobytes() == expected.tobytes()
    graph.close()
    assert pool.used_bytes == 0


def feed_forward(model, x):
    """Kernels that are one call of C each, some with arrays of their own."""
    hidden = F.gelu(F.linear(F.layer_norm(x, *model[:2]), *model[2:4]), "tanh")
    return F.rms_norm(x + F.linear(hidden, model[4]), model[5])


@pytest.fixture
def feeding():
    """A graph that ran, its model and input, and the run that goes on."""
    rng, pool = np.random.default_rng(3), Pool()
    shapes = [(6,), (6,), (8, 6), (8,), (6, 8), (6,)]
    model = [db.Parameter(rng.standard_normal(s).astype(np.float32), str(s)) for s in shapes]
    with db.Graph(grad=False, pool=pool) as graph:
        node = F.input(graph, rng.standard_normal((5, 6)).astype(np.float32))
        y = feed_forward(model, node)
        graph.forward()
        yield model, node, y, graph.repeated()


def computed_anew(model, array):
    with db.Graph(grad=False) as graph:
        return feed_forward(model, F.input(graph, array)).value.tobytes()


def test_kernels_that_follow_one_another_in_c_are_one_call(feeding):
    model, node, y, again = feeding
    again.run()
    assert len(again._actions) == 7
    again.run()
    # The input is copied by Python.
    assert len(again._actions) == (7 if library.reason() else 2)
    assert y.value.tobytes() == computed_anew(model, node.array)


def test_a_repeated_run_reads_the_arrays_that_parameters_have_now(feeding):
    model, node, y, again = feeding
    again.run()
    again.run()
    for k, parameter in enumerate(model):
        parameter.value = parameter.value[::-1].copy() + k
        again.run()
        assert y.value.tobytes() == computed_anew(model, node.array)
        parameter.value[...] += 1
        again.run()
        assert y.value.tobytes() == computed_anew(model, node.array)


def test_on_a_gpu_launches_are_queued_again_and_read_what_parameters_are_now(cuda, monkeypatch):
    rng = np.random.default_rng(3)
    shapes = [(6,), (6,), (8, 6), (8,), (6, 8), (6,)]
    model = [db.Parameter(rng.standard_normal(s).astype(np.float32), str(s)) for s in shapes]
    for parameter in model:
        parameter.to("cuda")
    queued, launch = [], Queue.launch
    monkeypatch.setattr(Queue, "launch", lambda self, *a: queued.append(a[1]) or launch(self, *a))

    def launches_of(run):
        queued.clear()
        before = queue().launches
        run()
        queue().flush()
        return queue().launches - before, len(queued)

    with db.Graph("cuda", grad=False) as graph:
        array = rng.standard_normal((5, 6)).astype(np.float32)
        node = F.input(graph, array)
        y = feed_forward(model, node)
        graph.forward()
        again = graph.repeated()
        counts = []
        for turn in range(5):
            if turn == 2:
                model[2].assign(2 * model[2].numpy())
            if turn == 3:
                model[2].value = cuda.asarray(3 * model[2].numpy())
            counts.append(launches_of(again.run))
            with db.Graph("cuda", grad=False) as fresh:
                expected = feed_forward(model, F.input(fresh, array)).value
            np.testing.assert_array_equal(y.value, expected)
    # What is uploaded is queued each time; the rest anew for another array only.
    assert counts == [(6, 6), (6, 1), (6, 1), (6, 6), (6, 1)]


def test_on_a_gpu_another_thread_launches_with_what_is_its_own(cuda):
    """Its kernels' room for arguments, and its handles of cuBLAS, serve one thread at a time."""
    rng = np.random.default_rng(3)
    shapes = [(6,), (6,), (8, 6), (8,), (6, 8), (6,)]
    model = [db.Parameter(rng.standard_normal(s).astype(np.float32), str(s)) for s in shapes]
    for parameter in model:
        parameter.to("cuda")

    def launches_of(run):
        before = queue().launches
        run()
        queue().flush()
        return queue().launches - before

    with db.Graph("cuda", grad=False) as graph, ThreadPoolExecutor(1) as other:
        y = feed_forward(model, F.input(graph, rng.standard_normal((5, 6)).astype(np.float32)))
        graph.forward()
        again, here = graph.repeated(), queue().launches
        counts = [launches_of(again.run), other.submit(launches_of, again.run).result()]
        assert counts == [6, 6] and queue().launches == here + 6
        assert [launches_of(again.run), other.submit(launches_of, again.run).result()] == [6, 6]
        expected = y.value
        assert np.isfinite(expected).all()
