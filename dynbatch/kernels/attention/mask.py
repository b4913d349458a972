"""`Mask`: which keys the queries of a sentence see: causal order, a window, the user's mask."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array

# A distance that no sentence reaches.
UNBOUNDED = 1 << 40


class Mask(NamedTuple):
    """The keys that a sentence's queries see: query i sees key j if i - left <= j <= i + right.

    visible: boolean (T_q, T_k) or (T_k,), False hides a key; None hides none.
    """

    left: int = UNBOUNDED
    right: int = UNBOUNDED
    visible: Array | None = None

    def keys(self, first: int, last: int, count: int) -> tuple[int, int]:
        """The range of keys, among `count`, that queries first … last - 1 see."""
        low = min(count, max(0, first - self.left))
        return low, max(low, min(count, last + self.right))

    def hide(self, scores: Array, first: int, low: int) -> None:
        """Set hidden scores (…, queries from `first`, keys from `low`) to -inf."""
        rows, columns = scores.shape[-2:]
        last, high = first + rows, low + columns
        if last - 1 - self.left > low or first + self.right < high - 1:
            distance = np.arange(low, high) - np.arange(first, last)[:, None]
            outside = (distance < -self.left) | (distance > self.right)
            np.copyto(scores, -np.inf, where=outside)
        if self.visible is not None:
            seen = self.visible[..., low:high]
            np.copyto(scores, -np.inf, where=~(seen[first:last] if seen.ndim == 2 else seen))


NO_MASK = Mask()
