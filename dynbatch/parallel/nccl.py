"""Ranks with a GPU each, joined by NCCL through CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dynbatch import backend
from dynbatch.backend import device_of
from dynbatch.cupy_types import device_address
from dynbatch.errors import BackendError, ParallelError
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.transport import Buffers, Transport


class NcclTransport(Transport):
    """Exchanges bytes between GPUs; see `Transport`. It has not been run on cards yet.

    The host waits for nothing: messages go on CuPy's current stream, after all that is queued, and
    before all that comes later. NCCL does not see that ranks differ: their GPUs wait for each other
    until another transport's error ends the run, by `fail` or `interrupt`.

    Args:
        nccl:   CuPy's module, as `backend.nccl` gives it.
        joined: the `NcclCommunicator` of this rank and its GPU, which is CuPy's current one.

    Raises:
        BackendError: by `exchange`: an array is on another GPU.
    """

    name = "nccl"

    def __init__(self, nccl: Any, joined: Any) -> None:
        super().__init__(joined.rank_id(), joined.size())
        self._nccl = nccl
        self._joined = joined
        self._gpu = backend.device("cuda")
        self._ending = threading.Lock()

    def exchange(self, sent: Buffers, received: Buffers, is_of_all: bool = True) -> None:
        if self._failure is not None:
            raise self._failure
        for each in (*sent, *received):
            if each is not None and device_of(each) != self._gpu:
                raise BackendError(
                    f"rank {self.rank} joined the others by {self._gpu.name}, and an array is on "
                    f"{device_of(each).name}.\n"
                    "  rule: a rank has one GPU, on which its arrays are\n"
                    f"  fix:  model.to({self._gpu.name!r}), or parallel.connect(device="
                    f"{device_of(each).name!r})"
                )
        stream_of(self._gpu).flush()
        stream = backend.cupy().cuda.get_current_stream().ptr
        char = self._nccl.NCCL_CHAR
        try:
            self._nccl.groupStart()
            try:
                for r, (out, into) in enumerate(zip(sent, received, strict=True)):
                    if out is not None and out.nbytes:
                        self._joined.send(device_address(out), out.nbytes, char, r, stream)
                    if into is not None and into.nbytes:
                        self._joined.recv(device_address(into), into.nbytes, char, r, stream)
            finally:
                self._nccl.groupEnd()  # in an open group NCCL would put off its end too
        except (self._nccl.NcclError, KeyError) as error:  # CuPy has no name for a status above 5
            raise self._failure or ParallelError(f"rank {self.rank}: NCCL: {error}.") from error

    def interrupt(self, message: str, rank: int | None = None) -> None:
        """End what the GPU waits for too. The first message counts."""
        self._end(ParallelError(message, rank), self._joined.abort)

    def fail(self, message: str, rank: int, is_asked: bool = False) -> None:
        """End what this rank's GPU waits for. The ranks' host transport tells the others why."""
        self.interrupt(message, rank)

    def close(self) -> None:
        left = ParallelError(f"rank {self.rank} has left the run.", self.rank)
        self._end(left, self._joined.destroy)

    def _end(self, failure: ParallelError, free: Callable[[], object]) -> None:
        with self._ending:
            if self._failure is not None:
                return
            self._failure = failure
        free()  # once


def joined_by_nccl(communicator: Communicator) -> NcclTransport:
    """Connect CuPy's current GPU to those of all other ranks of a communicator.

    Raises:
        BackendError:  NCCL is not installed.
        ParallelError: NCCL refuses: two ranks with one GPU, say.
    """
    nccl, rank, size = backend.nccl(), communicator.rank, communicator.size
    unique_id = communicator.broadcast_object(None if rank else nccl.get_unique_id())
    try:
        return NcclTransport(nccl, nccl.NcclCommunicator(size, unique_id, rank))
    except nccl.NcclError as error:
        device = backend.cupy().cuda.runtime.getDevice()
        raise ParallelError(
            f"rank {rank} of {size}, on GPU {device}: NCCL cannot join the ranks: {error}.\n"
            "  rule: every rank has a GPU of its own\n"
            "  fix:  start as many processes on a machine as it has GPUs; NCCL_DEBUG=INFO in the "
            "environment tells more"
        ) from error
