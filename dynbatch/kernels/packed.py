"""Weights packed once for many products, as those of a model that writes token by token.

A product of one row takes as long as its weight takes to be read: in bfloat16 half as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.mapped import let_go
from dynbatch.kernels.runtime.writes import watch

PANEL = 64
"""Columns of a panel or several: where threads share columns, each has whole panels."""

LINE = 16
"""Columns of a panel that is not full are filled up to a multiple: a cache line of words."""

CHUNK = 1 << 24
"""Words that are taken at once, for several weights: the system gives so much in huge pages, from
which memory is read 1.6 times as fast (GPT-2, one Zen 4 core: 21 and 34 GB/s)."""

MAPPED = 1 << 22
"""Bytes of a weight in a file that are packed, and then let go of, at a time."""


class PackedWeights:
    """Panels of weights in bfloat16, made when a product that will come again asks for them.

    Once a weight has been written to, all are dropped by the next `renew`.

    Args:
        weights: gives the arrays that may be packed: others are not.
        take:    memory for so many words.
        give:    takes it back.

    Attributes:
        version: another object after each write: what was written down of panels before is void.
    """

    def __init__(
        self, weights: Callable[[], Iterable[Array]], take: Callable[[int], Array],
        give: Callable[[Array], None],
    ) -> None:  # fmt: skip
        self._arrays, self._take, self._give = weights, take, give
        self._known: dict[int, Array] = {}
        self._panels: dict[tuple[int, tuple[int, ...]], Array] = {}
        self._chunks: list[Array] = []
        self._used = 0  # words of the last chunk
        self._packed_version: object = None
        self.version = object()
        watch(self)

    @property
    def nbytes(self) -> int:
        """Bytes that are taken for panels."""
        return sum([chunk.nbytes for chunk in self._chunks])

    def drop(self) -> None:
        """Give all panels back."""
        self._known, self._panels, self._packed_version = {}, {}, None
        while self._chunks:
            self._give(self._chunks.pop())

    def notice(self, arrays: Sequence[Array]) -> None:
        """Arrays have been written to."""
        if any([address(array) in self._known for array in arrays]):
            self.version = object()

    def renew(self) -> None:
        """Drop all panels if weights were written to or replaced, before calls are written down."""
        version, known = self.version, {address(x) or 0: x for x in self._arrays() if x.ndim == 2}
        if self._packed_version is not version or known.keys() != self._known.keys():
            self.drop()
            self._known, self._packed_version = known, version

    def panels_of(self, b: Array, functions: Any) -> Array | None:
        """Panels of b (K, N), a whole weight or its transpose; None for another array.

        Args:
            functions: those of blas.c that round to bfloat16.
        """
        weight = self._known.get(address(b) or 0)
        if weight is None or weight.shape not in (b.shape, b.shape[::-1]):
            return None
        key = address(b) or 0, b.strides
        if key not in self._panels:
            panels = self._room(panel_words(b))
            _pack(b, panels, functions)
            self._panels[key] = panels
        return self._panels[key]

    def _room(self, words: int) -> Array:
        """Room in the last chunk, or in a new one, which is no larger than what may be packed."""
        if not self._chunks or self._used + words > self._chunks[-1].size:
            left = sum([panel_words(x) for x in self._known.values()])
            left -= sum([panels.size for panels in self._panels.values()])
            self._chunks.append(self._take(max(words, min(left, CHUNK))))
            self._used = 0
        self._used += words
        return self._chunks[-1][self._used - words : self._used]


def panel_words(b: Array) -> int:
    """Words of b (K, N) in panels."""
    terms, columns = b.shape
    words: int = words_of(terms) * -(-columns // LINE) * LINE
    return words


def words_of(terms: int) -> int:
    """Words of 4 bytes of so many terms: a pair each."""
    return -(-terms // 2)


def _pack(b: Array, panels: Array, functions: Any) -> None:
    """Pack a weight into panels; threads share its columns. What lies in a file is let go of."""
    terms, columns = b.shape
    row, column = b.strides
    words = words_of(terms)

    def part(first: int, last: int) -> None:
        at = (address(b) or 0) + first * column
        room = (address(panels) or 0) + words * first * panels.itemsize
        if b.dtype == np.uint16:
            functions.pack_short(
                terms, last - first, at, row // b.itemsize, column // b.itemsize, room
            )
        elif column == b.itemsize:
            functions.pack_terms(terms, 0, terms, last - first, at, row // b.itemsize, room)
        else:
            functions.pack_weight(terms, last - first, at, column // b.itemsize, room)

    is_row_by_row = column == b.itemsize or b.dtype != np.uint16
    most = columns if is_row_by_row else max(1, MAPPED // (PANEL * row * terms)) * PANEL
    for start in range(0, columns, most):
        end = min(start + most, columns)
        spans = panel_spans(end - start, parallel.available())
        parallel.run([partial(part, start + first, start + last) for first, last in spans])
        let_go(b[:, start:end])


def panel_spans(columns: int, count: int) -> list[tuple[int, int]]:
    edges = [columns * k // count // PANEL * PANEL for k in range(count)] + [columns]
    return [(first, last) for first, last in pairwise(edges) if first < last]


_packed: ContextVar[PackedWeights | None] = ContextVar("packed weights", default=None)

packed_weights = _packed.get
"""What is packed for products that come again, in this thread; None if nothing is."""


@contextmanager
def packing(weights: PackedWeights | None) -> Iterator[None]:
    """Use packed weights inside the block, where calls of products are written down."""
    before = _packed.set(weights)
    try:
        yield
    finally:
        _packed.reset(before)
