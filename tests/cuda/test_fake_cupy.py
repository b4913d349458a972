"""The stand-in enforces what CuPy takes for granted, and has no name that CuPy lacks."""

import ctypes
import gc
import importlib.util
import inspect
import re
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest

from dynbatch.backend import OUT_OF_MEMORY
from tests.cuda import fake_cupy as cp
from tests.cuda import simulator
from tests.cuda.devices import simulated
from tests.cuda.fake_cupy import memory

if simulator.missing():
    pytest.skip(simulator.missing(), allow_module_level=True)

TEXT = """
extern "C" __global__ void scale(REAL* x, const int* n, REAL a, long long b, bool c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n[0]) x[i] = x[i] * a + b + c;
}
extern "C" __global__ void shared(REAL* x) {
    extern __shared__ REAL room[];
    room[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = room[threadIdx.x] + 1;
}
"""


@pytest.fixture
def module():
    return cp.RawModule(code=TEXT, options=("-std=c++17", "-DREAL=float"))


def launch(kernel, grid, block, values, shared=0, size=None):
    """Launch with NumPy scalars and addresses, each aligned to its own size."""
    data = b""
    for value in values:
        value = np.asarray(value)
        data += bytes(-len(data) % value.itemsize) + value.tobytes()
    extra = extra_of(data, len(data) if size is None else size)
    words = np.array(extra, np.uint64)
    driver_launch(kernel, grid, block, shared, words.ctypes.data)


def extra_of(data, size):
    """The driver's `extra`: the addresses of the arguments and of their size."""
    room = np.frombuffer(data, np.uint8), np.array([size])
    KEPT[:] = room
    return [1, room[0].ctypes.data, 2, room[1].ctypes.data, 0]


KEPT = []


def driver_launch(kernel, grid, block, shared, extra):
    three = [(*extents, 1, 1)[:3] for extents in (grid, block)]
    cp.cuda.driver.launchKernel(kernel.kernel.ptr, *three[0], *three[1], shared, 0, 0, extra)


def right_arguments():
    x = cp.asarray(np.arange(6, dtype=np.float32))
    n = cp.asarray(np.array([6], np.int32))
    values = [np.uint64(x.data.ptr), np.uint64(n.data.ptr)]
    return x, [*values, np.float32(2), np.int64(1), np.bool_(True)], n


def test_a_kernel_runs_on_packed_arguments(module):
    x, values, _n = right_arguments()
    launch(module.get_function("scale"), (1,), (32,), values)
    assert cp.asnumpy(x).tolist() == [2, 4, 6, 8, 10, 12]


WRONG = {
    "no address": (0, np.uint64(3), "not device memory"),
    "an int for a long long": (3, np.int32(1), "25 bytes of arguments end before"),
    "a byte that is no bool": (4, np.uint8(2), "b1, not 2"),
    "too little": (4, np.zeros(0, np.uint8), "32 bytes of arguments end before"),
    "too much": (4, np.int32(1), "36 bytes of arguments, not 33"),
}


@pytest.mark.parametrize(("position", "value", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_refused(module, position, value, message):
    _x, values, _n = right_arguments()
    values[position] = value
    with pytest.raises((TypeError, ValueError), match=message):
        launch(module.get_function("scale"), (1,), (32,), values)


def test_other_launches_that_go_wrong_are_refused(module):
    kernel, (_x, values, _n) = module.get_function("scale"), right_arguments()
    with pytest.raises(simulator.KernelFault, match="1 to 1024 threads"):
        launch(kernel, (1,), (1025,), values)
    with pytest.raises(RuntimeError, match="INVALID_VALUE"):
        launch(kernel, (0,), (32,), values)
    with pytest.raises(RuntimeError, match="extra holds"):
        driver_launch(kernel, (1,), (32,), 0, np.zeros(5, np.uint64).ctypes.data)
    with pytest.raises(RuntimeError, match="NOT_FOUND"):
        module.get_function("absent")
    ptr = kernel.kernel.ptr
    del kernel
    with pytest.raises(RuntimeError, match="INVALID_HANDLE"):
        cp.cuda.driver.launchKernel(ptr, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)


def test_arguments_are_those_of_the_moment_of_the_launch(module):
    with simulated(asynchronous=True):
        x, values, _n = right_arguments()
        launch(module.get_function("scale"), (1,), (32,), values)
        for kept in KEPT:
            kept.flags.writeable and kept.fill(0)
        assert x.get().tolist() == [2, 4, 6, 8, 10, 12]


def test_a_signature_that_was_parsed_otherwise_than_compiled_is_refused():
    text = """
    typedef long long Number;
    #define int Number
    extern "C" __global__ void count(int n) {}
    """
    with pytest.raises(TypeError, match=r"count: .*'n'.* was compiled as i8"):
        cp.RawModule(code=text).get_function("count")


def test_an_address_must_be_one_of_the_device(module):
    kernel, (x, values, _n) = module.get_function("scale"), right_arguments()
    host = np.zeros(6, np.float32)
    with pytest.raises(ValueError, match="not device memory"):
        launch(kernel, (1,), (32,), [np.uint64(host.ctypes.data), *values[1:]])
    del x  # the last reference: the memory is freed
    with pytest.raises(ValueError, match="not device memory"):
        launch(kernel, (1,), (32,), values)


def test_shared_memory_above_48_kib_must_be_asked_for(module):
    kernel, x = module.get_function("shared"), cp.zeros(4, np.float32)
    address = np.uint64(x.data.ptr)
    with pytest.raises(RuntimeError, match="max_dynamic_shared_size_bytes"):
        launch(kernel, (1,), (4,), [address], 48 * 1024 + 1)
    kernel.max_dynamic_shared_size_bytes = 64 * 1024
    launch(kernel, (1,), (4,), [address], 64 * 1024)
    assert x.get().tolist() == [1, 1, 1, 1]


def test_the_checker_knows_all_device_memory_and_no_more(module):
    x, n = cp.zeros(4, np.float32), cp.asarray(np.array([5], np.int32))
    values = [np.uint64(x.data.ptr), np.uint64(n.data.ptr)]
    with simulated(checked=True):
        with pytest.raises(simulator.KernelFault, match="out-of-bounds"):
            launch(
                module.get_function("scale"), (1,), (32,),
                [*values, np.float32(2), np.int64(1), np.bool_(True)],
            )  # fmt: skip


# Memory -------------------------------------------------------------------------------------------


def test_fresh_memory_is_poisoned():
    assert (cp.empty(3, np.uint8).get() == 0xEE).all()
    assert cp.empty((2, 3)).get().dtype == np.float64


def test_any_amount_of_memory_may_be_freed_while_an_operation_runs():
    gc.collect()  # what earlier tests have left would be freed meanwhile
    before = memory.used_bytes()
    arrays = [cp.empty(4, np.float32) for _ in range(2000)]
    cp.cuda.get_current_stream().enqueue(arrays.clear)
    cp.cuda.runtime.deviceSynchronize()
    assert memory.used_bytes() == before


def test_addresses_of_freed_memory_belong_to_nobody_for_a_while(module):
    x = cp.empty(300, np.float32)
    ptr = x.data.ptr
    del x
    others = [cp.empty(300, np.float32) for _ in range(20)]
    assert ptr not in {other.data.ptr for other in others}
    with pytest.raises(ValueError, match="not device memory"):
        launch(module.get_function("shared"), (1,), (8,), [np.uint64(ptr)], 64)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_memory_whose_contents_are_over_is_refused(module, asynchronous):
    shared = module.get_function("shared")
    x, y = cp.asarray(np.zeros(8, np.float32)), cp.empty(8, np.float32)
    with simulated(asynchronous=asynchronous):
        launch(shared, (1,), (8,), [np.uint64(x.data.ptr)], 64)
        y.data.copy_from_device_async(x.data, 32)
        memory.retire(x.data.ptr, 32)
        with pytest.raises(ValueError, match="was given to others"):
            launch(shared, (1,), (8,), [np.uint64(x.data.ptr + 28)], 64)
        assert y.get().tolist() == [1] * 8  # started before
        assert x.get()[0] == np.full(4, memory.POISON, np.uint8).view(np.float32)[0]
        memory.revive(x.data.ptr)
        launch(shared, (1,), (8,), [np.uint64(x.data.ptr)], 64)


def test_an_arena_over_raw_memory():
    memory = cp.cuda.alloc(1 << 12)
    assert memory.ptr % 256 == 0
    block = cp.ndarray((4, 8), np.float32, memory + 64)
    host = np.arange(32, dtype=np.float32).reshape(4, 8)
    block.set(host)
    part = block.reshape(-1)[8:16]
    assert part.data.ptr == memory.ptr + 64 + 32 and part.get().tolist() == host[1].tolist()
    unowned = cp.cuda.UnownedMemory(memory.ptr + 64, 128, memory)
    again = cp.ndarray((32,), np.int32, cp.cuda.MemoryPointer(unowned, 0))
    assert again.view(np.float32).get().tolist() == host.ravel().tolist()
    with pytest.raises(ValueError, match="not device memory"):
        cp.ndarray((1025,), np.float32, memory)


def test_raw_copies_go_through_pinned_memory():
    pinned = cp.cuda.alloc_pinned_memory(600)
    host = np.frombuffer(pinned, np.int64, 75)
    host[:] = np.arange(75)
    device = cp.cuda.alloc(600)
    stream, runtime = cp.cuda.get_current_stream(), cp.cuda.runtime
    device.copy_from_host_async(ctypes.c_void_p(pinned.ptr), 600, stream)
    other = cp.cuda.alloc(600)
    runtime.memcpyAsync(other.ptr, device.ptr, 600, runtime.memcpyDeviceToDevice, stream.ptr)
    runtime.memsetAsync(other.ptr, 0, 8, stream.ptr)
    back = np.empty(75, np.int64)
    other.copy_to_host_async(back.ctypes.data, 600)
    stream.synchronize()
    assert back.tolist() == [0, *range(1, 75)]
    with pytest.raises(ValueError, match="not device memory"):
        runtime.memcpyAsync(back.ctypes.data, device.ptr, 600, runtime.memcpyDeviceToDevice, 0)
    with pytest.raises(TypeError, match="a host address"):
        device.copy_from_host_async(host, 600)


def test_memory_is_limited_and_comes_back():
    free = cp.cuda.runtime.memGetInfo()[0]
    with simulated(memory_bytes=cp.settings.memory_bytes - free + 4096):
        first = cp.cuda.alloc(4000)
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            cp.cuda.alloc(4000)
        del first
        cp.cuda.alloc(4000)


def test_memory_may_be_collected_while_it_is_listed(monkeypatch):
    class Collecting(int):
        def __radd__(self, ptr):
            live.pop(2, None)
            return ptr

    live = {1: Collecting(0), 2: 0, 3: 0}
    monkeypatch.setattr(cp.memory, "_live", live)
    assert {(1, 1), (3, 3)} <= set(cp.memory.buffers())


def test_a_device_array_is_no_numpy_array():
    x = cp.zeros(3)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.add(x, 1)
    with pytest.raises(NotImplementedError):
        x[0]
    with pytest.raises(NotImplementedError):
        x[np.array([0, 1])]


def test_arrays_without_elements():
    nothing = cp.empty((0, 4), np.float32)
    assert nothing.get().shape == (0, 4) and cp.zeros(4)[4:].size == 0
    assert cp.asarray(np.zeros((3, 0))).reshape(0, 3).get().shape == (0, 3)


# Streams ------------------------------------------------------------------------------------------


def test_a_staging_buffer_written_again_too_early_gives_wrong_numbers():
    pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(8), np.int64, 1)
    device, event = cp.empty(1, np.int64), cp.cuda.Event(disable_timing=True)
    with simulated(asynchronous=True):
        for waits in (True, False):
            pinned[0] = 1
            device.data.copy_from_host_async(pinned.ctypes.data, 8)
            event.record()
            if waits:
                event.synchronize()
            pinned[0] = 2
            assert device.get()[0] == (1 if waits else 2)


def test_streams_that_do_not_wait_for_each_other_give_wrong_numbers():
    with simulated(asynchronous=True):
        for waits in (True, False):
            x = cp.zeros(1, np.int32)
            cp.cuda.Device().synchronize()
            first, second = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
            with first:
                x.fill(7)
            if waits:
                second.wait_event(first.record())
            with second:
                assert x.get()[0] == (7 if waits else 0)


def test_the_null_stream_waits_for_blocking_streams():
    with simulated(asynchronous=True):
        x, stream = cp.zeros(1, np.int32), cp.cuda.Stream()
        with stream:
            assert cp.cuda.get_current_stream() is stream
            x.fill(7)
        assert not stream.done
        assert x.get()[0] == 7  # on the null stream
        assert stream.done and cp.cuda.Stream.null.done


# cuBLAS -------------------------------------------------------------------------------------------

CUBLAS = cp.cuda.cublas
HOST_SCALARS = np.array([0, 1], np.float32)
ZERO, ONE = HOST_SCALARS.ctypes.data, HOST_SCALARS[1:].ctypes.data


def product(**changed):
    """The arguments of C (2, 4) = A (2, 3) B (3, 4), column-major, and C."""
    a, b = (cp.asarray(np.arange(n, dtype=np.float32)) for n in (6, 12))
    c = cp.empty(8, np.float32)
    given = {
        "handle": cp.cuda.get_cublas_handle(), "transa": 0, "transb": 0, "m": 2, "n": 4, "k": 3,
        "alpha": ONE, "A": a.data.ptr, "lda": 2, "B": b.data.ptr, "ldb": 3,
        "beta": ZERO, "C": c.data.ptr, "ldc": 2,
    }  # fmt: skip
    return list((given | changed).values()), (a, b, c)


def test_a_product_is_column_major_and_does_not_read_an_output_it_overwrites():
    args, (a, b, c) = product()
    c.fill(np.nan)
    CUBLAS.sgemm(*args)
    columns = a.get().reshape(2, 3, order="F") @ b.get().reshape(3, 4, order="F")
    assert c.get().tolist() == columns.ravel(order="F").tolist()
    args[11] = ONE  # beta
    CUBLAS.sgemm(*args)
    assert c.get().tolist() == (2 * columns).ravel(order="F").tolist()


def batch(**changed):
    """The arguments of two products C = A B, column-major, whose C lie side by side in rows."""
    a, b = [cp.asarray(x) for x in np.random.default_rng(0).standard_normal((2, 3, 3))]
    wide, scalars = cp.zeros((3, 6)), np.array([0.0, 1.0])
    pairs = [[x.data.ptr] * 2 for x in (a, b)]
    sums = [wide.data.ptr, wide.data.ptr + 3 * wide.itemsize]
    lists = [cp.asarray(np.array(x, np.uint64)) for x in (*pairs, sums)]
    given = {
        "handle": cp.cuda.get_cublas_handle(), "transa": 0, "transb": 0, "m": 3, "n": 3, "k": 3,
        "alpha": scalars[1:].ctypes.data, "Aarray": lists[0].data.ptr, "lda": 3,
        "Barray": lists[1].data.ptr, "ldb": 3, "beta": scalars.ctypes.data,
        "Carray": lists[2].data.ptr, "ldc": 6, "batchCount": 2,
    }  # fmt: skip
    return list((given | changed).values()), (a, b, wide), (lists, scalars)


def test_products_of_a_batch_may_share_a_factor_and_lie_side_by_side_in_rows():
    args, (a, b, wide), _kept = batch()
    CUBLAS.dgemmBatched(*args)
    np.testing.assert_allclose(wide.get(), np.tile((a.get().T @ b.get().T).T, 2))


def test_the_device_reads_the_addresses_of_a_batch_in_their_turn():
    with simulated(asynchronous=True):
        args, (a, _b, wide), (lists, _scalars) = batch()
        lists[1].set(lists[0].get())
        CUBLAS.dgemmBatched(*args)
        lists[1].fill(0)
        np.testing.assert_allclose(wide.get(), np.tile((a.get().T @ a.get().T).T, 2))


def test_wrong_batches_are_refused():
    args, _arrays, (lists, _scalars) = batch()
    for changed, message in (
        ({"Carray": lists[0].data.ptr, "ldc": 3}, "overlap"),
        ({"Aarray": HOST_SCALARS.ctypes.data}, "not device memory"),
        ({"batchCount": 0}, "not above 0"),
        ({"batchCount": 1 << 20}, "not device memory"),
        ({"ldc": 2}, "ldc 2 < 3 rows"),
    ):
        wrong, _, _kept = batch(**changed)
        with pytest.raises((ValueError, CUBLAS.CUBLASError), match=message):
            CUBLAS.dgemmBatched(*wrong)
    lists[2].set(np.repeat(lists[2].get()[:1], 2))
    with pytest.raises(CUBLAS.CUBLASError, match="the planes of C overlap"):
        CUBLAS.dgemmBatched(*args)


WRONG_PRODUCTS = {
    "a leading dimension below the rows": ({"lda": 1}, "lda 1 < 2 rows"),
    "that of a transposed factor": ({"transb": 1}, "ldb 3 < 4 rows"),
    "a product of nothing": ({"k": 0}, "not above 0"),
    "an unknown operation": ({"transa": 3}, "operations 3"),
    "more than an int holds": ({"ldc": 1 << 31}, "32-bit"),
    "a number that is no int": ({"m": 2.0}, "32-bit"),
    "an operand that ends outside": ({"ldb": 4}, "not device memory"),
    "a host address": ({"A": ONE}, "not device memory"),
    "an array for an address": ({"A": np.zeros(6, np.float32)}, "ints"),
    "a scalar by value": ({"alpha": 1.0}, "addresses"),
    "no handle": ({"handle": 7}, "NOT_INITIALIZED"),
}


@pytest.mark.parametrize(("changed", "message"), WRONG_PRODUCTS.values(), ids=WRONG_PRODUCTS.keys())
def test_a_wrong_product_is_refused(changed, message):
    args, _arrays = product(**changed)
    with pytest.raises((TypeError, ValueError, CUBLAS.CUBLASError), match=message):
        CUBLAS.sgemm(*args)


def test_scalars_on_the_device_and_outputs_over_inputs_are_refused():
    args, (a, _, c) = product()
    with pytest.raises(CUBLAS.CUBLASError, match="of the device"):
        CUBLAS.sgemm(*args[:6], a.data.ptr, *args[7:])
    with pytest.raises(CUBLAS.CUBLASError, match="overlaps"):
        CUBLAS.sgemm(*args[:7], c.data.ptr, *args[8:])


def test_a_product_of_numbers_that_overflow_warns_of_nothing():
    args, (a, _, c) = product()
    a.fill(np.inf)
    CUBLAS.sgemm(*args)
    assert not np.isfinite(c.get()).any()


def test_a_product_runs_in_the_order_of_its_stream():
    with simulated(asynchronous=True):
        args, (a, _, c) = product()
        c.fill(7)
        CUBLAS.sgemm(*args)
        a.fill(0)
        assert c.get().tolist() != [0] * 8


# DLPack -------------------------------------------------------------------------------------------


def test_a_tensor_of_dlpack_is_a_view_that_is_handed_over_once():
    x = cp.asarray(np.arange(6.0).reshape(2, 3))
    view = cp.from_dlpack(x)
    assert view.data.ptr == x.data.ptr and view.shape == (2, 3)
    capsule = x.__dlpack__(max_version=(1, 0))
    assert cp.from_dlpack(capsule).T.get().tolist() == x.get().T.tolist()
    with pytest.raises(ValueError, match="consumed multiple times"):
        cp.from_dlpack(capsule)
    pointer = weakref.ref(x.data.mem)
    del x
    assert pointer() is not None  # the readers hold it
    del view, capsule
    gc.collect()
    assert pointer() is None


def test_a_reader_names_its_stream_which_waits():
    for stream in (0, -2, "0", cp.cuda.Stream.null):
        with pytest.raises(ValueError, match="the valid stream"):
            cp.zeros(2).__dlpack__(stream=stream)

    def read(waits):
        x, reader = cp.zeros(1), cp.cuda.Stream(non_blocking=True)
        cp.cuda.Device().synchronize()
        x.fill(7)
        capsule = x.__dlpack__(stream=reader.ptr if waits else -1)
        with reader:
            return cp.from_dlpack(capsule).get()[0]

    with simulated(asynchronous=True):
        assert (read(waits=True), read(waits=False)) == (7, 0)


def test_dlpack_copies_to_the_host_only():
    x = cp.asarray(np.arange(3.0))
    assert np.from_dlpack(x, device="cpu").tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="requires a copy"):
        np.from_dlpack(x, device="cpu", copy=False)
    with pytest.raises(BufferError, match="only supported for copy to CPU"):
        cp.from_dlpack(x, copy=True)
    with pytest.raises(BufferError, match="unsupported device"):
        x.__dlpack__(dl_device=(8, 0))
    with pytest.raises(TypeError, match="CPU arrays cannot be directly imported"):
        cp.from_dlpack(np.zeros(3))


def test_the_cuda_array_interface_is_a_view_after_its_stream():
    class Other:
        __cuda_array_interface__ = property(lambda self: x.__cuda_array_interface__)

    x = cp.asarray(np.arange(6.0).reshape(2, 3))
    assert cp.asarray(Other()).data.ptr == x.data.ptr
    with simulated(asynchronous=True):
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            x.fill(7)
            other = Other()
            found = cp.asarray(other)
        assert stream.done and found.get().tolist() == [[7] * 3] * 2


# Graphs -------------------------------------------------------------------------------------------


def test_a_graph_runs_what_was_captured_with_the_arguments_of_then(module):
    kernel, stream = module.get_function("shared"), cp.cuda.Stream(non_blocking=True)
    x = cp.zeros(32, np.float32)
    with stream:
        stream.begin_capture()
        assert stream.is_capturing()
        words = np.array(extra_of(np.uint64(x.data.ptr).tobytes(), 8), np.uint64)
        extents = (1, 1, 1, 32, 1, 1, 128)
        cp.cuda.driver.launchKernel(
            kernel.kernel.ptr, *extents, stream.ptr, 0, words.ctypes.data
        )  # fmt: skip
        words[...] = 0
        graph = stream.end_capture()
    assert not stream.is_capturing() and not x.get().any()
    graph.launch()
    graph.launch(stream=stream)
    cp.cuda.Device().synchronize()
    assert (x.get() == 2).all()


def test_what_cannot_be_captured_is_refused():
    with pytest.raises(RuntimeError, match="StreamCaptureImplicit"):
        cp.cuda.Stream.null.begin_capture()
    stream, x = cp.cuda.Stream(non_blocking=True), cp.zeros((2, 2), np.float32)
    one, handle = np.ones(1, np.float32), cp.cuda.cublas.create()
    with pytest.raises(RuntimeError, match="is not capturing"):
        stream.end_capture()
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="is capturing"):
            stream.begin_capture()
        for refused, error in (
            (lambda: cp.cuda.Device().synchronize(), "the host would wait"),
            (stream.synchronize, "the host would wait"),
            (lambda: cp.cuda.alloc(8), "memory while capturing"),
            (lambda: x.fill(0), "no kernel"),
            (
                lambda: cp.cuda.cublas.sgemm(
                    handle, 0, 0, 2, 2, 2, one.ctypes.data, x.data.ptr, 2, x.data.ptr, 2,
                    one.ctypes.data, x.data.ptr, 2,
                ),
                "no call of cuBLAS",
            ),
        ):  # fmt: skip
            with pytest.raises((RuntimeError, NotImplementedError), match=error):
                refused()
        stream.end_capture()


# The real CuPy ------------------------------------------------------------------------------------


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_every_name_of_the_stand_in_is_one_of_cupy():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cupy = importlib.import_module("cupy")
    assert set(cp.__all__) - {"settings"} <= public(cupy)
    for name, ours in vars(cp.cuda).items():
        if name in ("cublas", "nccl"):  # see below
            continue
        lacks = public(ours) - public(getattr(cupy.cuda, name)) - {"enqueue"}
        assert not lacks, (name, lacks)
    assert public(cp.ndarray) <= public(cupy.ndarray)
    shared = {name for name in vars(cp.ndarray) if "dlpack" in name or "interface" in name}
    assert len(shared) == 3 and shared <= set(dir(cupy.ndarray))
    assert inspect.signature(cp.from_dlpack).parameters.keys() == {"array", "device", "copy"}
    assert "from_dlpack(array, *, device=None, copy=None)" in cupy.from_dlpack.__doc__
    assert public(cp.RawModule) - {"program"} <= public(cupy.RawModule)
    assert public(cp.RawKernel) | {"kernel"} <= public(cupy.RawKernel)
    ours = inspect.signature(cp.cuda.driver.launchKernel).parameters
    theirs = re.findall(r"(\w+)[,)]", cupy.cuda.driver.launchKernel.__doc__)
    assert list(ours) == theirs


def test_every_function_of_cublas_is_one_of_cupy_with_the_same_parameters():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    # Importing it takes the library itself, hundreds of megabytes; its signatures are in its text.
    spec = importlib.util.find_spec("cupy_backends.cuda.libs.cublas")
    text = Path(spec.origin).read_bytes()
    for name, ours in vars(CUBLAS).items():
        if inspect.isfunction(ours):
            parameters = ", ".join(
                f"{_c_type(parameter)} {parameter}"
                for parameter in inspect.signature(ours).parameters
            )
            assert f"{name}({parameters})".encode() in text, name
        else:
            assert re.search(rf"\b{name}\b".encode(), text), name
    assert OUT_OF_MEMORY[-1].encode() in text  # those before it are of CUDA


def test_every_name_of_nccl_is_one_of_cupy_with_the_same_parameters():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    # Importing it takes libnccl; its signatures are in its text.
    spec = importlib.util.find_spec("cupy_backends.cuda.libs.nccl")
    text = Path(spec.origin).read_bytes()
    made = cp.cuda.nccl.NcclCommunicator
    types = {"sendbuf": "intptr_t", "recvbuf": "intptr_t", "stream": "intptr_t", "count": "size_t"}
    for name in ("send", "recv"):
        parameters = list(inspect.signature(getattr(made, name)).parameters)[1:]
        given = ", ".join([f"{types.get(each, 'int')} {each}" for each in parameters])
        assert f"NcclCommunicator.{name}(self, {given})".encode() in text
    for name in ("rank_id", "size", "destroy", "abort"):
        assert f"NcclCommunicator.{name}(self)".encode() in text
    for name in ("get_unique_id", "groupStart", "groupEnd", "NcclError", "NCCL_CHAR"):
        assert hasattr(cp.cuda.nccl, name) and re.search(rf"\b{name}\b".encode(), text), name


def _c_type(parameter):
    """The type that CuPy's wrapper of cuBLAS takes for a parameter of that name."""
    if parameter in ("A", "B", "C", "Aarray", "Barray", "Carray", "alpha", "beta"):
        return "size_t"
    return "intptr_t" if parameter == "handle" else "int"
