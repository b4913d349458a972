"""NCCL, of the stand-in: sums of arrays on GPUs have the bits of adding in the order of ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest

from dynbatch import parallel
from dynbatch.errors import BackendError, ParallelError
from dynbatch.kernels import arrays as kernels
from dynbatch.kernels.arrays import download
from dynbatch.parallel.communicator import DIRECT_BYTES
from dynbatch.parallel.nccl import joined_by_nccl
from tests.cuda import devices
from tests.cuda.fake_cupy import nccl
from tests.cuda.fake_cupy import settings as gpus
from tests.parallel.ranks import transports

LARGE = DIRECT_BYTES // 4 + 3


@pytest.fixture(params=["checked", "shuffled"])
def cp(request):
    with devices.device(request.param) as module, several_gpus():
        yield module


@contextmanager
def several_gpus():
    gpus.devices = 3
    try:
        yield
    finally:
        gpus.devices = 1


class Yielding:
    """A transport of the host that lets other ranks run while it waits."""

    def __init__(self, transport):
        self.transport = transport

    def __getattr__(self, name):
        return getattr(self.transport, name)

    def exchange(self, *given):
        nccl.one_at_a_time.release()
        try:
            self.transport.exchange(*given)
        finally:
            nccl.one_at_a_time.acquire()


def on_gpus(cp, size, do):
    """What do(communicator) gives on each rank, which are threads, each with a GPU."""

    def run(transport):
        with nccl.one_at_a_time, cp.cuda.Device(transport.rank):
            with joined_by_nccl(Yielding(transport)) as communicator:
                return do(communicator)

    with ThreadPoolExecutor(size) as threads:
        running = [threads.submit(run, transport) for transport in transports(size)]
    return [each.result() for each in running]


def of_rank(rank, length, dtype="f4"):
    return np.random.default_rng(rank).standard_normal(length).astype(dtype)


@pytest.mark.parametrize(("size", "length"), [(2, 7), (3, 7), (3, LARGE)])
def test_sums_have_the_bits_of_adding_in_the_order_of_ranks(cp, size, length):
    def do(communicator):
        given = [of_rank(communicator.rank, length, dtype) for dtype in ("f4", "f8")]
        arrays = [cp.asarray(each) for each in (*given, given[0][:5])]
        communicator.all_reduce(*arrays, host := given[0].copy())
        return [*map(download, arrays), host]

    given = [[of_rank(rank, length, dtype) for rank in range(size)] for dtype in ("f4", "f8")]
    single, double = [reduce(np.add, each) for each in given]
    for found in on_gpus(cp, size, do):
        for ours, wanted in zip(found, (single, double, single[:5], single), strict=True):
            np.testing.assert_array_equal(ours, wanted, strict=True)


def test_parts_and_copies_travel_between_gpus(cp):
    bounds = [0, 2, 2, 9]

    def do(communicator):
        rank = communicator.rank
        array, small = cp.asarray(np.arange(9.0) * (rank + 1)), cp.asarray(np.full(3, 1.0 + rank))
        communicator.reduce_scatter(array, bounds)
        communicator.all_gather(array, bounds)
        communicator.broadcast(small, root=2)
        own = cp.asarray(np.full(4, float(rank)))
        communicator.exchange({0: own} if rank == 1 else {}, {1: own} if rank == 0 else {})
        return [download(each).tolist() for each in (array, small, own)]

    for rank, (array, small, own) in enumerate(on_gpus(cp, 3, do)):
        assert array == (6 * np.arange(9.0)).tolist()
        assert (small, own) == ([3.0] * 3, [max(1.0, rank)] * 4)


def test_what_is_queued_is_summed_and_what_is_queued_later_reads_the_sum(cp):
    def do(communicator):
        array, twice = cp.empty(5, np.float32), cp.empty(5, np.float32)
        kernels.fill(array, communicator.rank + 1)
        communicator.all_reduce(array)
        kernels.fill(twice, 1)
        kernels.accumulate(array, twice)
        return download(twice).tolist()

    assert on_gpus(cp, 2, do) == [[4.0] * 5] * 2


def test_a_rank_that_waits_in_vain_is_interrupted(cp):
    def do(communicator):
        if communicator.rank == 0:
            interrupt = communicator._device.interrupt
            threading.Timer(0.1, lambda: under_lock(interrupt, "rank 1 was killed.", 1)).start()
            communicator.all_reduce(cp.zeros(3, np.float32))

    def under_lock(call, *given):
        with nccl.one_at_a_time:
            call(*given)

    with pytest.raises(ParallelError, match=r"rank 1 was killed\.") as found:
        on_gpus(cp, 2, do)
    assert found.value.rank == 1


def test_two_ranks_with_one_gpu_are_refused():
    with devices.device("checked") as cp:
        only = SimpleNamespace(cuda=SimpleNamespace(Device=lambda rank: cp.cuda.Device(0)))
        with pytest.raises(
            ParallelError, match=r"on GPU 0: NCCL cannot join.*\n.*a GPU of its own"
        ):
            on_gpus(only, 2, lambda communicator: None)


def test_a_process_takes_the_gpu_with_its_number(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with devices.device("checked") as cp, several_gpus(), cp.cuda.Device(0):
        monkeypatch.setenv("LOCAL_RANK", "2")
        parallel.connect(device="cuda")
        assert cp.cuda.runtime.getDevice() == 2
        monkeypatch.setenv("LOCAL_RANK", "3")
        with pytest.raises(BackendError, match="process 3 of this machine has no GPU: there are 3"):
            parallel.connect(device="cuda")
        gpus.devices = 1
        parallel.connect(device="cuda")
        assert cp.cuda.runtime.getDevice() == 0
