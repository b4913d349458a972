"""Ctrl-C, SIGTERM and SIGHUP end a run in the same way, at a safe moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dynbatch.parallel.guard_process import ENDING


class Terminated(SystemExit):
    """SIGTERM or SIGHUP arrived. If nobody catches it, Python ends with status 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP inside the block raise `Terminated`, as Ctrl-C raises `KeyboardInterrupt`.

    Only where the signal would have ended the process at once: the handler of a program stays, and
    so does `nohup`'s choice to ignore SIGHUP. The handlers of before are put back at the end.
    Python takes signals in the main thread only, so in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [
        number
        for number in ENDING
        if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in taken:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


@contextmanager
def noted_interrupts(noted: list[int]) -> Iterator[None]:
    """Signals that would end a run inside the block are appended to `noted` instead.

    A second one takes effect at once; so does, at the end of the block, one that is still noted
    there. Handlers of the program stay, and in threads other than the main one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = {
        number: handler
        for number in ENDING
        if (handler := signal.getsignal(number)) in (signal.default_int_handler, _terminate)
    }

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            _act(taken, number, frame)

    for number in taken:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
    if noted:
        _act(taken, noted[-1], None)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Signals that end a run take effect when the block ends; what the block does is whole.

    Concerns Ctrl-C, and SIGTERM and SIGHUP where something handles them. Each then acts as it would
    have: by default Ctrl-C raises `KeyboardInterrupt`. Python interrupts the main thread only, so
    in another thread this does nothing. If the block raises, that error is raised and the signal
    forgotten.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    caught: list[tuple[int, FrameType | None]] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if caught:
        _act(handlers, *caught[-1])


def _act(handlers: Mapping[signal.Signals, Any], number: int, frame: FrameType | None) -> None:
    handlers[signal.Signals(number)](number, frame)
