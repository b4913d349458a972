"""A prepared loop gives what the same launches give one by one."""

import sys

import numpy as np
import pytest

from dynbatch.errors import BackendError, DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.packing import PerStep
from dynbatch.kernels.cuda.runtime.queue import Queue
from dynbatch.kernels.cuda.runtime.staging import DEPTH
from dynbatch.kernels.runtime.precision import multiplying
from tests.cuda.rounding import error_share

STEPS = source.join(
    "loop.cu",
    """
    extern "C" __global__ void add_step(REAL* x, const int* table, bool twice, int n, int t) {
        const long long i = thread_in_grid();
        if (i < n) x[i] += (twice ? 2 : 1) * table[t] + t;
    }
    """,
)


@pytest.fixture(params=[np.float32, np.float64])
def queue(request, cupy):
    made = Queue(cupy)
    made.kernels(request.param).add(STEPS)
    made.dtype = np.dtype(request.param)
    return made


def test_kernels_and_products_of_all_steps_run_in_turn(queue):
    """x += table[t] + t for the first rows of x; then y = x w, where a step has rows at all."""
    steps, wide, rng = 7, 33, np.random.default_rng(0)
    rows = np.array([3, 3, 0, 2, 1, 1, 1])
    table, weights = rng.integers(0, 9, steps), rng.standard_normal((wide, 5)).astype(queue.dtype)
    x, w = (queue.cupy.asarray(each) for each in (np.zeros((3, wide), queue.dtype), weights))
    y = queue.cupy.zeros((steps, 3, 5), queue.dtype)
    numbers = rows * wide
    loop = PreparedLoop(queue, queue.dtype, steps)
    loop.kernel(
        "add_step", (-(-numbers // 32),), (32,),
        (x, table, False, PerStep(numbers), PerStep(np.arange(steps))),
    )  # fmt: skip
    places = y.data.ptr + np.arange(steps) * y.strides[0]
    loop.product(False, False, rows, 5, wide, x.data.ptr, wide, w.data.ptr, 5, 0, places, 5)
    queue.add(loop)
    assert loop.launches == 12 and not queue.launches
    queue.flush()
    assert (queue.launches, queue.uploads) == (12, 1)
    expected, host = np.zeros((steps, 3, 5), queue.dtype), np.zeros((3, wide), queue.dtype)
    for t, n in enumerate(rows):
        host[:n] += table[t] + t
        expected[t, :n] = host[:n] @ weights
    np.testing.assert_allclose(x.get(), host)
    np.testing.assert_allclose(y.get(), expected, rtol=1e-4, atol=1e-4)


def test_where_leaves_an_item_out_of_steps(queue):
    x = queue.cupy.zeros(4, queue.dtype)
    loop = PreparedLoop(queue, queue.dtype, 3)
    for where in (False, np.array([True, False, True])):
        args = (x, np.array([1, 2, 4]), True, 4, PerStep(np.arange(3)))
        loop.kernel("add_step", (1,), (32,), args, where=where)
    queue.add(loop)
    queue.flush()
    assert x.get().tolist() == [12] * 4 and queue.launches == 2


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_products_of_a_step_go_as_one_unless_factors_are_rounded(queue, precision):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((3, 2, 4, 4)).astype(queue.dtype) for _ in range(2))
    ours, theirs = queue.cupy.asarray(a), queue.cupy.asarray(b)
    out = queue.cupy.empty((3, 2, 4, 4), queue.dtype)
    places = np.arange(6).reshape(3, 2) * (16 * queue.dtype.itemsize)
    with multiplying(precision):
        loop = PreparedLoop(queue, queue.dtype, 3)
    loop.products(
        False, True, np.array([4, 3, 4]), 4, 4, ours.data.ptr + places, 4,
        theirs.data.ptr + places[0], 4, 0, out.data.ptr + places, 4,
    )  # fmt: skip
    queue.add(loop)
    queue.flush()
    is_rounded = (precision, queue.dtype) == ("tf32", np.float32)
    assert (queue.launches, queue.uploads) == ((6, 0) if is_rounded else (3, 1))
    factors = a, np.swapaxes(b[0], 1, 2)
    expected, largest = np.matmul(*factors), np.matmul(*map(np.abs, factors))
    allowed = (error_share(precision) if is_rounded else 1e-5) * largest
    for t, n in enumerate((4, 3, 4)):
        assert (np.abs(out.get()[t] - expected[t]) <= allowed[t])[:, :n].all()


def test_a_loop_costs_no_python_call_a_launch(queue):
    """The budget: what is called grows with the items, not with the steps."""

    x = queue.cupy.zeros(1, queue.dtype)
    queue.kernels(queue.dtype).driver_launch = max  # takes as many numbers, and starts nothing

    def calls(steps):
        found = []

        def note(frame, event, _):
            if event == "call" and "dynbatch/kernels" in frame.f_code.co_filename:
                found.append(frame.f_code)

        loop = PreparedLoop(queue, queue.dtype, steps)
        args = (x, np.arange(steps), False, 1, PerStep(np.arange(steps)))
        sys.setprofile(note)
        try:
            loop.kernel("add_step", (1,), (32,), args)
            queue.add(loop)
            queue.flush()
        finally:
            sys.setprofile(None)
        return len(found)

    for _ in range(DEPTH):  # compiles, and makes all buffers of tables
        calls(1)
    assert calls(3) == calls(1000) < 50


def test_arguments_are_checked_when_they_are_given(queue):
    x = queue.cupy.zeros(4, queue.dtype)
    right = (x, np.arange(2), False, 4, PerStep(np.arange(2)))
    for error, position, value in (
        (DtypeError, 0, queue.cupy.zeros(4, np.int32)),
        (DtypeError, 3, 4.0),
        (OverflowError, 4, PerStep(np.array([0, 1 << 31]))),
        (ShapeError, 0, queue.cupy.zeros((2, 2), queue.dtype).T),
    ):
        loop = PreparedLoop(queue, queue.dtype, 2)
        with pytest.raises(error):
            loop.kernel("add_step", (1,), (32,), (*right[:position], value, *right[position + 1 :]))
    with pytest.raises(ShapeError, match="at most 65535 across"):
        loop.kernel("add_step", (1, np.array([1, 65536])), (32,), right)
    queue.discard()


def test_an_error_names_the_launch_that_failed(queue):
    queue.label = "scan x4"
    loop = PreparedLoop(queue, queue.dtype, 2)
    x = queue.cupy.zeros(4, queue.dtype)
    loop.kernel("add_step", (1,), (32,), (x, np.arange(2), False, 4, PerStep(np.arange(2))))
    loop.product(False, False, 1, 1, 1, 8, 1, 8, 1, 0, np.array([8, 16]), 1)
    queue.add(loop)
    with pytest.raises(BackendError, match=r"scan x4: a product of cuBLAS failed on the GPU"):
        queue.flush()


def test_a_loop_whose_tables_were_of_another_upload_is_refused(queue):
    loop = PreparedLoop(queue, queue.dtype, 2)
    x = queue.cupy.zeros(4, queue.dtype)
    loop.kernel("add_step", (1,), (32,), (x, np.arange(2), False, 4, PerStep(np.arange(2))))
    queue.flush()
    queue.add(loop)
    with pytest.raises(BackendError, match="a table lies on the device for one flush"):
        queue.flush()


def test_steps_one_by_one_with_other_work_between_them(queue):
    """x += table[t] + t, then all of x doubled by a launch of its own, step by step."""
    steps, table = 5, np.array([3, 1, 4, 1, 5])
    x = queue.cupy.zeros(40, queue.dtype)
    loop = PreparedLoop(queue, queue.dtype, steps)
    where = np.arange(steps) != 2
    loop.kernel("add_step", (2,), (32,), (x, table, True, 40, PerStep(np.arange(steps))), 0, where)
    for t in range(steps):
        queue.add(loop.step(t))
        queue.launch(queue.dtype, "accumulate", (1,), (256,), (x, x, 40))
    queue.flush()
    expected = 0
    for t in range(steps):
        expected = 2 * (expected + (2 * table[t] + t) * where[t])
    assert (queue.launches, queue.uploads) == (steps - 1 + steps, 1)
    np.testing.assert_array_equal(x.get(), expected)
