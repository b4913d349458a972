"""Rank 0's listening address, and how ranks on its machine learn that it cannot listen."""

from __future__ import annotations

import errno
import json
import socket
import sys
import threading
import time
from contextlib import suppress
from hashlib import blake2b

from dynbatch.errors import ParallelError
from dynbatch.parallel.environment import PlaceInRun

TELL_SECONDS = 8.0
"""How long rank 0 tells why it cannot listen: for ranks that are still being started."""

LOCAL_ADDRESS = (
    "`hostname -I` shows this machine's addresses, and 127.0.0.1 serves ranks on it alone"
)


def listening(host: str, port: int, source: str = "MASTER_ADDR and MASTER_PORT") -> socket.socket:
    """A socket that listens.

    Args:
        port:   0 for any free one.
        source: what named host and port, for the message.

    Raises:
        ParallelError: another program has the port, or it is no address of this machine.
    """
    try:
        return socket.create_server((host, port), backlog=256)
    except OSError as error:
        problem, fix = str(error.strerror).partition(" (")[0], LOCAL_ADDRESS
        if error.errno == errno.EADDRINUSE:
            problem = "another program listens there"
            fix = "another port; `dynbatch launch` on one machine finds a free one"
        elif error.errno == errno.EADDRNOTAVAIL:
            problem = "it is an address of another machine, or of none"
        elif error.errno == errno.EACCES:
            problem, fix = "this user may not", "a port from 1024 on"
        raise ParallelError(
            f"rank 0 cannot listen at {host}:{port}: {problem}.\n"
            f"  rule: {source} are an address of rank 0's machine, and a free port there\n"
            f"  fix:  {fix}",
            rank=0,
        ) from error


def tell_neighbours(place: PlaceInRun, reason: str) -> None:
    """Tell other ranks on this machine, for some seconds, why rank 0 does not listen.

    They would wait for it, at an address where nobody answers, or another program. A thread answers
    whoever asks, and holds this process until all have asked or the time is over. The socket has a
    name without a file (Linux): nothing is left behind, and no later run reads it.
    """
    if sys.platform != "linux":
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(place))
        listener.listen(place.size)
    except OSError:  # another rank 0 of this address tells the same
        listener.close()
        return

    def answer() -> None:
        end, words = time.monotonic() + TELL_SECONDS, json.dumps(reason).encode()
        with listener, suppress(TimeoutError):
            for _ in range(1, place.size):
                listener.settimeout(max(0.01, end - time.monotonic()))
                asker, _ = listener.accept()
                with asker, suppress(OSError):
                    asker.sendall(words)

    threading.Thread(target=answer, name="dynbatch rank 0").start()


def require_rank_0(place: PlaceInRun) -> None:
    """Ask whether rank 0 tells on this machine that it cannot listen.

    Raises:
        ParallelError: it does.
    """
    if sys.platform != "linux":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked, suppress(OSError, ValueError):
        asked.settimeout(1.0)
        asked.connect(_name(place))
        with asked.makefile("rb") as words:
            raise ends(place, json.loads(words.read()))


def ends(place: PlaceInRun, reason: str) -> ParallelError:
    """The error of a rank that cannot reach rank 0, in a line."""
    return ParallelError(f"rank {place.rank} ends: {reason}", rank=0)


def _name(place: PlaceInRun) -> bytes:
    run = f"{place.address} {place.size} {place.secret}"
    return b"\0dynbatch-" + blake2b(run.encode(), digest_size=16).hexdigest().encode()
