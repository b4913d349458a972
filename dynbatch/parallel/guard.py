"""`RankGuard`: the small process beside a rank, as the rank itself sees it; see `guard_process`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dynbatch.errors import ParallelError
from dynbatch.parallel.guard_process import ENDING

PROGRAM = Path(__file__).with_name("guard_process.py")

BEAT_SECONDS = 0.5
"""Between two beats, unless `DYNBATCH_GUARD` says otherwise. All limits are multiples of it."""

RAISE_TICKS = 3
"""For so long another rank's failure waits for an exchange, before it is raised where Python is."""

REPORT = "DYNBATCH_REPORT"
"""Names the file descriptor on which `dynbatch launch` reads who failed."""


def beat_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds between beats: `DYNBATCH_GUARD`. With 0, and on Windows, there are no guards.

    Raises:
        ParallelError: it is not a number, or a negative one.
    """
    text = environment.get("DYNBATCH_GUARD", str(BEAT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise ParallelError(
            f"the environment variable DYNBATCH_GUARD is {text!r}.\n"
            "  rule: seconds between the beats of a rank's guard; 0 for no guards"
        )
    return seconds if os.name == "posix" and sys.executable else 0.0


class RankGuard:
    """Starts the guard of this process, tells it how the rank ends, and hears how others do.

    Args:
        rank:      of this process.
        links:     a socket to each guard that this one is joined to, by rank; closed here.
        tick:      seconds between beats.
        interrupt: takes a message and the rank that failed; called from a thread.
    """

    def __init__(
        self, rank: int, links: Mapping[int, socket.socket], tick: float,
        interrupt: Callable[[str, int], None],
    ) -> None:  # fmt: skip
        self._rank = rank
        self._tick = tick
        self._interrupt = interrupt
        self._taken = threading.Event()
        self._is_closing = False
        self._pid = os.getpid()
        self._socket, theirs = socket.socketpair()
        report = _inherited(os.environ.get(REPORT))
        settings = {
            "rank": rank, "pid": self._pid, "tick": tick, "parent": theirs.fileno(),
            "guards": {r: link.fileno() for r, link in links.items()}, "report": report,
        }  # fmt: skip
        inherited = [theirs.fileno(), *[link.fileno() for link in links.values()]]
        with _no_signal():
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM), json.dumps(settings)],
                pass_fds=inherited if report is None else [*inherited, report],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        for each in (theirs, *links.values()):
            each.close()
        self._thread = threading.Thread(target=self._listen, name="dynbatch guard", daemon=True)
        self._thread.start()

    def failed(self, message: str, rank: int, is_asked: bool = False) -> None:
        kind = "ended" if is_asked else "failed"
        self._send({"kind": kind, "rank": rank, "message": message})

    def taken(self) -> None:
        """Say that this rank has seen an error of the run, and ends by itself."""
        if not self._taken.is_set():
            self._taken.set()
            self._send({"kind": "taken"})

    def close(self) -> None:
        if os.getpid() != self._pid:  # a fork
            return
        self._is_closing = True
        self._taken.set()
        self._send({"kind": "bye"})
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(1.0)
        self._socket.close()

    def _send(self, message: dict[str, object]) -> None:
        if os.getpid() == self._pid:
            with suppress(OSError):  # the guard has ended, which `_listen` notices
                self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                verdict = json.loads(line)
                self._end(verdict["message"], verdict["rank"], verdict["kind"] == "ended")
        if not self._is_closing:
            message = f"rank {self._rank} lost its guard, the process {self._process.pid}."
            self._end(message, self._rank, False)

    def _end(self, message: str, rank: int, is_asked: bool) -> None:
        """Let the exchange end by an error, or where there is none, what Python does."""
        self._interrupt(message, rank)
        if not is_asked and not self._taken.wait(RAISE_TICKS * self._tick):
            _raise_in_main_thread(message, rank)


def tell_launcher(message: str, rank: int) -> None:
    """Tell `dynbatch launch` that a rank was asked to end where all end in order, each by itself:
    no guard speaks then, and all have the same exit status. Without a launcher it does nothing."""
    if (report := _inherited(os.environ.get(REPORT))) is not None:
        told = {"kind": "ended", "rank": rank, "message": message}
        with suppress(OSError):  # the launcher has ended
            os.write(report, json.dumps(told).encode() + b"\n")


def _raise_in_main_thread(message: str, rank: int) -> None:
    """Raise a `ParallelError` between two steps of Python, as Ctrl-C raises its own."""

    def initialize(error: ParallelError) -> None:
        ParallelError.__init__(error, message, rank)

    members = {"__init__": initialize, "__module__": ParallelError.__module__}
    error = type("ParallelError", (ParallelError,), members)  # an instance cannot be given
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(threading.main_thread().ident or 0), ctypes.py_object(error)
    )


@contextmanager
def _no_signal() -> Iterator[None]:
    """Hold back signals that end a process; one started inside keeps them so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _inherited(text: str | None) -> int | None:
    """A file descriptor that the environment names, if it is open."""
    try:
        descriptor = int(text or "")
        os.fstat(descriptor)
    except (ValueError, OSError):
        return None
    return descriptor
