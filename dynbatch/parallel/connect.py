"""`connect`: the communicator of this process, by how it was started."""

from __future__ import annotations

import time
from weakref import WeakSet

from dynbatch import backend
from dynbatch.errors import BackendError, ParallelError
from dynbatch.kernels.runtime.parallel import share_processors
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.ending import end_with_process, without_traceback
from dynbatch.parallel.environment import PlaceInRun, place_in_run
from dynbatch.parallel.guard import RankGuard, beat_seconds
from dynbatch.parallel.mpi import MpiTransport, joined_by_mpi
from dynbatch.parallel.nccl import joined_by_nccl
from dynbatch.parallel.rendezvous import join, join_guards
from dynbatch.parallel.tcp import TcpTransport


def connect(
    transport: str | None = None, timeout: float = 60.0, device: str = "cpu"
) -> Communicator:
    """Join the run that this process was started for; without one it is rank 0 of 1.

    Args:
        transport: "tcp" where `dynbatch launch` or torchrun started the processes, "mpi" where
            mpiexec or SLURM did; by default what the environment says. MPI is that of mpi4py:
            pip install 'dynbatch[mpi]'.
        timeout:   seconds until all other processes must have come; MPI's launcher has its own.
        device:    "cuda" makes the GPU with this process's number on its machine (`LOCAL_RANK`)
            CuPy's current one, "cuda:1" that one, and joins the GPUs of all ranks by NCCL: sums of
            their arrays stay there. NCCL comes with `pip install nvidia-nccl-cu13`. It has not been
            run on cards yet.

    Beside each process of several a small one watches it; `DYNBATCH_GUARD=0` starts none. When this
    process ends, the communicator is closed, and an uncaught error told to all others.

    Raises:
        BackendError:  there is no such GPU, or no NCCL.
        ParallelError: the environment is not whole, rank 0 cannot listen at MASTER_ADDR and
            MASTER_PORT, not all processes came in time, or there is no MPI where it is wanted.

    Both are printed without a traceback, if nobody catches them. Ranks on the machine of a rank 0
    that cannot listen end with it; others wait for it until `timeout`.

    Example:
        >>> from dynbatch import parallel
        >>> parallel.connect()
        Communicator(rank 0 of 1)
    """
    try:
        return _joined(transport, timeout, device)
    except (BackendError, ParallelError) as error:
        without_traceback(error)
        raise


def _joined(transport: str | None, timeout: float, device: str) -> Communicator:
    membership = place_in_run()
    if transport not in (None, "tcp", "mpi"):
        raise ParallelError(f"the transport {transport!r} is unknown: 'tcp' or 'mpi'.")
    if device not in ("cpu", "cuda"):
        backend.device(device).use()
    elif device == "cuda":
        _use_gpu(membership.local_rank)
    host = _host_transport(transport, membership, timeout)
    communicator = Communicator(host) if host is None or device == "cpu" else joined_by_nccl(host)
    if host is not None:
        _guard(communicator, membership._replace(by_mpi=host.name == "mpi"), timeout)
    _communicators.add(communicator)
    return communicator


def connected() -> int:
    """The number of processes that the open communicators of this one join; 1 without any."""
    return max([each.size for each in _communicators if not each.is_closed], default=1)


_communicators: WeakSet[Communicator] = WeakSet()


def _guard(communicator: Communicator, place: PlaceInRun, timeout: float) -> None:
    """Let the ends of this process and of the others be noticed, and all share the processors."""
    share_processors()
    tick = communicator.broadcast_object(beat_seconds() if communicator.rank == 0 else None)
    if tick:
        links = join_guards(communicator, place, time.monotonic() + timeout)
        communicator.guard = RankGuard(communicator.rank, links, tick, communicator.interrupt)
    end_with_process(communicator)


def _host_transport(
    transport: str | None, place: PlaceInRun, timeout: float
) -> TcpTransport | MpiTransport | None:
    if transport == "mpi" or (transport is None and place.by_mpi):
        joined = joined_by_mpi(place)
        return joined if joined.size > 1 else None
    if place.size == 1:
        return None
    if place.by_mpi:
        raise ParallelError(
            'transport="tcp" is given, and an MPI launcher started this process.\n'
            "  rule: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where ranks meet by TCP\n"
            "  fix:  set them, or start with `dynbatch launch`"
        )
    return join(place, timeout)


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
