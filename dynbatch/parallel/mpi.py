"""Ranks that an MPI launcher started, joined by the MPI of mpi4py."""

from __future__ import annotations

import importlib
import os
import stat
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

from dynbatch.errors import ParallelError
from dynbatch.parallel.environment import PlaceInRun
from dynbatch.parallel.transport import Buffers, Transport, bytes_of, unexpected

TAGS = (1 << 15) - 1
"""Exchanges of all have the tags from 1, so that ranks which differ get an error, and a message
between two ranks has the tag 0. Every MPI has tags up to 32767."""

READING_SECONDS = 1.0
"""How long a rank that ends all others waits for the launcher to read what it printed."""

SPIN_SECONDS = 1e-4
LONGEST_SLEEP = 1e-3


class MpiTransport(Transport):
    """Exchanges bytes through MPI; see `Transport`. `joined_by_mpi` makes one.

    Messages are looked at before they are received: one of another exchange or of another length is
    an error, where MPI itself would wait, cut or write it elsewhere. A rank that waits longer than
    `SPIN_SECONDS` sleeps between looks, a hundredth of its time, since others may need the core;
    MPI's own waits would not. What fails is ended by MPI, on all machines.

    Args:
        mpi: the module mpi4py.MPI.
    """

    name = "mpi"
    numbers = TAGS

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._joined = mpi.COMM_WORLD.Dup()  # messages of the user's program are others
        super().__init__(self._joined.Get_rank(), self._joined.Get_size())
        self._moving: list[Any] = []  # with its buffers: MPI may go on after an error

    def _move(self, number: int, sent: Buffers, received: Buffers) -> None:
        byte, send = self._mpi.BYTE, self._joined.Isend
        out, into = [
            {r: bytes_of(each) for r, each in enumerate(buffers) if each is not None}
            for buffers in (sent, received)
        ]
        try:
            self._moving = [send([data, byte], r, number) for r, data in out.items()]
            start = time.perf_counter()
            while not self._has_moved(number, into):
                waited = time.perf_counter() - start
                if waited > SPIN_SECONDS:
                    time.sleep(min(waited / 100, LONGEST_SLEEP))
        except self._mpi.Exception as error:
            raise ParallelError(f"rank {self.rank}: MPI failed: {error}.") from error
        self._moving = []

    def fail(self, message: str, rank: int, is_asked: bool = False) -> None:
        """End all ranks, those too that compute or hang, after this one has printed why."""
        if sys.exc_info()[0] is None:
            print(message, file=sys.stderr)
        else:
            traceback.print_exc()  # nothing is printed after MPI ends this process
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor in (1, 2):
            wait_until_read(descriptor)
        self._mpi.COMM_WORLD.Abort(1)
        os._exit(1)  # MPICH's returns while the launcher ends the others

    def close(self) -> None:
        if self._failure is None and not self._moving:
            self._joined.Free()

    def _has_moved(self, number: int, into: dict[int, memoryview]) -> bool:
        """Whether all is sent and received. Receives what has come of `into`."""
        if self._failure is not None:
            raise self._failure
        status = self._mpi.Status()
        for r in list(into):
            message = self._joined.Improbe(r, self._mpi.ANY_TAG, status)
            if message is None:
                continue
            length, theirs = status.Get_elements(self._mpi.BYTE), status.Get_tag()
            if (theirs, length) != (number, into[r].nbytes):
                raise unexpected(r, length, theirs, into[r].nbytes, number)
            self._moving.append(message.Irecv([into.pop(r), self._mpi.BYTE]))
        return not into and bool(self._mpi.Request.Testall(self._moving))


def wait_until_read(descriptor: int) -> None:
    """Wait until nothing is left in a pipe: the launcher drops that when MPI ends the ranks."""
    try:
        import fcntl
        import termios
    except ImportError:  # Windows
        return
    end = time.monotonic() + READING_SECONDS
    with suppress(OSError):  # it is closed
        while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < end:
            if not any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))):
                break
            time.sleep(LONGEST_SLEEP)


def joined_by_mpi(place: PlaceInRun) -> MpiTransport:
    """Connect this process to all others that its MPI launcher started.

    Raises:
        ParallelError: mpi4py or its MPI is not installed, or it is another MPI than the launcher's.
    """
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # the second where mpi4py finds no MPI
        raise ParallelError(
            f"MPI is not available: mpi4py cannot be imported ({error}).\n"
            "  fix:  pip install 'dynbatch[mpi]' beside the MPI of the cluster (or "
            "pip install mpich where there is none), or start with `dynbatch launch`"
        ) from error
    size = mpi.COMM_WORLD.Get_size()
    if place.size not in (1, size):
        raise ParallelError(
            f"the environment tells of {place.size} processes, and the MPI of mpi4py of {size}: "
            f"{mpi.Get_library_version().splitlines()[0]}.\n"
            "  rule: mpi4py loads the MPI that mpiexec belongs to\n"
            "  fix:  the mpiexec of that MPI; or srun --mpi=pmix or pmi2, as `srun --mpi=list` "
            "has it;\n        with several MPIs, MPI4PY_LIBMPI names the library"
        )
    return MpiTransport(mpi)
