"""The guard of a rank: a small process beside it, which tells the others when the rank fails.

`RankGuard` starts it as `python -I -S guard_process.py SETTINGS`. It needs the standard library
alone, and goes on while its rank computes, holds Python's lock, or is stopped. Guards are joined
in a star around that of rank 0. Each one

* tells when its rank ends without a word, or is stopped;
* beats, so that a machine which is lost is noticed;
* lets its rank know when another one failed, and ends it by force where that does not help;
* ends its rank when `dynbatch launch` has ended without waiting for it;
* ends with its rank.

It counts its own ticks, not seconds: if all processes stop and go on, or a laptop sleeps, nobody is
taken for lost. Messages are lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

FROZEN_TICKS = 6
"""For so long a rank may be stopped."""

SILENT_TICKS = 16
"""For so long another guard may be silent."""

GRACE_TICKS = 8
"""For so long a rank may compute when another one failed, until it is ended by force."""

UNWINDING_TICKS = 60
"""For so long it may end in order: it has seen the error, or somebody asked the run to end."""

LAUNCHER = -1
"""Stands for `dynbatch launch` where messages name the rank that failed."""

REPORTED = 300
"""Characters of a message that `dynbatch launch` gets: a line of up to 4096 bytes is written at
once, also where other guards write theirs."""


ENDING = tuple(
    [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
)
"""The signals that end a run: Ctrl-C, a request, and, where there is one, a terminal that goes."""


class GuardProcess:
    """The guard's reactions to messages and ticks.

    Args:
        rank:   of the process that is guarded.
        pid:    of that process, which has started this one.
        tick:   seconds between beats.
        parent: a socket to that process.
        guards: a socket to each guard that this one is joined to, by rank.
        report: a file descriptor on which `dynbatch launch` reads who failed; None without it.
    """

    def __init__(
        self, rank: int, pid: int, tick: float, parent: socket.socket,
        guards: Mapping[int, socket.socket], report: int | None = None,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.pid = pid
        self.tick_seconds = tick
        self.parent = Line(rank, parent)
        self.guards = {r: Line(r, each) for r, each in guards.items()}
        self.report = report
        self.verdict: Message | None = None
        self.is_done = False
        self._is_taken = False
        self._stopped = 0
        self._left = 0
        self._selector = selectors.DefaultSelector()
        for line in (self.parent, *self.guards.values()):
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    def run(self) -> None:
        next_tick = time.monotonic() + self.tick_seconds
        while not self.is_done:
            for key, _ in self._selector.select(max(0.0, next_tick - time.monotonic())):
                self._read(key.data)
            if time.monotonic() >= next_tick:
                self.tick(state_of, os.getppid())
                next_tick = time.monotonic() + self.tick_seconds

    def tick(self, state_of: Callable[[int], str], parent: int) -> None:
        """Beat, and look for what did not happen since the last tick."""
        if parent != self.pid:  # a child of its own may hold the socket open
            self._parent_ended()
            return
        self._stopped = self._stopped + 1 if state_of(self.pid) == "T" else 0
        if self._stopped == FROZEN_TICKS:
            self._judge(
                "frozen", self.rank, f"rank {self.rank} is frozen: its process {self.pid} is "
                f"stopped (SIGSTOP) since {FROZEN_TICKS * self.tick_seconds:.2g} s."
            )  # fmt: skip
        if self.report is not None and has_no_reader(self.report):
            self._judge(
                "lost", LAUNCHER, "`dynbatch launch` was killed, and its ranks end with it."
            )  # fmt: skip
        for line in list(self.guards.values()):
            line.silence += 1
            line.send({"kind": "beat"})
            if line.silence > SILENT_TICKS:
                self._judge(
                    "lost", line.rank, f"rank {line.rank} was lost: its machine or its guard is "
                    f"silent since {SILENT_TICKS * self.tick_seconds:.2g} s."
                )  # fmt: skip
        if self.verdict is not None:
            self._left -= 1
            if self._left == 0:
                self._end_rank(self.verdict)

    def _read(self, line: Line) -> None:
        for message in line.read():
            line.silence = 0
            kind = message["kind"]
            if kind == "bye":
                self._leave(line)
            elif kind == "taken":
                self._is_taken = True
                self._left = UNWINDING_TICKS
            elif kind != "beat":
                self._judge(kind, message["rank"], message["message"], line)
        if not line.has_ended:
            return
        if line is self.parent:
            self._parent_ended()
        elif line.rank in self.guards:
            self._drop(line)
            self._judge("lost", line.rank, f"rank {line.rank} was lost: its guard ended.")

    def _leave(self, line: Line) -> None:
        """Part in order: from another guard, or from all as the rank has closed its run."""
        if line is self.parent:
            for each in self.guards.values():
                each.send({"kind": "bye"})
            self.is_done = True
        else:
            self._drop(line)

    def _drop(self, line: Line) -> None:
        self._selector.unregister(line.socket)
        del self.guards[line.rank]

    def _parent_ended(self) -> None:
        if not self.is_done:
            self._judge(
                "lost", self.rank, f"rank {self.rank} ended without a word: its process {self.pid} "
                "was killed, or ended at once (os._exit, a crash in C).", self.parent
            )  # fmt: skip
        self.is_done = True

    def _judge(self, kind: str, rank: int, message: str, source: Line | None = None) -> None:
        """Tell all who failed. The first verdict counts."""
        if self.verdict is not None:
            return
        self.verdict = {"kind": kind, "rank": rank, "message": message}
        self._left = UNWINDING_TICKS if self._is_taken or kind == "ended" else GRACE_TICKS
        for line in (*self.guards.values(), self.parent):
            if line is not source:
                line.send(self.verdict)
        if self.report is not None:
            told = {**self.verdict, "message": message[:REPORTED]}
            with suppress(OSError):  # the launcher has ended
                os.write(self.report, json.dumps(told).encode() + b"\n")

    def _end_rank(self, verdict: Message) -> None:
        if verdict["rank"] == self.rank and verdict["kind"] in ("failed", "ended"):
            return  # it ends by itself, or a debugger looks at it
        nobody_else = self.report is None or verdict["rank"] == LAUNCHER
        if nobody_else and not self._is_taken and self.rank == (1 if verdict["rank"] == 0 else 0):
            print(f"error: {verdict['message']}", file=sys.stderr, flush=True)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Line:
    """A socket for messages, each a line of JSON."""

    def __init__(self, rank: int, connected: socket.socket) -> None:
        self.rank = rank
        self.socket = connected
        self.silence = 0
        self.has_ended = False
        self._buffer = b""
        connected.settimeout(1.0)

    def send(self, message: Message) -> None:
        with suppress(OSError):  # reading notices it, too
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> list[Message]:
        try:
            part = self.socket.recv(1 << 16)
        except OSError:
            part = b""
        self.has_ended = not part
        *lines, self._buffer = (self._buffer + part).split(b"\n")
        return [json.loads(line) for line in lines]


def has_no_reader(pipe: int) -> bool:
    """Whether nobody can read any more what is written into a pipe: its reader has ended."""
    asked = select.poll()
    asked.register(pipe, 0)
    return any([events & (select.POLLERR | select.POLLHUP) for _, events in asked.poll(0)])


def state_of(pid: int) -> str:
    """The state of a process, a letter: "T" is stopped by a signal."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return ""  # it has ended
    with os.popen(f"ps -o state= -p {pid}") as told:
        return told.read().strip()[:1]


def main() -> None:
    """Guard the process that has started this one, which ends for no signal of a terminal."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    settings = json.loads(sys.argv[1])
    guards = {int(r): socket.socket(fileno=fd) for r, fd in settings["guards"].items()}
    parent = socket.socket(fileno=settings["parent"])
    GuardProcess(
        settings["rank"], settings["pid"], settings["tick"], parent, guards, settings["report"]
    ).run()


if __name__ == "__main__":
    main()
