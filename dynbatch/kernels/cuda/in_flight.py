"""What a stream may still read or write although nobody on the host holds it any more.

Its owner would give the memory to others: CuPy's pool of pinned memory does so at once, and another
library knows of its own streams only.
"""

from __future__ import annotations

from typing import Any

_held: list[tuple[Any, Any]] = []


def hold(cupy: Any, used: Any) -> Any:
    """Keep `used` until all that has been started on CuPy's current stream is done.

    Returns:
        the event that says so.
    """
    event = cupy.cuda.Event(disable_timing=True)
    event.record(cupy.cuda.get_current_stream())
    _held[:] = [pair for pair in _held if not pair[0].done]
    _held.append((event, used))
    return event
