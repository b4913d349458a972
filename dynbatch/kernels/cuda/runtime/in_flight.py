"""Keeps memory alive that a stream may still use after the host has dropped it.

Otherwise its owner would reuse the memory: CuPy's pool of pinned memory does so at once, and
                                            another library only knows its own streams.
"""

from __future__ import annotations

import threading

from dynbatch.cupy_types import CudaEvent, CupyModule
from dynbatch.recent import free_at_fork

_held: list[tuple[CudaEvent, object]] = []
_lock = free_at_fork(threading.Lock())


def hold(cupy: CupyModule, used: object) -> CudaEvent:
    """Keep `used` until all that has been started on CuPy's current stream is done.

    Returns:
        the event that marks this.
    """
    event = cupy.cuda.Event(disable_timing=True)
    event.record(cupy.cuda.get_current_stream())
    with _lock:
        before = _held.copy()
        _held[:] = [*[pair for pair in before if not pair[0].done], (event, used)]
    del before  # what is let go may have finalizers of any kind: not under the lock
    return event
