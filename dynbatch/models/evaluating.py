"""`evaluating`: a model in evaluation mode for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dynbatch.recent import free_at_fork

# Models that generate now, by identity: for how many threads, and the mode before the first.
_evaluated: dict[int, tuple[int, bool]] = {}
_lock = free_at_fork(threading.Lock())


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode inside; several threads may do so with one model."""
    key = id(model)
    with _lock:
        count, was_training = _evaluated.get(key, (0, model.training))
        if not count and was_training:
            model.train(False)
        _evaluated[key] = count + 1, was_training
    try:
        yield
    finally:
        with _lock:
            count, was_training = _evaluated.pop(key)
            if count > 1:
                _evaluated[key] = count - 1, was_training
            elif was_training:
                model.train(True)
