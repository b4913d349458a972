"""Ctrl-C, SIGTERM and SIGHUP end a run in the same way, at a safe moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Terminated(SystemExit):
    """SIGTERM or SIGHUP arrived. If nobody catches it, Python ends with status 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class _Handler:
    """A handler of signals inside a block, which afterwards passes them on to earlier ones.

    An interrupt may come while handlers are put back, one after the other: what is left of this one
    then does no harm.

    Args:
        before: handlers by the signal's number.
        handle: (number, frame) -> None.
    """

    def __init__(
        self, before: dict[int, Any], handle: Callable[[int, FrameType | None], object]
    ) -> None:
        self.before = before
        self.handle = handle
        self.is_over = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_over:
            self.pass_on(number, frame)
        else:
            self.handle(number, frame)

    def pass_on(self, number: int, frame: FrameType | None = None) -> None:
        """Let a signal act as it would have without the block."""
        before = self.before[number]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            signal.raise_signal(number)


@contextmanager
def _handled(
    before: dict[int, Any], handle: Callable[[int, FrameType | None], object]
) -> Iterator[_Handler]:
    """Signals inside the block are handled so; their handlers of before are put back at its end."""
    handler = _Handler(before, handle)
    try:
        for number in before:
            signal.signal(number, handler)
        yield handler
    finally:
        handler.is_over = True
        for number, then in before.items():
            signal.signal(number, then)


def _is_elsewhere() -> bool:
    """Whether this is another thread than the one in which Python takes signals."""
    return threading.current_thread() is not threading.main_thread()


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP inside the block raise `Terminated`, as Ctrl-C raises `KeyboardInterrupt`.

    Only where the signal would have ended the process at once: the handler of a program stays, and
    so does `nohup`'s choice to ignore SIGHUP. The handlers of before are put back at the end.
    Python takes signals in the main thread only, so in another thread this does nothing.
    """
    if _is_elsewhere():
        yield
        return
    before = _handlers(lambda handler: handler is signal.SIG_DFL)
    before.pop(signal.SIGINT, None)
    with _handled(before, _terminate):
        yield


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


@contextmanager
def noted_interrupts(noted: list[int]) -> Iterator[None]:
    """Signals that would end a run inside the block are appended to `noted` instead.

    A second one takes effect at once; so does, at the end of the block, one that is still noted
    there. Handlers of the program stay, and in threads other than the main one this does nothing.
    """
    if _is_elsewhere():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            handler.pass_on(number, frame)

    with _handled(_handlers(_ends_a_run), note) as handler:
        yield
    if noted:
        handler.pass_on(noted[-1])


def _handlers(wanted: Callable[[object], bool]) -> dict[int, Any]:
    """The present handlers of signals that end a run, those that are wanted, by number."""
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    return {number: handler for number, handler in handlers.items() if wanted(handler)}


def _ends_a_run(handler: object) -> bool:
    """Whether a handler raises `KeyboardInterrupt` or `Terminated`."""
    is_ours = isinstance(handler, _Handler) and handler.handle is _terminate
    return handler is signal.default_int_handler or is_ours


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Signals that end a run take effect when the block ends; what the block does is whole.

    Concerns Ctrl-C, and SIGTERM and SIGHUP where something handles them. Each then acts as it would
    have: by default Ctrl-C raises `KeyboardInterrupt`. Python interrupts the main thread only, so
    in another thread this does nothing. If the block raises, that error is raised and the signal
    forgotten.
    """
    if _is_elsewhere():
        yield
        return
    caught: list[int] = []
    with _handled(_handlers(callable), lambda number, _: caught.append(number)) as handler:
        yield
    for number in caught:
        handler.pass_on(number)
