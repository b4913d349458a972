"""Ctrl-C that waits for a safe moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Ctrl-C inside the block takes effect when the block ends; what the block does is whole.

    It then acts as it would have: by default `KeyboardInterrupt` is raised. Python interrupts the
    main thread only, so in another thread this does nothing. If the block raises, that error is
    raised and the Ctrl-C forgotten.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        before(*caught[-1])
