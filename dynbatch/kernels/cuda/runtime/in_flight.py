"""Memory that a stream may still read or write although nobody on the host holds it any more.

Its owner would give the memory to others: CuPy's pool of pinned memory does so at once, and another
library knows of its own streams only.
"""

from __future__ import annotations

import threading

from dynbatch.kernels.cuda.runtime.cupy_types import CudaEvent, CupyModule
from dynbatch.recent import free_at_fork

_held: list[tuple[CudaEvent, object]] = []
_lock = free_at_fork(threading.Lock())


def hold(cupy: CupyModule, used: object) -> CudaEvent:
    """Keep `used` until all that has been started on CuPy's current stream is done.

    Returns:
        the event that says so.
    """
    event = cupy.cuda.Event(disable_timing=True)
    event.record(cupy.cuda.get_current_stream())
    with _lock:
        before = _held.copy()
        _held[:] = [*[pair for pair in before if not pair[0].done], (event, used)]
    del before  # what is let go may have finalizers of any kind: not under the lock
    return event
