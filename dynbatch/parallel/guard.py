"""`RankGuard`: a thread beside a rank that learns how others fail, and lets the rank end too."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from dynbatch.errors import ParallelError
from dynbatch.parallel.run_log import (
    ENDED,
    FAILED,
    FROZEN,
    LAUNCHER,
    LOST,
    REPORT,
    LogEntry,
    RunLog,
    is_told_here,
)

BEAT_SECONDS = 0.5
"""Between two looks, unless `DYNBATCH_GUARD` says otherwise. All limits are multiples of it."""

RAISE_TICKS = 3
"""For so long another rank's failure waits for an exchange, before it is raised where Python is."""

FROZEN_TICKS = 6
"""For so long a rank may be stopped."""

GRACE_TICKS = 8
"""For so long a rank may compute when another one failed, until it is ended by force."""

UNWINDING_TICKS = 60
"""For so long it may end in order: it has seen the error, or somebody asked the run to end."""

ENDING = tuple(
    [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
)
"""The signals that end a run: Ctrl-C, a request, and, where there is one, a terminal that goes."""


def beat_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds between looks: `DYNBATCH_GUARD`. With 0, and on Windows, there are no guards.

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
            "  rule: seconds between two looks of a rank's guard; 0 for no guards"
        )
    return seconds if os.name == "posix" else 0.0


class RankGuard:
    """The guard of a rank. It counts its own ticks, not seconds: where all processes stop and go
    on, or a laptop sleeps, nobody is taken for lost.

    * It reads the log of the run. When another rank failed it ends the exchange that waits, then
      what Python computes, and, where that does not help, the process.
    * It looks after the next rank on its machine: one that has ended without a word, or is stopped,
      cannot tell it itself. A rank that is busy needs to tell nothing.
    * It ends its rank when `dynbatch launch` has ended without waiting for it.

    Without a log, of ranks that MPI joins, it ends one that is stopped: MPI ends the others.

    Args:
        rank:      of this process.
        pids:      of all ranks on this machine, by rank.
        log:       of the run.
        tick:      seconds between two looks.
        interrupt: takes a message and the rank that failed; called from a thread.
    """

    def __init__(
        self, rank: int, pids: Mapping[int, int], log: RunLog | None, tick: float,
        interrupt: Callable[[str, int], None],
    ) -> None:  # fmt: skip
        self._rank = rank
        self._pids = pids
        self._log = log
        self._tick_seconds = tick
        self._interrupt = interrupt
        *_, launcher = os.environ.get(REPORT, "").split() or [str(os.getppid())]
        self._launcher = int(launcher)  # not the parent where its program starts another one
        self._watched, self._stopped = rank, 0
        self._reacting = 0
        self._taken, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="dynbatch guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def taken(self) -> None:
        """Note that this rank has seen an error of the run, and ends by itself."""
        self._taken.set()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        with suppress(OSError):  # the log was closed
            while not self._closing.wait(self._tick_seconds):
                self.tick(state_of)

    def tick(self, state_of: Callable[[int], str]) -> None:
        """Look for what happened since the last tick."""
        failure = None if self._log is None else self._log.failure()
        if failure is None:
            failure = self._seen_failure(state_of)
        if failure is None:
            return
        if self._log is not None:
            self._react(failure)
        elif failure.kind == FROZEN:
            print(f"error: {failure.message}", file=sys.stderr, flush=True)
        if failure.kind == FROZEN and failure.rank == self._watched != self._rank:
            kill(self._pids[failure.rank])

    def _seen_failure(self, state_of: Callable[[int], str]) -> LogEntry | None:
        """A failure that nobody has told of, noted in the log."""
        is_told = REPORT in os.environ
        if is_told and self._launcher != os.getppid() and state_of(self._launcher) in ("", "Z"):
            return self._noted(
                LOST, LAUNCHER, "`dynbatch launch` was killed, and its ranks end with it."
            )
        left = set() if self._log is None else self._log.left()
        ranks = sorted(self._pids.keys() - left, key=lambda r: (r <= self._rank, r))
        watched = next(iter(ranks), self._rank)
        if watched != self._watched:
            self._watched, self._stopped = watched, 0
        if watched == self._rank:
            return None
        state = state_of(self._pids[watched])
        self._stopped = self._stopped + 1 if state == "T" else 0
        if self._stopped == FROZEN_TICKS:
            return self._noted(
                FROZEN, watched, f"rank {watched} is frozen: its process {self._pids[watched]} is "
                f"stopped (SIGSTOP) since {FROZEN_TICKS * self._tick_seconds:.2g} s."
            )  # fmt: skip
        # A rank notes that it leaves before it ends: it may have done both since `left` was read.
        if state in ("", "Z") and self._log is not None and watched not in self._log.left():
            return self._noted(
                LOST, watched, f"rank {watched} ended without a word: its process "
                f"{self._pids[watched]} was killed, or ended at once (os._exit, a crash in C)."
            )  # fmt: skip
        return None

    def _noted(self, kind: str, rank: int, message: str) -> LogEntry:
        if self._log is None:
            return LogEntry(kind, rank, message)
        return self._log.note(kind, rank, message)

    def _react(self, failure: LogEntry) -> None:
        """Let the exchange end by an error, or where there is none, what Python does."""
        kind, rank, message = failure
        if rank == self._rank and kind in (FAILED, ENDED):
            return  # it ends by itself, or a debugger looks at it
        if self._reacting == 0:
            self._interrupt(message, rank)
        self._reacting += 1
        if self._reacting == 1 + RAISE_TICKS and kind != ENDED and not self._taken.is_set():
            _raise_in_main_thread(message, rank)
        has_time = kind == ENDED or self._taken.is_set()
        if self._reacting > (UNWINDING_TICKS if has_time else GRACE_TICKS):
            if not self._taken.is_set() and is_told_here(ParallelError(message, rank), self._rank):
                print(f"error: {message}", file=sys.stderr, flush=True)
            kill(os.getpid())


def _raise_in_main_thread(message: str, rank: int) -> None:
    """Raise a `ParallelError` between two steps of Python, as Ctrl-C raises its own."""

    def initialize(error: ParallelError) -> None:
        ParallelError.__init__(error, message, rank)

    members = {"__init__": initialize, "__module__": ParallelError.__module__}
    error = type("ParallelError", (ParallelError,), members)  # an instance cannot be given
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(threading.main_thread().ident or 0), ctypes.py_object(error)
    )


def kill(pid: int) -> None:
    """End a process, if it has not ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    """The state of a process, a letter: "T" is stopped by a signal, "Z" ended; "" without one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return ""  # it has ended
    with os.popen(f"ps -o state= -p {pid}") as told:
        return told.read().strip()[:1]
