"""The rank of this process: read from what `dynbatch launch`, torchrun, mpiexec or SLURM set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from dynbatch.errors import ParallelError

OF_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""Names of rank, size and rank on its machine, as MPI's launchers set them."""

RUN = "DYNBATCH_RUN"
"""Names a run, where several of one user may have one MASTER_PORT."""

RUNS = (RUN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""What names a run, or the job that it is part of: all that are set count."""


class PlaceInRun(NamedTuple):
    """The rank of a process in a run.

    Args:
        rank:       0 to size - 1.
        size:       processes of the run.
        local_rank: its number among those on its machine, which chooses its GPU.
        by_mpi:     whether an MPI launcher started it.
        port:       names a run without MPI among all of this user, together with `run`.
        local_size: processes on its machine, where a launcher without MPI says so; else `size`.
        run:        text that is another one for the ranks of another run or job.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    by_mpi: bool = False
    port: int = 0
    local_size: int = 1
    run: str = ""


def place_in_run(environment: Mapping[str, str] = os.environ) -> PlaceInRun:
    """The place that the environment names; one process alone without one.

    `RANK`, `WORLD_SIZE`, `MASTER_PORT`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` are as torchrun sets
    them. Where a script of SLURM repeats its numbers under these names on several machines, MPI
    joins them.

    Raises:
        ParallelError: a name is missing or not a number.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        on_several = _number(environment, "SLURM_STEP_NUM_NODES", 1) > 1
        if on_several and "LOCAL_WORLD_SIZE" not in environment:
            by_mpi = _place_by_mpi(environment)
            if by_mpi[:2] == (rank, size):
                return by_mpi
        if not 0 <= rank < size:
            raise ParallelError(f"RANK is {rank} and WORLD_SIZE {size}: ranks are 0 to size - 1.")
        local = _number(environment, "LOCAL_RANK", rank)
        port = _number(environment, "MASTER_PORT") if size > 1 else 0
        local_size = _number(environment, "LOCAL_WORLD_SIZE", size)
        run = " ".join([environment[name] for name in RUNS if name in environment])
        return PlaceInRun(rank, size, local, False, port, local_size, run)
    return _place_by_mpi(environment)


def _place_by_mpi(environment: Mapping[str, str]) -> PlaceInRun:
    """The place that a launcher of MPI has set; one process alone without one."""
    for rank_name, size_name, local_name in OF_MPI:
        if rank_name in environment and environment.get(size_name, "1") != "1":
            rank, size = _number(environment, rank_name), _number(environment, size_name)
            local = _number(environment, local_name, rank)
            return PlaceInRun(rank, size, local, True, local_size=size)
    return PlaceInRun()


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environment.get(name)
    if value is None and default is not None:
        return default
    if value is None or not value.isdecimal():
        told = "is not set" if value is None else f"is {value!r}, not a number"
        raise ParallelError(
            f"the environment variable {name} {told}.\n"
            "  rule: RANK, WORLD_SIZE and MASTER_PORT are set together\n"
            "  fix:  start with `dynbatch launch -n 2 program.py`, torchrun or mpiexec"
        )
    return int(value)
