"""Round numbers for the axes of pictures and pages."""

from __future__ import annotations

import math


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten.

    Args:
        about: how many there should be.

    Example:
        >>> ticks(0, 37)
        [0, 10, 20, 30]
    """
    if not (high > low and math.isfinite(high - low)):
        return [low]
    step = tick_step(high - low, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    exact = [
        round(number * step, 12 - math.floor(math.log10(step))) for number in range(first, last + 1)
    ]
    return [int(value) if value == int(value) else value for value in exact]


def tick_step(span: float, about: int) -> float:
    """The least of 1, 2 or 5 times a power of ten of which at most `about` make the span.

    Example:
        >>> tick_step(41.2, 3)
        20.0
    """
    raw = span / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
