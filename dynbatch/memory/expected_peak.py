"""`Peaks`: how much the steps of a program need, and how much later ones are likely to need."""

from __future__ import annotations

import math

DEVIATIONS = 6.0
"""Above the mean: a thousand steps after 48 like them stay below, where 64 lengths are summed."""

LEARNED = 48
"""Steps after which their spread is known."""
EARLY = 1 / 8
"""Beyond the most seen, until then."""


class Peaks:
    """Mean and deviation of the most bytes in use in each step, and the most of all.

    Args:
        growth: the share beyond the most seen that is expected at the highest.

    Source: Welford 1962 for the running mean and deviation.
    """

    def __init__(self, growth: float) -> None:
        self._growth = growth
        self.forget()

    def forget(self) -> None:
        """Forget all steps so far."""
        self.count = 0
        self.most = 0
        self._mean = self._squares = 0.0

    def see(self, in_use: int) -> None:
        """Take note that so many bytes are in use now."""
        self.most = max(self.most, in_use)

    def end_step(self, peak: int) -> None:
        """Take note that a step is over, in which `peak` bytes were in use at most."""
        self.count += 1
        difference = peak - self._mean
        self._mean += difference / self.count
        self._squares += difference * (peak - self._mean)

    def expected(self) -> int:
        """Bytes that a later step may need: six deviations above the mean, within bounds."""
        if self.count < LEARNED:
            return int((1 + min(EARLY, self._growth)) * self.most)
        deviation = math.sqrt(self._squares / (self.count - 1))
        highest = int((1 + self._growth) * self.most)
        return min(highest, max(self.most, int(self._mean + DEVIATIONS * deviation)))
