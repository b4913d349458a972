"""The seeds of a run: one counter that gives every graph its own dropout stream."""

from __future__ import annotations

import numpy as np

_state = {"seed": 0, "count": 0}


def seed(value: int) -> None:
    """Start anew what is drawn: initial values of models and the dropout masks of graphs.

    Two runs from the same seed draw the same. Arrays that you draw yourself are not concerned.
    """
    _state.update(seed=int(value), count=0)


def next_seed() -> int:
    """A 32-bit seed that no earlier call since `seed()` gave."""
    count = _state["count"]
    _state["count"] = count + 1
    return int(np.random.SeedSequence((_state["seed"], count)).generate_state(1)[0])


def get_state() -> dict[str, int]:
    """The stream's position, for a checkpoint; JSON-able."""
    return dict(_state)


def set_state(state: dict[str, int]) -> None:
    """Continue a stream where `get_state` found it."""
    _state.update(seed=int(state["seed"]), count=int(state["count"]))
