"""`RunLog`: a file without a name, where ranks of one machine write how they leave a run."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dynbatch.errors import ParallelError
from dynbatch.parallel.environment import place_in_run

REPORT = "DYNBATCH_REPORT"
"""Names the file descriptor of the log that `dynbatch launch` reads, and the launcher's pid."""

LAUNCHER = -1
"""Stands for `dynbatch launch` where entries name the rank that failed."""

FAILED, ENDED, LOST, FROZEN = "failed", "ended", "lost", "frozen"
"""Kinds of failures: by an error, by an exit status or Ctrl-C, without a word, by SIGSTOP."""

LEFT, ASKED = "left", "asked"
"""Kinds of entries that are no failure: a rank left in order; all end, as one was asked to."""

LONGEST_LOG = 1 << 24


class LogEntry(NamedTuple):
    """An entry of a run's log.

    Args:
        kind: one of those above.
        rank: that failed or left, which need not be the one that writes.
    """

    kind: str
    rank: int
    message: str


class RunLog:
    """The log of a run, to which each rank appends lines of JSON. The first failure counts.

    What a rank has written stays readable when its process is gone, and nothing is left behind when
    all are: the file has no name.

    Args:
        descriptor: of an open log, which `close` closes; None opens one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryDirectory() as folder:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
                descriptor = os.open(Path(folder, "log"), flags, 0o600)
        self.descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def add(self, kind: str, rank: int, message: str = "") -> None:
        """Append an entry, by one write: lines of several ranks never mix."""
        with suppress(OSError):  # no room: ranks notice that connections end
            os.write(self.descriptor, json.dumps((kind, rank, message)).encode() + b"\n")

    def note(self, kind: str, rank: int, message: str) -> LogEntry:
        """Append a failure. Returns the first one, which may be another rank's."""
        self.add(kind, rank, message)
        return self.failure() or LogEntry(kind, rank, message)  # a full disk has no room for it

    def entries(self) -> list[LogEntry]:
        lines = os.pread(self.descriptor, LONGEST_LOG, 0).split(b"\n")[:-1]
        return [LogEntry(*json.loads(line)) for line in lines]

    def failure(self) -> LogEntry | None:
        """The first failure."""
        return next((each for each in self.entries() if each.kind not in (LEFT, ASKED)), None)

    def left(self) -> set[int]:
        """Ranks that have left in order."""
        return {each.rank for each in self.entries() if each.kind == LEFT}

    def close(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


def log_of_launcher() -> RunLog | None:
    """The log that `dynbatch launch` has opened for this run, if it has started this process."""
    try:
        descriptor = int(os.environ.get(REPORT, "").split()[0])
        if os.fstat(descriptor).st_nlink:  # the number is another file's by now
            return None
        return RunLog(os.dup(descriptor))
    except (IndexError, ValueError, OSError):
        return None


def tell_launcher(message: str, rank: int) -> None:
    """Tell `dynbatch launch` that a rank was asked to end where all end in order, each by itself:
    no guard acts then, and all have the same exit status. Without a launcher it does nothing."""
    if (log := log_of_launcher()) is not None:
        log.add(ASKED, rank, message)
        log.close()


def is_told_here(error: BaseException, rank: int | None = None) -> bool:
    """Whether this rank prints an error. One of another rank is printed by the lowest of the
    others, and by nobody under `dynbatch launch`, which says it itself; that it was killed, rank 0
    prints.

    Args:
        rank: of this process; by default what the environment says.

    Example:
        >>> from dynbatch.errors import ParallelError
        >>> error = ParallelError("rank 0 was killed.", rank=0)
        >>> [is_told_here(error, rank) for rank in (0, 1, 2)]
        [True, True, False]
    """
    if not isinstance(error, ParallelError) or error.rank is None:
        return True
    rank = place_in_run().rank if rank is None else rank
    if error.rank == LAUNCHER:
        return rank == 0
    if error.rank == rank:
        return True
    return REPORT not in os.environ and rank == (1 if error.rank == 0 else 0)
