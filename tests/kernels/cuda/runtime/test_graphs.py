"""Graphs of a loop's steps give what its launches give one by one. Not run on a card."""

import numpy as np
import pytest

from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.runtime import graphs, source
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.packing import PerStep
from dynbatch.kernels.cuda.runtime.queue import Queue
from dynbatch.kernels.cuda.runtime.staging import DEPTH, Staging
from tests.cuda import nvrtc
from tests.marks import exhaustive

TEXT = source.join(
    "graphed.cu",
    """
    // x[i] += table[t] + t for i < n, and the number of blocks that have come.
    extern "C" __global__ void __launch_bounds__(32) add_table(
        REAL* x, const int* table, bool twice, int n, int* blocks, int t) {
        __shared__ int added;
        if (threadIdx.x == 0) added = table[t] + t;
        __syncthreads();
        const long long i = thread_in_grid();
        if (i < n) x[i] += (twice ? 2 : 1) * added;
        if (threadIdx.x == 0) blocks[blockIdx.x] += 1;
    }
    extern "C" __global__ void halve(REAL* x, REAL factor, int n) {
        const long long i = thread_in_grid();
        if (i < n) x[i] *= factor;
    }
    """,
)


@pytest.fixture(params=[np.float32, np.float64])
def queue(request, cupy):
    made = Queue(cupy)
    made.kernels(request.param).add(TEXT)
    made.dtype = np.dtype(request.param)
    return made


def run(queue, counts, seed=0):
    """Two kernels a step on the first numbers of x; the second not in each third step."""
    steps = len(counts)
    table = np.random.default_rng(seed).integers(0, 9, steps)
    numbers = np.array(counts)
    x = queue.cupy.zeros(max(counts), queue.dtype)
    blocks = queue.cupy.zeros(64, np.int32)
    loop = PreparedLoop(queue, queue.dtype, steps)
    grid, order = (-(-numbers // 32),), np.arange(steps)
    loop.kernel(
        "add_table", grid, (32,), (x, table, True, PerStep(numbers), blocks, PerStep(order))
    )
    loop.kernel("halve", grid, (32,), (x, 0.5, PerStep(numbers)), where=order % 3 > 0)
    queue.add(loop)
    before = queue.launches
    queue.flush()
    launches = queue.launches - before
    expected, came = np.zeros(max(counts)), np.zeros(64, int)
    for t, n in enumerate(counts):
        expected[:n] += 2 * (table[t] + t)
        expected[:n] *= 0.5 if t % 3 else 1
        came[: -(-n // 32)] += 1
    np.testing.assert_allclose(x.get(), expected)
    assert blocks.get().tolist() == came.tolist()
    return launches


def test_all_steps_run_with_their_own_arguments(queue, monkeypatch):
    """19 steps are three graphs of eight, whose last steps have nothing to do."""
    counts = [100] * 4 + [70] * 9 + [33, 32, 1, 1, 1, 1]
    assert run(queue, counts) == 19 + 12
    monkeypatch.setattr(graphs, "STEPS", 8)
    assert run(queue, counts) == 1 + 3


def test_all_loops_of_a_flush_have_one_upload(queue, monkeypatch):
    """The host fills one buffer, however many loops there are, and waits for none of them."""
    monkeypatch.setattr(graphs, "STEPS", 2)
    sizes, ready = [], Staging._ready
    monkeypatch.setattr(
        Staging, "_ready", lambda self, size: sizes.append(size) or ready(self, size)
    )
    x, loops = queue.cupy.asarray(np.ones(5, queue.dtype)), DEPTH + 2
    for _ in range(loops):
        loop = PreparedLoop(queue, queue.dtype, 4)
        loop.kernel("halve", (1,), (32,), (x, 0.5, PerStep(np.full(4, 5))))
        queue.add(loop)
    queue.flush()
    assert x.get().tolist() == [0.5 ** (4 * loops)] * 5
    assert len(sizes) == queue.uploads == 1 and queue.uploaded_bytes == sizes[0]


def test_a_graph_that_fails_leaves_nothing_behind(queue, monkeypatch):
    def refuse(self, *args):
        raise RuntimeError("no graph")

    monkeypatch.setattr(graphs, "STEPS", 4)
    with monkeypatch.context() as patch:
        patch.setattr(graphs.LoopGraphs, "_graph", refuse)
        with pytest.raises(BackendError, match=r"the graph of a loop failed.*no graph"):
            run(queue, [100] * 8)
    assert run(queue, [100] * 8) == 1 + 2


def test_a_bounded_number_of_graphs_and_streams_is_kept(queue, monkeypatch):
    """Those used last; a graph that went is captured again."""
    monkeypatch.setattr(graphs, "STEPS", 2)
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    monkeypatch.setattr(graphs, "MOST_PLACES", 2)
    for count, captured in ((32, 1), (64, 2), (32, 2), (128, 3), (32, 3), (64, 4)):
        run(queue, [count] * 2)
        assert queue.graphs.captured == captured
    assert len(queue.graphs._graphs) == 2
    kept = []
    for _ in range(3):
        kept.append(queue.cupy.cuda.Stream(non_blocking=True))
        with kept[-1]:
            run(queue, [7] * 2)
    assert list(queue.graphs._places) == [stream.ptr for stream in kept[1:]]


def test_a_graph_serves_every_mini_batch_of_its_bucket(queue, monkeypatch):
    monkeypatch.setattr(graphs, "STEPS", 4)
    run(queue, [100] * 8)
    assert queue.graphs.captured == 1
    run(queue, [128, 127, 97, 97, 100, 98, 99, 120], seed=1)
    assert queue.graphs.captured == 1  # of four blocks
    run(queue, [128, 127, 97, 97, 30, 30, 1], seed=1)
    assert queue.graphs.captured == 2  # and of one


def test_a_step_without_rows_is_left_out(queue, monkeypatch):
    monkeypatch.setattr(graphs, "STEPS", 2)
    run(queue, [5, 0, 0, 0, 5])


def test_a_short_loop_and_one_with_products_are_started_as_ever(queue, monkeypatch):
    monkeypatch.setattr(graphs, "STEPS", 8)
    run(queue, [3] * 7)
    loop = PreparedLoop(queue, queue.dtype, 8)
    x, y = queue.cupy.zeros((4, 4), queue.dtype), queue.cupy.zeros((4, 4), queue.dtype)
    loop.product(False, False, 4, 4, 4, x.data.ptr, 4, x.data.ptr, 4, 0, y.data.ptr, 4)
    loop.kernel("halve", (1,), (32,), (x, 0.5, 16))
    queue.add(loop)
    queue.flush()
    assert not queue.graphs.captured


@pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
@pytest.mark.parametrize("architecture", [*map(exhaustive, (75, 80, 86, 89, 100, 120)), 90])
def test_kernels_of_steps_keep_to_their_budgets(architecture):
    for given in (TEXT, source.read("additive.cu")):
        found = source.of_steps(given)
        for real in ("float", "double"):
            options = (f"-DREAL={real}",)
            kernels = nvrtc.compile_kernels(found.text, found.name, architecture, options)
            assert set(kernels) == {f"{name}_of_step" for name in given.kernels}
            for name, taken in kernels.items():
                assert taken.registers <= 64, (real, name)
                # In double attention spills: arguments that lie in memory take registers, too.
                assert taken.spilled_bytes <= (96 if real == "double" else 0), (real, name)
