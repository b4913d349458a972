"""Ranks with a GPU of the stand-in each, joined by its NCCL: threads, as those of `ranks`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dynbatch.parallel import Communicator
from dynbatch.parallel.nccl import joined_by_nccl
from tests.cuda.fake_cupy import nccl
from tests.cuda.fake_cupy import settings as gpus
from tests.parallel.ranks import transports


@contextmanager
def several_gpus() -> Iterator[None]:
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
    """The results of do(communicator) on each rank, which are threads, each with a GPU."""

    def run(transport):
        with nccl.one_at_a_time, cp.cuda.Device(transport.rank):
            with Communicator(Yielding(transport)) as communicator:
                communicator.device = joined_by_nccl(communicator)
                return do(communicator)

    with ThreadPoolExecutor(size) as threads:
        running = [threads.submit(run, transport) for transport in transports(size)]
        return [each.result() for each in running]  # before a thread ends, and its queue with it
