"""`Ragged`: the values of many sentences, packed without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Ragged:
    """Packed rows of K segments (sentences) and where each begins.

    Args:
        values:  (N, D) rows of all segments, one after the other; or a flat (elements,) array when
            the segments differ in width.
        lengths: K row counts; they sum to N.

    `offsets` (K + 1,) int64 has offsets[0] == 0 and offsets[-1] == N; readers of attention papers
    know it as `cu_seqlens`. Lengths stay on the host.
    """

    __slots__ = ("_offsets", "lengths", "values")

    def __init__(self, values: Array, lengths: Sequence[int], offsets: Array | None = None) -> None:
        self.values = values
        self.lengths = lengths
        self._offsets = offsets

    @property
    def offsets(self) -> Array:
        if self._offsets is None:
            self._offsets = np.zeros(len(self.lengths) + 1, np.int64)
            np.cumsum(self.lengths, out=self._offsets[1:])
        return self._offsets

    @property
    def flat(self) -> Array:
        """All elements as one (elements,) view."""
        return self.values.reshape(-1)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, segment: int) -> Array:
        """The (length, D) rows of one segment, a view."""
        return self.values[self.offsets[segment] : self.offsets[segment + 1]]

    def like(self, values: Array) -> Ragged:
        """Other values over the same segments."""
        return Ragged(values, self.lengths, self._offsets)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} segments, {self.values.dtype}{self.values.shape})"
