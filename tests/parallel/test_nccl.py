"""NCCL, of the stand-in: sums of arrays on GPUs have the bits of adding in the order of ranks."""

import threading
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest

from dynbatch import backend, parallel
from dynbatch.errors import BackendError, ParallelError
from dynbatch.kernels import arrays as kernels
from dynbatch.kernels.arrays import download
from dynbatch.parallel import guard as guard_module
from dynbatch.parallel.communicator import DIRECT_BYTES
from dynbatch.parallel.guard import RankGuard
from dynbatch.parallel.run_log import LOST
from tests.cuda import devices
from tests.cuda.fake_cupy import nccl
from tests.cuda.fake_cupy import settings as gpus
from tests.parallel.gpus import on_gpus, several_gpus

pytestmark = pytest.mark.cuda

LARGE = DIRECT_BYTES // 4 + 3


@pytest.fixture(params=["checked", "shuffled"])
def cp(request):
    with devices.device(request.param) as module, several_gpus():
        yield module


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
        if rank == 1:
            communicator.send(own, to=0)
        elif rank == 0:  # and rank 2 has no part in it
            communicator.receive(own, source=1)
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
            interrupt = communicator.device.interrupt
            threading.Timer(0.1, interrupt, ("rank 1 was killed.", 1)).start()
            communicator.all_reduce(cp.zeros(3, np.float32))

    with pytest.raises(ParallelError, match=r"rank 1 was killed\.") as found:
        on_gpus(cp, 2, do)
    assert found.value.rank == 1


def test_a_guard_ends_what_a_rank_waits_for_on_its_gpu(cp, monkeypatch):
    """It reads in the log that rank 1 was killed."""
    for name in ("RAISE_TICKS", "GRACE_TICKS"):  # a busy machine may need more than 0.4 s
        monkeypatch.setattr(guard_module, name, 10_000)

    def do(communicator):
        if communicator.rank == 0:
            log, end = communicator._host.log, communicator.interrupt
            communicator.guard = guard = RankGuard(0, {}, log, 0.05, end)
            log.add(LOST, 1, "rank 1 was killed.")
            threading.Timer(0.1, guard.start).start()
            array = cp.zeros(3, np.float32)
            with pytest.raises(ParallelError, match=r"rank 1 was killed\.") as found:
                communicator.all_reduce(array)
            assert guard._taken.is_set()
            with pytest.raises(ParallelError, match=r"rank 1 was killed\."):
                communicator.gather_objects(None)
            return found.value.rank

    assert on_gpus(cp, 2, do) == [1, None]


def test_a_failure_that_is_told_twice_ends_nccl_once(cp):
    def do(communicator):
        if communicator.rank == 0:
            communicator.interrupt("rank 1 was killed.", 1)
            communicator.fail("rank 0 failed.")
            communicator.all_reduce(cp.zeros(3, np.float32))

    with pytest.raises(ParallelError, match=r"rank 1 was killed\."):
        on_gpus(cp, 2, do)


def test_an_error_of_a_status_that_cupy_does_not_know_is_told(cp, monkeypatch):
    def end():
        nccl_end()
        raise KeyError(6)  # CuPy's table of names ends with 5; 6 is a rank that cannot be reached

    nccl_end = nccl.groupEnd

    def do(communicator):
        with pytest.raises(ParallelError, match=rf"rank {communicator.rank}: NCCL: 6\."):
            communicator.all_reduce(cp.zeros(3, np.float32))

    monkeypatch.setattr(nccl, "groupEnd", end)
    on_gpus(cp, 2, do)


def test_a_rank_without_arrays_takes_part_in_an_exchange(cp):
    def do(communicator):
        array = cp.zeros(2, np.float32)
        sent, received = [({}, {1: array}), ({0: array}, {}), ({}, {})][communicator.rank]
        communicator.exchange(sent, received)
        return communicator.gather_objects(communicator.rank)

    assert on_gpus(cp, 3, do) == [[0, 1, 2]] * 3


def test_arrays_are_read_by_cupy_after_their_sum(cp):
    def do(communicator):
        found = []
        for call in (
            lambda *both: communicator.all_reduce(*both),
            lambda *both: communicator.broadcast(*both, root=1),
            lambda one, _: communicator.reduce_scatter(one, [0, 1, 2]),
        ):
            both = [cp.asarray(np.full(2, 1.0 + communicator.rank)) for _ in range(2)]
            call(*both)
            found.append([each.get().tolist() for each in both])
        return found

    summed, copied = [[3.0, 3.0]] * 2, [[2.0, 2.0]] * 2
    assert on_gpus(cp, 2, do) == [
        [summed, copied, [[3.0, 1.0], [1.0, 1.0]]],
        [summed, copied, [[2.0, 3.0], [2.0, 2.0]]],
    ]


def test_the_gpu_of_arrays_is_used_whichever_is_current(cp):
    def do(communicator):
        arrays = [cp.asarray(np.full(3, 1.0 + communicator.rank)) for _ in range(2)]
        for each in (arrays, arrays[:1]):
            backend.device("cuda:2").use()
            communicator.all_reduce(*each)
            backend.device("cuda:2").use()
            communicator.broadcast(*each, root=1)
        return [download(each).tolist() for each in arrays]

    assert on_gpus(cp, 2, do) == [[[6.0] * 3, [3.0] * 3]] * 2


def test_arrays_of_another_gpu_are_refused(cp):
    def do(communicator):
        if communicator.rank == 1:
            backend.device("cuda:2").use()
        communicator.all_reduce(cp.zeros(3, np.float32))

    with pytest.raises(BackendError, match=r"rank 1 joined the others by cuda:1, .* on cuda:2\.\n"):
        on_gpus(cp, 2, lambda communicator: do(communicator) if communicator.rank else None)


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
