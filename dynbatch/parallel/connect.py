"""`connect`: the communicator of this process, by how it was started."""

from __future__ import annotations

from dynbatch.errors import ParallelError
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.environment import place_in_run
from dynbatch.parallel.mpi import joined_by_mpi
from dynbatch.parallel.rendezvous import join


def connect(transport: str | None = None, timeout: float = 60.0) -> Communicator:
    """Join the run that this process was started for; without one it is rank 0 of 1.

    Args:
        transport: "tcp" where `dynbatch launch` or torchrun started the processes, "mpi" where
            mpiexec or SLURM did; by default what the environment says. MPI is that of mpi4py:
            pip install 'dynbatch[mpi]'.
        timeout:   seconds until all other processes must have come; MPI's launcher has its own.

    Raises:
        ParallelError: the environment is not whole, not all processes came in time, or there is
            no MPI where it is wanted.

    Example:
        >>> from dynbatch import parallel
        >>> parallel.connect()
        Communicator(rank 0 of 1)
    """
    place = place_in_run()
    if transport not in (None, "tcp", "mpi"):
        raise ParallelError(f"the transport {transport!r} is unknown: 'tcp' or 'mpi'.")
    if transport == "mpi" or (transport is None and place.by_mpi):
        joined = joined_by_mpi(place)
        return Communicator(joined if joined.size > 1 else None)
    if place.size == 1:
        return Communicator()
    if place.by_mpi:
        raise ParallelError(
            'transport="tcp" is given, and an MPI launcher started this process.\n'
            "  rule: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where ranks meet by TCP\n"
            "  fix:  set them, or start with `dynbatch launch`"
        )
    return Communicator(join(place, timeout))
