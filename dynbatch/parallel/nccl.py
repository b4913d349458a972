"""Ranks with a GPU each, joined by NCCL through CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch import backend
from dynbatch.errors import ParallelError
from dynbatch.kernels.cuda.runtime.cupy_types import device_address
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.transport import Buffer, Transport


class NcclTransport:
    """Exchanges bytes between GPUs; see `Transport`. It has not been run on cards yet.

    The host waits for nothing: messages go on CuPy's current stream, after all that is queued, and
    before all that comes later. NCCL does not see that ranks differ: their GPUs wait for each other
    until another transport's error ends the run, by `fail` or `interrupt`.

    Args:
        nccl:   CuPy's module, as `backend.nccl` gives it.
        joined: the `NcclCommunicator` of this rank and its GPU.
    """

    name = "nccl"

    def __init__(self, nccl: Any, joined: Any) -> None:
        self._nccl = nccl
        self._joined = joined
        self.rank: int = joined.rank_id()
        self.size: int = joined.size()
        self._failure: ParallelError | None = None

    def exchange(
        self,
        sent: Sequence[Buffer | None],
        received: Sequence[Buffer | None],
    ) -> None:
        if self._failure is not None:
            raise self._failure
        queue().flush()
        stream = backend.cupy().cuda.get_current_stream().ptr
        char = self._nccl.NCCL_CHAR
        try:
            self._nccl.groupStart()
            for r, (out, into) in enumerate(zip(sent, received, strict=True)):
                if out is not None and out.nbytes:
                    self._joined.send(device_address(out), out.nbytes, char, r, stream)
                if into is not None and into.nbytes:
                    self._joined.recv(device_address(into), into.nbytes, char, r, stream)
            self._nccl.groupEnd()
        except self._nccl.NcclError as error:
            raise self._failure or ParallelError(f"rank {self.rank}: {error}.") from error

    def interrupt(self, message: str, rank: int | None = None) -> None:
        """End what the GPU waits for too."""
        self._failure = ParallelError(message, rank)
        self._joined.abort()

    def fail(self, message: str, rank: int | None = None) -> None:
        """End what this rank's GPU waits for. The ranks' host transport tells the others why."""
        self.interrupt(message, self.rank if rank is None else rank)

    def close(self) -> None:
        if self._failure is None:
            self._joined.destroy()


def joined_by_nccl(host: Transport) -> Communicator:
    """Connect CuPy's current GPU to those of all other ranks, which a host transport joins.

    Raises:
        BackendError:  NCCL is not installed.
        ParallelError: NCCL refuses: two ranks with one GPU, say.
    """
    communicator = Communicator(host)
    try:
        return Communicator(host, _joined(communicator))
    except BaseException as error:
        communicator.fail(f"rank {host.rank} failed: {type(error).__name__}: {error}")
        communicator.close()
        raise


def _joined(communicator: Communicator) -> NcclTransport:
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
