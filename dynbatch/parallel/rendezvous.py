"""The meeting of the ranks of one machine: each connects to those below it.

They meet at sockets in a folder that only their user may enter, so nobody else can join, and
nothing listens on a network.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from dynbatch.errors import ParallelError
from dynbatch.parallel.environment import RUN, PlaceInRun
from dynbatch.parallel.run_log import RunLog, log_of_launcher
from dynbatch.parallel.sockets import SocketTransport

HELLO_BYTES = 4
"""Of the rank that connects."""

ONE_RUN = f"each run has a MASTER_PORT or {RUN} of its own, and each rank is there once"
OTHER_NAME = f"`dynbatch launch` chooses a port; {RUN}=NAME, on all ranks, tells runs apart"


def join(place: PlaceInRun, timeout: float = 60.0) -> SocketTransport:
    """Connect this process to all others of its run, which are on this machine.

    Args:
        timeout: seconds until all must have come.

    Raises:
        ParallelError: the run is one of several machines, there are no such sockets (Windows), not
            all came in time, or two processes are one rank.
    """
    if place.local_size != place.size:
        raise ParallelError(
            f"{place.local_size} of {place.size} processes are on this machine (LOCAL_WORLD_SIZE, "
            "WORLD_SIZE).\n"
            "  rule: `dynbatch launch` and torchrun join processes of one machine; MPI joins those "
            "of several\n"
            "  fix:  pip install 'dynbatch[mpi]', and start the program itself with mpiexec or "
            f"srun:\n        mpiexec -n {place.size} -hosts node1,node2 python program.py"
        )
    require_sockets(place.size)
    end, paths = time.monotonic() + timeout, _paths(place)
    peers: list[socket.socket | None] = [None] * place.size
    with ExitStack() as opened, _listening(paths[place.rank], place) as listener:
        log = log_of_launcher() or RunLog() if place.rank == 0 else None
        for rank in range(place.rank):
            peer = peers[rank] = opened.enter_context(_connected(place, rank, paths[rank], end))
            if rank == 0:
                log = _log_of(place, peer)
        while missing := [r for r in range(place.rank + 1, place.size) if peers[r] is None]:
            rank, peer = _accepted(place, listener, missing, end)
            peers[rank] = opened.enter_context(peer)
            if place.rank == 0 and log is not None:
                socket.send_fds(peer, [b"l"], [log.descriptor])
        opened.pop_all()
    assert log is not None
    return SocketTransport(place.rank, peers, log)


def require_sockets(size: int) -> None:
    """Check that processes can be joined without MPI.

    Raises:
        ParallelError: the system has no sockets with a path that carry open files (Windows).
    """
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "send_fds"):
        raise ParallelError(
            f"on {sys.platform} dynbatch joins several processes by MPI alone.\n"
            "  rule: `dynbatch launch`, torchrun and RANK are for Linux and macOS\n"
            f"  fix:  pip install 'dynbatch[mpi]', and mpiexec -n {size} python program.py; one\n"
            "        process alone, python program.py, uses all cores"
        )


def remove_paths(place: PlaceInRun) -> None:
    """Remove what ranks have left behind that were killed while they waited for the others."""
    with suppress(ParallelError):
        for path in _paths(place):
            with suppress(OSError):
                os.unlink(path)


def _paths(place: PlaceInRun) -> list[str]:
    """The paths at which the ranks of a run listen: none of a run that has another name."""
    run = blake2b(os.fsencode(place.run), digest_size=4).hexdigest()
    prefix = str(_private_folder() / f"{place.port}-{run}-{place.size}")
    return [f"{prefix}-{rank}" for rank in range(place.size)]


def _private_folder() -> Path:
    """The folder where runs of this user meet.

    Raises:
        ParallelError: somebody else may enter it.
    """
    folder = Path(tempfile.gettempdir(), f"dynbatch-ranks-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise ParallelError(
            f"{folder} is not a folder that this user alone may enter.\n"
            "  rule: ranks meet there, and trust whoever comes\n"
            "  fix:  remove it, or let TMPDIR name another folder on all ranks"
        )
    return folder


@contextmanager
def _listening(path: str, place: PlaceInRun) -> Iterator[socket.socket]:
    """A socket that listens at a path, which a run that was killed may have left behind.

    Raises:
        ParallelError: another run of this user meets there, or the path is too long.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                if asking.connect_ex(path) == 0:  # and may take ranks of this run for its own
                    with suppress(OSError):  # it ends
                        asking.sendall(place.rank.to_bytes(HELLO_BYTES))
                    raise OSError("another process listens there")
            with suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
        except OSError as error:
            raise ParallelError(
                f"rank {place.rank} cannot listen at {path}: {error}.\n"
                f"  rule: {ONE_RUN}; the path of a\n"
                "        socket has about a hundred characters\n"
                f"  fix:  {OTHER_NAME}; a shorter TMPDIR names another folder"
            ) from error
        listener.listen(place.size)
        try:
            yield listener
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _connected(place: PlaceInRun, rank: int, path: str, end: float) -> socket.socket:
    """A connection to a rank, which may not listen yet."""
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(path)
            peer.settimeout(max(0.1, end - time.monotonic()))
            peer.sendall(place.rank.to_bytes(HELLO_BYTES))
            return peer
        except (FileNotFoundError, ConnectionError, BlockingIOError) as error:
            peer.close()
            if time.monotonic() > end:
                raise _in_vain(place, [rank]) from error
            time.sleep(0.02)


def _accepted(
    place: PlaceInRun, listener: socket.socket, missing: Collection[int], end: float
) -> tuple[int, socket.socket]:
    """The next of the missing ranks that connects.

    Raises:
        ParallelError: another process is this rank, or one that has come, too: either may be of
            another run, and which of the others are is not known.
    """
    while True:
        listener.settimeout(max(0.1, end - time.monotonic()))
        try:
            peer, _ = listener.accept()
        except TimeoutError as error:
            raise _in_vain(place, missing) from error
        peer.settimeout(max(0.1, end - time.monotonic()))
        hello = b""
        with suppress(OSError):
            hello = peer.recv(HELLO_BYTES)
        rank = int.from_bytes(hello)
        if len(hello) == HELLO_BYTES and rank in missing:
            return rank, peer
        peer.close()
        if len(hello) == HELLO_BYTES and rank < place.size:
            raise ParallelError(
                f"two processes are rank {rank} of {place.size} at MASTER_PORT {place.port}.\n"
                f"  rule: {ONE_RUN}\n"
                f"  fix:  {OTHER_NAME}"
            )


def _log_of(place: PlaceInRun, peer: socket.socket) -> RunLog:
    """The run's log, which rank 0 sends to all others."""
    with suppress(OSError):
        _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
        if descriptors:
            return RunLog(descriptors[0])
    raise _in_vain(place, [0])


def _in_vain(place: PlaceInRun, ranks: Collection[int]) -> ParallelError:
    run = f" in the run or job {place.run}" if place.run else ""
    return ParallelError(
        f"rank {place.rank} waited in vain for ranks {sorted(ranks)} of {place.size} at MASTER_PORT"
        f" {place.port}{run}.\n"
        "  rule: all ranks are processes of one user on one machine, with one MASTER_PORT and\n"
        f"        WORLD_SIZE, of one job or {RUN}, and all call connect() in time\n"
        "  fix:  call connect() first and prepare data afterwards, or give all ranks "
        "connect(timeout=600);\n"
        "        if a rank is missing, look whether it was started, or ended with an error of its "
        "own;\n"
        "        on several machines start with mpiexec or srun, which needs 'dynbatch[mpi]'"
    )
