"""`connect`: the communicator of this process, by how it was started."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from weakref import WeakSet

from dynbatch import backend
from dynbatch.errors import BackendError, DynbatchError, ParallelError
from dynbatch.kernels.runtime.parallel import share_processors
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.ending import end_with_process, show_without_traceback
from dynbatch.parallel.environment import PlaceInRun, place_in_run
from dynbatch.parallel.guard import RankGuard, beat_seconds
from dynbatch.parallel.mpi import joined_by_mpi
from dynbatch.parallel.nccl import joined_by_nccl
from dynbatch.parallel.rendezvous import join
from dynbatch.parallel.shared_memory import machine
from dynbatch.parallel.sockets import SocketTransport
from dynbatch.parallel.transport import Transport


def connect(
    transport: str | None = None, timeout: float = 60.0, device: str = "cpu"
) -> Communicator:
    """Join the run that this process was started for; without one it is rank 0 of 1.

    Args:
        transport: "mpi" where mpiexec or SLURM started the processes, and the environment does not
            say so. MPI is that of mpi4py: pip install 'dynbatch[mpi]'. It joins machines; sockets
            join the processes of one that `dynbatch launch` or torchrun started.
        timeout:   seconds until all other processes must have come; MPI's launcher has its own.
        device:    "cuda" makes the GPU with this process's number on its machine (`LOCAL_RANK`)
            CuPy's current one, "cuda:1" that one, and joins the GPUs of all ranks by NCCL: sums of
            their arrays stay there. NCCL comes with `pip install nvidia-nccl-cu13`. It has not been
            run on cards yet.

    A thread, the guard of a process, looks after the others; `DYNBATCH_GUARD=0` starts none. When
    this process ends, the communicator is closed, and an uncaught error told to all others. One
    that `connect` itself raises is printed without a traceback.

    Raises:
        BackendError:  there is no such GPU, or no NCCL.
        ParallelError: the environment is not whole, torchrun started processes on several machines,
            not all processes came in time or two are one rank, or there is no MPI where it is
            wanted.

    Example:
        >>> from dynbatch import parallel
        >>> parallel.connect()
        Communicator(rank 0 of 1)
    """
    try:
        communicator = _connected(transport, timeout, device)
    except DynbatchError as error:
        show_without_traceback(error, _communicators)
        raise
    _communicators.add(communicator)
    return communicator


def _connected(transport: str | None, timeout: float, device: str) -> Communicator:
    membership = place_in_run()
    if transport not in (None, "mpi"):
        raise ParallelError(
            f"the transport {transport!r} is unknown.\n"
            "  rule: sockets join processes of one machine, and MPI those of several\n"
            '  fix:  leave it out, and the launcher decides; or transport="mpi"'
        )
    if device not in ("cpu", "cuda"):
        backend.device(device).use()
    elif device == "cuda":
        _use_gpu(membership.local_rank)
    host = _host_transport(transport, membership, timeout)
    communicator = Communicator(host)
    if host is not None:
        with ExitStack() as joining:  # the others learn why it could not
            joining.enter_context(communicator)
            if device != "cpu":
                communicator.device = joined_by_nccl(communicator)
            _guard(communicator, host)
            joining.pop_all()
    return communicator


def connected() -> int:
    """The number of processes that the open communicators of this one join; 1 without any."""
    return max([each.size for each in _communicators if not each.is_closed], default=1)


_communicators: WeakSet[Communicator] = WeakSet()


def _guard(communicator: Communicator, host: Transport) -> None:
    """Let the ends of this process and of the others be noticed, and all share the processors."""
    share_processors()
    tick = communicator.broadcast_object(beat_seconds() if communicator.rank == 0 else None)
    here = (socket.gethostname(), machine())
    told = communicator.gather_objects((here, os.getpid()))
    if tick:
        pids = {rank: pid for rank, (there, pid) in enumerate(told) if there == here}
        log = host.log if isinstance(host, SocketTransport) else None
        communicator.guard = RankGuard(host.rank, pids, log, tick, communicator.interrupt)
        communicator.guard.start()
    end_with_process(communicator)


def _host_transport(
    transport: str | None, membership: PlaceInRun, timeout: float
) -> Transport | None:
    if transport == "mpi" or membership.by_mpi:
        joined = joined_by_mpi(membership)
        return joined if joined.size > 1 else None
    return None if membership.size == 1 else join(membership, timeout)


def _use_gpu(local_rank: int) -> None:
    """Make a process's own GPU the current one; it may be the only one that the process sees.

    Raises:
        BackendError: there are fewer.
    """
    cuda = backend.device("cuda").xp.cuda
    count = cuda.runtime.getDeviceCount()
    if local_rank >= count > 1:
        raise BackendError(
            f"process {local_rank} of this machine has no GPU: there are {count}.\n"
            "  rule: every process has a GPU of its own, that with its number (LOCAL_RANK)\n"
            f"  fix:  start {count} on this machine"
        )
    backend.device(f"cuda:{local_rank if count > 1 else 0}").use()
