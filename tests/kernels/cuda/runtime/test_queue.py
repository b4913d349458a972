"""Launches wait for one upload of all tables, and run in their order."""

import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from dynbatch.errors import BackendError, DtypeError, OutOfMemory, ShapeError
from dynbatch.kernels.cuda.runtime import source, streams
from dynbatch.kernels.cuda.runtime.cublas import MOST_HANDLES, Cublas
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.queue import Queue
from dynbatch.kernels.cuda.runtime.staging import DEPTH, FIRST_BYTES, Staging
from tests.cuda import devices, fake_cupy

STEPS = source.join(
    "steps.cu",
    """
    extern "C" __global__ void add_table(REAL* x, const int* table, int n) {
        const long long i = thread_in_grid();
        if (i < n) x[i] += table[i];
    }
    extern "C" __global__ void weigh(REAL* x, const REAL* weights, int n) {
        const long long i = thread_in_grid();
        if (i < n) x[i] *= weights[i];
    }
    """,
)
N = 33


@pytest.fixture
def queue(cupy):
    made = Queue(cupy)
    for dtype in ("float32", "float64"):
        made.kernels(dtype).add(STEPS)
    return made


def add(queue, x, table):
    queue.launch(x.dtype, "add_table", (2,), (32,), (x, table, N))


def weigh(queue, x, weights):
    queue.launch(x.dtype, "weigh", (2,), (32,), (x, weights, N))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_tables_of_a_run_come_up_in_one_copy(queue, dtype):
    x = queue.cupy.zeros(N, dtype)
    ids, weights = np.arange(N), np.linspace(0, 1, N)  # int64 and float64: staged as int and REAL
    add(queue, x, ids)
    weigh(queue, x, weights)
    add(queue, x, ids)
    assert queue.launches == queue.uploads == 0
    queue.flush()
    assert (queue.launches, queue.uploads) == (3, 1)
    expected = (ids * weights.astype(dtype)).astype(dtype) + ids
    np.testing.assert_allclose(x.get(), expected, rtol=1e-6)


def test_a_table_is_uploaded_once_however_often_it_is_read(queue):
    x, ids = queue.cupy.zeros(N, np.float32), np.arange(N)
    for _ in range(5):
        add(queue, x, ids)
    queue.flush()
    assert queue.uploaded_bytes == -(-4 * N // 16) * 16
    np.testing.assert_array_equal(x.get(), 5 * ids)


def test_a_table_is_taken_as_it_was_when_it_was_handed_over(queue):
    x, ids = queue.cupy.zeros(N, np.float32), np.arange(N, dtype=np.int32)
    add(queue, x, ids)
    ids[:] = 1000
    add(queue, x, ids)  # one array, one table of this flush
    queue.flush()
    np.testing.assert_array_equal(x.get(), 2 * np.arange(N))
    add(queue, x, ids)
    queue.flush()
    np.testing.assert_array_equal(x.get(), 2 * np.arange(N) + 1000)


def test_more_runs_than_buffers_without_waiting_for_the_device(queue):
    arrays = [queue.cupy.zeros(N, np.float32) for _ in range(11)]
    for k, x in enumerate(arrays):
        add(queue, x, np.full(N, k))
        queue.flush()
    for k, x in enumerate(arrays):
        np.testing.assert_array_equal(x.get(), k)


def test_tables_have_one_place_on_the_device_for_which_another_stream_waits(queue, monkeypatch):
    uploads, upload = [], Staging.upload

    def noted(self):
        uploads.append(upload(self))
        return uploads[-1]

    monkeypatch.setattr(Staging, "upload", noted)
    cuda = queue.cupy.cuda
    streams = [nullcontext(), cuda.Stream(non_blocking=True)]
    x = [queue.cupy.zeros(N, "f4") for _ in range(6)]
    cuda.Device().synchronize()
    for number, each in enumerate(x):
        add(queue, each, np.full(N, number))
        with streams[number % 2]:
            last = queue._staging._last
            queue.flush()
        if number % 2:
            streams[1].synchronize()
            assert last is not None and last[0].done
    cuda.Device().synchronize()
    assert [each.get().tolist() for each in x] == [[number] * N for number in range(6)]
    assert len({base for _, base, _ in uploads}) == 1


def test_a_buffer_is_given_up_when_the_device_has_read_it(queue):
    x = queue.cupy.zeros(1 << 16, "f4")
    queue.cupy.cuda.Device().synchronize()
    with devices.waits() as waits:
        for size, count in ((N, 0), (1 << 15, 1), (1 << 15, 1), (1 << 16, 2)):
            queue.launch("f4", "add_table", (1,), (32,), (x, np.zeros(size), 32))
            queue.flush()
            assert len(waits) == (count if fake_cupy.settings.asynchronous else 0)


def test_buffers_grow_with_what_a_run_needs(queue):
    x = queue.cupy.zeros(N, np.float32)
    for k in range(600):  # 600 tables of 132 bytes do not fit the first buffer
        add(queue, x, np.full(N, k))
    queue.flush()
    assert queue.uploads == 1
    np.testing.assert_array_equal(x.get(), 600 * 599 / 2)


def test_other_work_keeps_its_turn(queue):
    x, seen = queue.cupy.zeros(N, np.float32), []
    add(queue, x, np.ones(N))
    queue.call(lambda: seen.append(x.get()[0]))
    add(queue, x, np.ones(N))
    queue.flush()
    assert seen == [1] and x.get()[0] == 2


def test_an_error_names_for_whom_the_kernel_was_launched(queue):
    x = queue.cupy.zeros(N, np.float32)
    queue.label = "Softmax #7, batch 3"
    with pytest.raises(DtypeError, match="points to int32") as caught:
        queue.launch(x.dtype, "add_table", (1,), (32,), (x, queue.cupy.zeros(N, np.float32), N))
    assert caught.value.__notes__ == ["kernel add_table, for Softmax #7, batch 3"]
    queue.launch(x.dtype, "add_table", (1, 65536), (32,), (x, np.arange(N), N))
    with pytest.raises(ShapeError, match="1 x 65536 blocks") as caught:
        queue.flush()
    assert caught.value.__notes__ == ["kernel add_table, launched for Softmax #7, batch 3"]


def test_a_run_that_failed_leaves_nothing_behind(queue):
    x = queue.cupy.zeros(N, np.float32)
    add(queue, x, np.ones(N))
    queue.discard()
    add(queue, x, np.full(N, 5))
    queue.flush()
    np.testing.assert_array_equal(x.get(), 5)
    assert queue.launches == 1


def test_postponed_work_that_fails_leaves_nothing_behind(queue):
    def refuse(items):
        raise ValueError(f"{len(items)} items")

    x = queue.cupy.zeros(N, np.float32)
    add(queue, x, np.arange(N))
    queue.postpone(refuse, x)
    with pytest.raises(ValueError, match="1 items"):
        queue.flush()
    assert not queue.waiting()
    queue.flush()
    np.testing.assert_array_equal(x.get(), np.zeros(N))


def test_a_run_without_tables_copies_nothing(queue):
    x = queue.cupy.zeros(N, np.float32)
    queue.launch(x.dtype, "weigh", (2,), (32,), (x, queue.cupy.zeros(N, np.float32), N))
    queue.flush()
    assert (queue.launches, queue.uploads) == (1, 0)


def test_a_table_of_another_upload_is_refused(queue):
    x = queue.cupy.zeros(N, np.float32)
    add(queue, x, np.arange(N))
    (launch,) = queue._waiting
    queue.flush()
    queue.add(launch)
    with pytest.raises(BackendError, match=r"table of upload 0 is read in upload 1.*\n.*rule:"):
        queue.flush()


def test_a_launch_keeps_to_its_budget_of_python_calls(queue):
    """Calls from queueing to the driver's start, of dynbatch's own functions."""
    x, table = queue.cupy.zeros(N, np.float32), np.arange(N)
    queue.kernels(np.float32).driver_launch = max  # takes as many numbers, and starts nothing

    def launched(count):
        found = []

        def note(frame, event, _):
            if event == "call" and "dynbatch/kernels" in frame.f_code.co_filename:
                found.append(frame.f_code.co_qualname)

        sys.setprofile(note)
        try:
            for _ in range(count):
                queue.launch(x.dtype, "add_table", (2,), (32,), (x, table, N))
            queue.flush()
        finally:
            sys.setprofile(None)
        return found

    for _ in range(DEPTH):
        launched(1)
    more = Counter(launched(5)) - Counter(launched(4))
    assert more == {
        "Queue.launch": 1, "Queue.packed": 1, "Packer.pack": 1, "Staging.put": 1,
        "Launch.__init__": 1, "Launch.start": 1,
    }, more  # fmt: skip


# Side by side -------------------------------------------------------------------------------------


@pytest.fixture
def two_branches(monkeypatch):
    """Every branch is long enough for a stream of its own."""
    monkeypatch.setattr(streams, "WORTH_A_STREAM", 1)


def test_branches_start_after_what_came_before_and_end_before_what_comes(queue, two_branches):
    xs = [queue.cupy.zeros(N, np.float32) for _ in range(6)]
    total = queue.cupy.zeros(N, np.float32)
    for x in xs:
        add(queue, x, np.full(N, 2))

    def task(x):
        for _ in range(5):
            add(queue, x, np.ones(N))

    queue.side_by_side([partial(task, x) for x in xs])
    for x in xs:
        weigh(queue, total, x)
        queue.launch(total.dtype, "add_table", (2,), (32,), (total, np.full(N, 1), N))
        weigh(queue, x, np.full(N, 3))
    queue.flush()
    assert [x.get()[0] for x in xs] == [21] * 6
    assert queue.uploads == 1 and queue.launches == 6 * (1 + 5 + 3)
    expected = 0
    for _ in xs:
        expected = expected * 7 + 1
    assert total.get()[0] == expected


def test_branches_use_streams_of_their_own_in_turns(queue, two_branches):
    seen = []

    def task(number):
        for _ in range(3):
            queue.call(lambda: seen.append((number, queue.cupy.cuda.get_current_stream().ptr)))

    queue.side_by_side([partial(task, number) for number in range(2)])
    queue.call(lambda: seen.append((2, queue.cupy.cuda.get_current_stream().ptr)))
    queue.flush()
    assert [number for number, _ in seen] == [0, 1, 0, 1, 0, 1, 2]
    handles = [len({handle for n, handle in seen if n == number}) for number in range(3)]
    assert handles == [1, 1, 1] and len({handle for _, handle in seen}) == 3


def test_short_branches_stay_on_the_current_stream(queue):
    seen = []
    tasks = [lambda: queue.call(lambda: seen.append(queue.cupy.cuda.get_current_stream().ptr))] * 2
    queue.side_by_side(tasks)
    queue.flush()
    assert seen == [queue.cupy.cuda.get_current_stream().ptr] * 2


def product(queue, x, out):
    queue.cublas("float32").gemm(0, 0, 2, 2, 2, x.data.ptr, 2, x.data.ptr, 2, 0, out.data.ptr, 2)


def test_a_handle_of_cublas_serves_one_stream(queue, monkeypatch):
    """However branches and streams are matched: a short branch in front moves the others."""
    monkeypatch.setattr(streams, "WORTH_A_STREAM", 3)
    cupy, pairs = queue.cupy, []
    x = cupy.asarray(np.eye(2, dtype=np.float32))
    outs = [cupy.empty((2, 2), np.float32) for _ in range(4)]
    queue._cublas[np.dtype("float32"), "float32"] = watched = Watched(queue, pairs)

    def branch(out, count):
        for _ in range(count):
            product(queue, x, out)

    for counts in ((1, 4, 4, 4), (4, 4, 1, 4), (4, 1, 1, 4)):
        queue.side_by_side([partial(branch, *each) for each in zip(outs, counts, strict=True)])
        product(queue, x, outs[0])
        queue.flush()
    streams_of = {handle: {s for h, s in pairs if h == handle} for handle, _ in pairs}
    assert all([len(each) == 1 for each in streams_of.values()]), streams_of
    assert len(streams_of) == len({stream for _, stream in pairs}) == 4
    assert watched.started == 3 + 13 + 13 + 10
    for out in outs:
        np.testing.assert_array_equal(out.get(), np.eye(2))


class Watched(Cublas):
    """Notes handle and stream of every product."""

    __slots__ = ("started",)

    def __init__(self, queue, pairs):
        super().__init__(queue, queue._handles, "float32")
        self.started, gemm = 0, self.function

        def noted(handle, *args):
            pairs.append((handle, queue.cupy.cuda.get_current_stream().ptr))
            self.started += 1
            gemm(handle, *args)

        self.function = noted


def test_all_types_share_the_handle_of_a_stream_and_its_memory_is_counted(queue):
    cupy = queue.cupy
    assert queue.workspace_bytes == 0
    for dtype in ("float32", "float64"):
        x, out = cupy.asarray(np.eye(2, dtype=dtype)), cupy.empty((2, 2), dtype)
        queue.cublas(dtype).gemm(0, 0, 2, 2, 2, x.data.ptr, 2, x.data.ptr, 2, 0, out.data.ptr, 2)
        queue.flush()
    one = queue.workspace_bytes
    assert one in (4 << 20, 32 << 20)
    x, out = cupy.asarray(np.eye(2, dtype=np.float32)), cupy.empty((2, 2), np.float32)
    with cupy.cuda.Stream(non_blocking=True):
        product(queue, x, out)
        queue.flush()
    assert queue.workspace_bytes == 2 * one


def test_streams_that_come_and_go_keep_a_bounded_number_of_handles(queue):
    cupy = queue.cupy
    x = cupy.asarray(np.eye(2, dtype=np.float32))
    out = cupy.empty((2, 2), np.float32)
    product(queue, x, out)
    queue.flush()
    one, kept = queue.workspace_bytes, []
    for _ in range(2 * MOST_HANDLES):
        kept.append(cupy.cuda.Stream(non_blocking=True))
        with kept[-1]:
            product(queue, x, out)
            queue.flush()
    assert queue.workspace_bytes == (1 + MOST_HANDLES) * one


def test_an_error_in_a_branch_leaves_the_streams_joined(queue, two_branches):
    def fails():
        raise RuntimeError("no")

    x = queue.cupy.zeros(N, np.float32)
    queue.side_by_side([lambda: queue.call(fails), lambda: add(queue, x, np.ones(N))])
    with pytest.raises(RuntimeError):
        queue.flush()
    add(queue, x, np.ones(N))
    queue.flush()
    assert x.get()[0] in (1, 2)


def test_a_flush_within_a_branch_starts_what_waited_before_it(queue):
    x, y, seen = queue.cupy.zeros(N, np.float32), queue.cupy.zeros(N, np.float32), []

    def reads_in_between():
        add(queue, x, np.full(N, 3))
        with queue.at_once():
            seen.append((x.get()[0], y.get()[0]))
        add(queue, x, np.ones(N))

    add(queue, x, np.full(N, 2))
    queue.side_by_side([lambda: add(queue, y, np.full(N, 7)), reads_in_between])
    add(queue, y, np.ones(N))
    queue.flush()
    assert seen == [(5, 7)]
    assert (x.get()[0], y.get()[0]) == (6, 8)


# Errors of the device -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "kind", "pieces"),
    [
        (RuntimeError("unspecified launch failure"), BackendError, "RuntimeError: unspecified"),
        (MemoryError("out of memory"), OutOfMemory, "no memory left for kernel add_table"),
        (RuntimeError("cudaErrorMemoryAllocation: out"), OutOfMemory, "no memory left for kernel"),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out"), OutOfMemory, "no memory left for kernel"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), OutOfMemory, "no memory left for kernel"),
        (RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU: no"), BackendError, "CUPY_COMPILE_WITH_PTX=1"),
        (
            RuntimeError("invalid value for --gpu-architecture (-arch)"),
            BackendError,
            "COMPILE_WITH",
        ),
    ],
)
def test_a_launch_that_fails_names_kernel_and_node_and_leaves_nothing(
    queue, monkeypatch, cause, kind, pieces
):
    x = queue.cupy.zeros(N, np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(queue.kernels("float32"), "driver_launch", failing(cause))
        queue.label = "Tanh #3, in a batch of 2"
        add(queue, x, np.ones(N))
        queue.label = "Exp #4"
        add(queue, x, np.ones(N))
        with pytest.raises(kind, match=pieces) as caught:
            queue.flush()
    assert str(caught.value).startswith("Tanh #3, in a batch of 2: ")
    assert caught.value.__cause__ is cause
    assert queue.waiting() == []
    add(queue, x, np.full(N, 3))
    queue.flush()
    assert x.get()[0] == 3


def test_tables_that_find_no_memory_are_forgotten(queue, monkeypatch):
    x = queue.cupy.zeros(N, np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(queue.cupy.cuda, "alloc", failing(MemoryError("full")))
        add(queue, x, np.ones(N))
        with pytest.raises(OutOfMemory, match="the upload of the run's tables"):
            queue.flush()
    add(queue, x, np.full(N, 3))
    queue.flush()
    assert x.get()[0] == 3


def test_a_buffer_that_could_not_grow_is_not_taken_for_a_larger_one(queue, monkeypatch):
    x, alloc, sizes = queue.cupy.zeros(N, np.float32), queue.cupy.cuda.alloc, []
    add(queue, x, np.ones(N))
    queue.flush()
    large = np.full(FIRST_BYTES, 3)
    with monkeypatch.context() as patch:
        patch.setattr(queue.cupy.cuda, "alloc", failing(MemoryError("full")))
        add(queue, x, large)
        with pytest.raises(OutOfMemory, match="the upload of the run's tables"):
            queue.flush()
    monkeypatch.setattr(queue.cupy.cuda, "alloc", lambda n: sizes.append(n) or alloc(n))
    add(queue, x, large)
    queue.flush()
    assert x.get().tolist() == [4] * N
    assert sizes == [4 * FIRST_BYTES]


@pytest.mark.parametrize("has_kernel", [True, False])
def test_a_kernel_or_handle_that_finds_no_memory_is_tried_once_more(queue, monkeypatch, has_kernel):
    """CuPy's pool has given back what it holds unused by then."""
    cupy, kernels = queue.cupy, queue.kernels("float32")
    what = (kernels, "compile") if has_kernel else (cupy.cuda.cublas, "create")
    make, causes = getattr(*what), [RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")] * 3

    def fails_first(*args):
        if causes:
            raise causes.pop()
        return make(*args)

    monkeypatch.setattr(*what, fails_first)
    x, out = cupy.zeros(N, np.float32), cupy.zeros(N, np.float32)

    def run():
        if has_kernel:
            add(queue, x, np.arange(N))
        else:
            product(queue, x, out)
        queue.flush()

    with cupy.cuda.Stream(non_blocking=True):
        with pytest.raises(OutOfMemory, match="the GPU has no memory left for"):
            run()
        assert len(causes) == 1
        run()
    assert not causes and queue.launches == 1


def failing(cause):
    def fail(*args, **named):
        raise cause

    return fail


def test_arrays_of_a_queued_launch_live_until_it_is_started(queue):
    x, weights = queue.cupy.asarray(np.ones(N, np.float32)), queue.cupy.zeros(N, np.float32)
    weigh(queue, x, weights)
    loop = PreparedLoop(queue, np.float32, 1)
    loop.kernel("weigh", (2,), (32,), (x, queue.cupy.zeros(N, np.float32), N))
    queue.add(loop)
    del weights, loop
    queue.flush()
    assert not x.get().any()
