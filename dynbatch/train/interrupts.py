"""Ctrl-C, SIGTERM and SIGHUP end a run in the same way, at a safe moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


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
        for number in _ENDING
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
    before = {number: signal.getsignal(number) for number in _ENDING}
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
        number, frame = caught[-1]
        handlers[signal.Signals(number)](number, frame)
