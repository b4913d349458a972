"""A step that comes again is one launch of a CUDA graph. Not run on a card."""

from functools import partial

import numpy as np
import pytest

from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.runtime import replays, source
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.packing import PerStep
from dynbatch.kernels.cuda.runtime.queue import Queue

TEXT = source.join(
    "replayed.cu",
    """
    // x[i] += table[i % 3] for i < n.
    extern "C" __global__ void __launch_bounds__(32) add_some(REAL* x, const int* table, int n) {
        const long long i = thread_in_grid();
        if (i < n) x[i] += table[i % 3];
    }
    // x[i] *= factor for all i < n, by as many blocks as there are, which are counted.
    extern "C" __global__ void scale_all(REAL* x, REAL factor, int n, int* blocks) {
        for (long long i = thread_in_grid(); i < n; i += threads_in_grid()) x[i] *= factor;
        if (threadIdx.x == 0) blocks[blockIdx.x] = gridDim.x;
    }
    """,
)


@pytest.fixture(params=[np.float32, np.float64])
def queue(request, cupy, monkeypatch):
    monkeypatch.setattr(replays, "MOST_ROWS", 64)
    made = Queue(cupy)
    made.kernels(request.param).add(TEXT)
    made.dtype = np.dtype(request.param)
    return made


class Step:
    """Two kernels on the first n numbers of an array of its own."""

    def __init__(self, queue, n, seed=0):
        rng = np.random.default_rng(seed)
        self.queue, self.n = queue, n
        self.table, self.factor = rng.integers(0, 9, 3), float(rng.integers(2, 5))
        self.x = queue.cupy.zeros(n, queue.dtype)
        self.blocks = queue.cupy.zeros(16, np.int32)

    def add(self, *more):
        queue, grid = self.queue, (-(-self.n // 32),)
        queue.launch(queue.dtype, "add_some", grid, (32,), (self.x, self.table, self.n))
        for each in more:
            each()
        args = (self.x, self.factor, self.n, self.blocks)
        queue.launch(queue.dtype, "scale_all", (-(-grid[0] // 2),), (32,), args)

    def run(self, *more):
        """Run it; how many launches there were, of kernels and graphs."""
        before = self.queue.launches
        with self.queue.repeating():
            self.add(*more)
        self.queue.flush()
        self.require()
        return self.queue.launches - before

    def require(self):
        expected = self.table[np.arange(self.n) % 3] * self.factor
        np.testing.assert_array_equal(self.x.get(), expected)
        count = -(-self.n // 64)
        assert self.blocks.get().tolist() == [count] * count + [0] * (16 - count)


def test_a_step_is_one_launch_from_the_second_time_on(queue):
    assert [Step(queue, 100, seed).run() for seed in range(4)] == [2, 1, 1, 1]
    found = queue.replays
    assert (found.new, found.captured, found.replayed, found.refused) == (1, 1, 3, {})
    assert str(found) == (
        "3 steps replayed, of 1 graph; 1 launched one by one, whose kernels were new"
    )


def test_a_graph_serves_every_size_of_its_bucket_with_the_arrays_and_tables_of_each(queue):
    sizes = [100, 97, 128, 110, 33, 64, 40, 500, 512, 385]
    assert [Step(queue, n, n).run() for n in sizes] == [2, 1, 1, 1, 2, 1, 1, 2, 1, 1]
    assert queue.replays.captured == 3


def test_other_kernels_are_another_graph(queue):
    def third():
        args = (step.x, np.zeros(3, int), step.n)
        queue.launch(queue.dtype, "add_some", (4,), (32,), args)

    steps = []
    for more in ((), (third,), (), (third,), (third, third)):
        step = Step(queue, 100)
        steps.append(step.run(*more))
    assert steps == [2, 3, 1, 1, 4]


def test_without_the_switch_or_outside_of_a_repeated_step_launches_are_as_ever(queue, monkeypatch):
    for _ in range(3):
        step, before = Step(queue, 100), queue.launches
        step.add()
        queue.flush()
        step.require()
        assert queue.launches - before == 2
    monkeypatch.setattr(replays, "MOST_ROWS", 0)
    assert [Step(queue, 100).run() for _ in range(3)] == [2, 2, 2]
    assert not queue.replays.replayed and not queue.replays.new


def test_a_step_without_launches_is_no_graph(queue):
    for _ in range(3):
        with queue.repeating():
            pass
        queue.flush()
    assert not queue.launches and not queue.replays.new


def test_what_no_graph_can_hold_is_started_as_ever_and_says_why(queue):
    def call():
        queue.label = "a node"
        queue.call(lambda: None)

    def product():
        queue.label = "Linear(3)"
        x, y = [queue.cupy.zeros((70, 70), queue.dtype) for _ in range(2)]
        queue.keep(x, y)
        queue.cublas(queue.dtype).gemm(
            False, True, 70, 70, 70, x.data.ptr, 70, x.data.ptr, 70, 0, y.data.ptr, 70
        )

    assert [Step(queue, 100).run(call) for _ in range(3)] == [2, 2, 2]
    assert [Step(queue, 100).run(product) for _ in range(2)] == [3, 3]
    assert queue.replays.refused == {
        "a node: a call of Python between its kernels": 3,
        "Linear(3): a product of 70 rows, which cuBLAS makes": 2,
    }
    assert str(queue.replays).endswith(
        "\n  3 launched one by one: a node: a call of Python between its kernels"
        "\n  2 launched one by one: Linear(3): a product of 70 rows, which cuBLAS makes"
    )


def test_a_step_of_which_a_part_was_started_before_says_so(queue):
    assert [Step(queue, 100).run(queue.flush) for _ in range(3)] == [2, 2, 2]
    assert queue.replays.refused == {"a part of it was started before the rest was queued": 3}


def loop(step):
    queue = step.queue
    steps = PreparedLoop(queue, queue.dtype, 3)
    numbers = np.array([step.n, 40, 0])
    grid, nothing = (-(-numbers // 32),), np.zeros(3, int)
    steps.kernel("add_some", grid, (32,), (step.x, nothing, PerStep(numbers)))
    return steps


def add_loop(step):
    step.queue.add(loop(step))


def add_steps_of_a_loop(step):
    steps = loop(step)
    for number in range(3):
        step.queue.add(steps.step(number))


def add_branches(step):
    def branch():
        for _ in range(16):  # so that it is worth a stream
            args = (step.x, np.zeros(3, int), 100)
            step.queue.launch(step.queue.dtype, "add_some", (4,), (32,), args)

    step.queue.side_by_side([branch] * 2)


@pytest.mark.parametrize(
    ("add", "launches"), [(add_loop, 2), (add_steps_of_a_loop, 2), (add_branches, 32)]
)
def test_loops_and_branches_are_in_the_graph_too(queue, add, launches):
    found = []
    for seed in range(3):
        step = Step(queue, 100, seed)
        found.append(step.run(partial(add, step)))
    assert found == [2 + launches, 1, 1]


def test_a_step_with_more_tables_than_before_has_the_device_memory_of_a_new_graph(queue):
    def more():
        args = (step.x, np.zeros(1 << 18, int), step.n)
        queue.launch(queue.dtype, "add_some", (4,), (32,), args)

    for sizes in ((), (more,), (more,), (), ()):
        step = Step(queue, 100)
        step.run(*sizes)
    assert queue.replays.replayed == 3 and not queue.replays.refused


def test_another_stream_waits_for_what_the_last_step_reads(queue):
    stream = queue.cupy.cuda.Stream(non_blocking=True)
    steps = [Step(queue, 100, seed) for seed in range(6)]
    queue.cupy.cuda.Device().synchronize()
    for number, step in enumerate(steps):
        with queue.repeating():
            step.add()
        if number % 2:
            queue.flush()
        else:
            with stream:
                queue.flush()
    queue.cupy.cuda.Device().synchronize()
    for step in steps:
        step.require()
    assert queue.replays.replayed == 5


def test_a_failed_step_names_what_was_queued_and_the_next_one_runs(queue, monkeypatch):
    def refuse(*args):
        raise RuntimeError("no graph")

    Step(queue, 100).run()
    with monkeypatch.context() as patch:
        patch.setattr(replays, "capture", refuse)
        queue.label = "step 7"
        with pytest.raises(BackendError, match=r"step 7: a step as one CUDA graph .*no graph"):
            Step(queue, 100).run()
    assert Step(queue, 100).run() == 1


def test_graphs_and_known_steps_are_bounded(queue, monkeypatch):
    monkeypatch.setattr(replays, "MOST_GRAPHS", 2)
    monkeypatch.setattr(replays, "MOST_KNOWN", 3)
    for n in (40, 100, 200, 400) * 2:
        Step(queue, n).run()
    assert queue.replays.replayed == 0  # each was forgotten when it came again
    for n in (40, 100, 40, 100, 200, 200):
        Step(queue, n).run()
    assert len(queue.replays._graphs) == 2 and len(queue.replays._known) == 3


def test_a_table_of_another_upload_is_refused(queue):
    Step(queue, 100).run()
    with queue.repeating():
        Step(queue, 100).add()
    works = [*queue._waiting]
    queue.flush()
    with queue.repeating():
        queue.add_all(works)
    with pytest.raises(BackendError, match=r"a table of upload 1 is read in upload 2"):
        queue.flush()


def test_a_capture_that_fails_counts_no_launch_and_is_tried_again(queue, monkeypatch):
    Step(queue, 100).run()
    kernels, before, calls = queue.kernels(queue.dtype), queue.launches, []
    start = kernels.driver_launch

    def fails_in_the_middle(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("the driver's word")
        start(*args)

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "driver_launch", fails_in_the_middle)
        with pytest.raises(BackendError, match="a step as one CUDA graph failed on the GPU"):
            Step(queue, 100).run()
    assert queue.launches == before and not queue.waiting()
    assert [Step(queue, 100, seed).run() for seed in range(2)] == [1, 1]
    assert (queue.replays.captured, queue.replays.replayed) == (1, 2)
