"""The seeds of a run: a counter that gives every graph its own dropout stream.

One counter serves the process, and a thread that calls `seed` has one of its own from then on: its
draws do not depend on other threads.
"""

from __future__ import annotations

import threading

import numpy as np

from dynbatch.arguments import size
from dynbatch.recent import free_at_fork

_process = {"seed": 0, "count": 0}
_of_thread = threading.local()
_lock = free_at_fork(threading.Lock())


def seed(value: int) -> None:
    """Set the seed of models' initial values and of graphs' dropout masks.

    Two runs from the same seed draw the same numbers, apart from your own draws. In a
    thread other than the main one the seed holds for that thread alone; threads that never call
    `seed` share the numbers of the process.

    Raises:
        ArgumentError: it is not an integer of 0 or more; nothing has changed.
    """
    set_state({"seed": size("seed", "value", value, 0), "count": 0})


def next_seed() -> int:
    """A 32-bit seed that no earlier call since `seed()` returned."""
    with _lock:
        state = _drawn_from()
        count = state["count"]
        state["count"] = count + 1
        entropy = (state["seed"], count)
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def get_state() -> dict[str, int]:
    """The stream's position, for a checkpoint; JSON-able."""
    with _lock:
        return dict(_drawn_from())


def set_state(state: dict[str, int]) -> None:
    """Continue a stream where `get_state` found it."""
    checked = {"seed": int(state["seed"]), "count": int(state["count"])}
    with _lock:
        if threading.current_thread() is threading.main_thread():
            _process.update(checked)
        else:
            _of_thread.state = checked


def _drawn_from() -> dict[str, int]:
    """The counter of this thread, or that of the process."""
    state: dict[str, int] = getattr(_of_thread, "state", _process)
    return state
