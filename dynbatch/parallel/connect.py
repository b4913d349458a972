"""`connect`: the communicator of this process, by how it was started."""

from __future__ import annotations

from dynbatch.errors import ParallelError
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.environment import place_in_run
from dynbatch.parallel.rendezvous import join


def connect(transport: str | None = None, timeout: float = 60.0) -> Communicator:
    """Join the run that this process was started for; without one it is rank 0 of 1.

    Args:
        transport: "tcp" where `dynbatch launch` or torchrun started the processes, "mpi" where
            mpiexec or SLURM did; by default what the environment says.
        timeout:   seconds until all other processes must have come.

    Raises:
        ParallelError: the environment is not whole, or not all processes came in time.

    Example:
        >>> from dynbatch import parallel
        >>> parallel.connect()
        Communicator(rank 0 of 1)
    """
    place = place_in_run()
    if transport not in (None, "tcp", "mpi"):
        raise ParallelError(f"the transport {transport!r} is unknown: 'tcp' or 'mpi'.")
    if place.size == 1:
        return Communicator()
    return Communicator(join(place, timeout))
