"""`Ragged`: the values of many sentences, packed without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat


class Ragged:
    """Packed rows of K segments (sentences) and where each begins.

    Args:
        values:  (N, D) rows of all segments, one after the other; or a flat (elements,) array when
            the segments differ in width.
        lengths: K row counts; they sum to N.
        widths:  K widths where the values are flat; None where the segments have one width.
        owner:   has the offsets, and makes them if they are wanted; without it they are made here.

    `offsets` (K + 1,) int64 has offsets[0] == 0 and offsets[-1] == N; readers of attention papers
    know it as `cu_seqlens`. Lengths stay on the host.
    """

    __slots__ = ("_offsets", "_owner", "_starts", "lengths", "values", "widths")

    def __init__(
        self,
        values: Array,
        lengths: Sequence[int],
        offsets: Array | None = None,
        widths: Sequence[int] | None = None,
        owner: Any = None,
    ) -> None:
        self.values = values
        self.lengths = lengths
        self.widths = widths
        self._offsets = offsets
        self._owner = owner
        self._starts: Array | None = None

    @property
    def offsets(self) -> Array:
        if self._offsets is None:
            owner = self._owner
            self._offsets = offsets_of(self.lengths) if owner is None else owner.offsets
        return self._offsets

    @property
    def every_width(self) -> Array:
        """(K,) the width of each segment."""
        if self.widths is not None:
            return np.array(self.widths, np.int64)
        return np.full(len(self), self.values.shape[1])

    @property
    def starts(self) -> Array:
        """(K + 1,) offsets of the segments' elements in `flat`."""
        if self._starts is None:
            if self.widths is None:
                self._starts = self.offsets * self.values.shape[1]
            else:
                self._starts = offsets_of(np.multiply(self.lengths, self.widths))
        return self._starts

    @property
    def flat(self) -> Array:
        """All elements as one (elements,) view."""
        return self.values.reshape(-1)

    @property
    def table(self) -> Array:
        """The rows (N, D); or, where segments differ in width, all elements as (elements, 1)."""
        return self.values if self.widths is None else self.values[:, None]

    def shape(self, segment: int) -> tuple[int, int]:
        """Rows and width of one segment."""
        width = self.values.shape[1] if self.widths is None else self.widths[segment]
        return self.lengths[segment], width

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, segment: int) -> Array:
        """The (length, D) rows of one segment, a view."""
        if self.widths is None:
            return self.values[self.offsets[segment] : self.offsets[segment + 1]]
        values = self.values[self.starts[segment] : self.starts[segment + 1]]
        return values.reshape(self.shape(segment))

    def like(self, values: Array) -> Ragged:
        """Other values over the same segments."""
        return Ragged(values, self.lengths, self._offsets, self.widths, self._owner)

    def cut(self, counts: Sequence[int]) -> Ragged:
        """The values with each segment cut into so many, of as many rows each."""
        lengths = [n // max(1, count) for n, count in zip(self.lengths, counts, strict=True)]
        widths = None if self.widths is None else repeat(self.widths, counts).tolist()
        return Ragged(self.values, repeat(lengths, counts).tolist(), widths=widths)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} segments, {self.values.dtype}{self.values.shape})"


def offsets_of(lengths: Sequence[int] | Array) -> Array:
    """(K + 1,) where each of K segments begins, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def packed(flat: Array, nodes: Sequence[Any]) -> Ragged:
    """Values packed one after the other; as rows if all have one width.

    Args:
        flat:  (elements,).
        nodes: objects with `rows` and `width`, in order.
    """
    lengths, width = [node.rows for node in nodes], nodes[0].width
    if width and all([node.width == width for node in nodes]):
        return Ragged(flat.reshape(-1, width), lengths)
    return Ragged(flat, lengths, widths=[node.width for node in nodes])
