"""Starts the processes of a run on this machine, and waits until all have ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import IO, TextIO

from dynbatch.kernels.runtime.parallel import num_processors
from dynbatch.parallel.environment import RUN, place_in_run
from dynbatch.parallel.guard import ENDING
from dynbatch.parallel.rendezvous import remove_paths, require_sockets
from dynbatch.parallel.run_log import ASKED, ENDED, FROZEN, LEFT, REPORT, LogEntry, RunLog

POLL_SECONDS = 0.05
TERMINATE_SECONDS, KILL_SECONDS = 6.0, 9.0
"""After the first failure: for what has no guard, or not yet."""


def launch(command: Sequence[str], processes: int, quiet: bool = False) -> int:
    """Run a command in several processes, each with a rank. Returns the exit status.

    Rank 0 has this process's input and output; what is no terminal gets its output by whole lines.
    Lines of the others are printed behind their rank.
    SIGINT, SIGTERM and SIGHUP go to all ranks, and are waited for.

    Args:
        processes: all on this machine.
        quiet:     whether lines of other ranks' standard output are left out.

    Returns:
        0; or the exit status of the rank that failed first, 128 + N if signal N killed it, 1 if it
        left the others with 0; or 128 + N where signal N came here.

    Raises:
        ParallelError: the system cannot join them (Windows).
    """
    require_sockets(processes)
    ranks: list[_Rank] = []
    with closing(RunLog()) as log, _forwarding(ranks) as asked:
        environments = environment_of_ranks(processes, log)
        for each in environments:
            ranks.append(_Rank(int(each["RANK"]), command, each, log, quiet))
        for number in list(asked):  # it came before all were there; a second time does no harm yet
            _send_all(ranks, number)
        verdict, earliest = _waited(ranks, log, asked)
    remove_paths(place_in_run(environments[0]))
    for rank in ranks:
        rank.finish()
    return _said(ranks, verdict, earliest, asked[0] if asked else None)


def environment_of_ranks(
    processes: int, log: RunLog, environment: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    threads = str(max(1, num_processors() // processes))
    with socket.socket() as free:  # for programs that use it; our ranks meet by its name
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, **environment,
        "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        RUN: f"{environment.get(RUN, '')} launch {os.getpid()}".lstrip(),  # a port may come twice
        REPORT: f"{log.descriptor} {os.getpid()}",
    }  # fmt: skip
    every = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    for variables in every[1:]:
        variables.setdefault("PYTHONUNBUFFERED", "1")  # its lines come when they are printed
    return every


class _Rank:
    """A process of the run, and threads that print what it prints."""

    def __init__(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str],
        log: RunLog, quiet: bool,
    ) -> None:  # fmt: skip
        self.rank = rank
        apart = subprocess.PIPE if rank else None
        # A terminal is rank 0's own. In a file its lines, too, are printed when they are whole, or
        # another's would come in their midst.
        out = subprocess.PIPE if rank or not sys.stdout.isatty() else None
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            command, env=environment, pass_fds=[log.descriptor], stdout=out, stderr=apart,
            stdin=subprocess.DEVNULL if rank else None,
        )  # fmt: skip
        prefix = f"[{rank}] " if rank else ""
        printed = None if quiet and rank else sys.stdout
        streams = ((self.process.stdout, printed), (self.process.stderr, sys.stderr))
        self._threads = [
            threading.Thread(target=copy_lines, args=(source, into, prefix), daemon=True)
            for source, into in streams
            if source is not None
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait for the last lines; a child that outlives the rank may hold its output open."""
        for thread in self._threads:
            thread.join(2.0)


def copy_lines(source: IO[bytes], into: TextIO | None, prefix: str) -> None:
    """Print each line behind a prefix, when it is whole; lines written over, of bars, are left out.

    Args:
        into: nothing is printed where it is None.
    """
    rest = b""
    while part := os.read(source.fileno(), 1 << 16):
        *lines, rest = (rest + part).split(b"\n")
        _print_lines(lines, into, prefix)
        _, is_over, last = rest.rpartition(b"\r")
        rest = is_over + last  # what a bar has shown before need not be kept
    _print_lines([rest] if rest else [], into, prefix)
    source.close()


def _print_lines(lines: Sequence[bytes], into: TextIO | None, prefix: str) -> None:
    whole = [line.removesuffix(b"\r").decode(errors="replace") for line in lines]
    text = "".join([f"{prefix}{line}\n" for line in whole if "\r" not in line])
    if text and into is not None:
        with suppress(OSError, ValueError):  # nobody reads any more
            into.write(text)
            into.flush()


@contextmanager
def _forwarding(ranks: Sequence[_Rank]) -> Iterator[list[int]]:
    """Send signals that end a process to all ranks. Yields the numbers of those that came."""
    asked: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if number == signal.SIGINT and _is_in_foreground():
            return  # the terminal has sent it to all
        _send_all(ranks, number)

    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send_all(ranks: Sequence[_Rank], number: int) -> None:
    for each in ranks:
        each.process.send_signal(number)


def _is_in_foreground() -> bool:
    """Whether Ctrl-C in a terminal reaches this process and its children."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _waited(
    ranks: Sequence[_Rank], log: RunLog, asked: Sequence[int]
) -> tuple[LogEntry | None, _Rank | None]:
    """Wait for all. Returns what the log says of who failed, and whose end was the first failure.

    What it says of ranks that the launcher has ended is left out.
    """
    verdict, earliest, failed_at, sent = None, None, 0.0, 0
    while True:
        ended = [each for each in ranks if each.process.poll() is not None]
        if not sent:
            verdict = next((each for each in log.entries() if each.kind != LEFT), None)
        if earliest is None:
            earliest = next((each for each in ended if each.process.returncode), None)
            failed_at = time.monotonic()
        if len(ended) == len(ranks):
            return verdict, earliest
        limit = KILL_SECONDS if sent else TERMINATE_SECONDS
        if earliest and not asked and sent < 2 and time.monotonic() > failed_at + limit:
            _send_all(ranks, signal.SIGKILL if sent else signal.SIGTERM)
            sent += 1
        time.sleep(POLL_SECONDS)


def _said(
    ranks: Sequence[_Rank], verdict: LogEntry | None, earliest: _Rank | None, asked: int | None
) -> int:
    """Print who failed, in a line. Returns the exit status of the run."""
    if earliest is None:
        return 0
    if asked is not None:
        return 128 + asked
    culprit = next((each for each in ranks if verdict and each.rank == verdict.rank), earliest)
    others = len([each for each in ranks if each is not culprit and each.process.returncode])
    status = culprit.process.returncode
    what, more = how_it_ended(culprit.rank, status), ""
    if verdict is not None and (
        verdict.kind in (FROZEN, ENDED, ASKED) or verdict.rank != culprit.rank or not status
    ):
        what, line_end, more = verdict.message.partition("\n")
        what, more = what.removesuffix("."), line_end + more
    ended = {0: "", 1: "; the other was ended"}.get(others, f"; the {others} others were ended")
    print(f"error: {what}{ended}.{more}", file=sys.stderr)
    return 128 - status if status < 0 else status or 1


def how_it_ended(rank: int, status: int) -> str:
    """An exit status in words.

    Example:
        >>> how_it_ended(1, -9)
        'rank 1 was killed by signal 9 (SIGKILL)'
        >>> how_it_ended(0, 3)
        'rank 0 failed with exit status 3'
    """
    if status >= 0:
        return f"rank {rank} failed with exit status {status}"
    with suppress(ValueError):
        return f"rank {rank} was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"rank {rank} was killed by signal {-status}"
