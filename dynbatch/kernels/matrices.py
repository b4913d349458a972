"""`Matrices`: segments of different widths, in place of a kernel's offsets.

Attention scores are an example: T_q x T_k numbers per sentence; their sum over queries has T_k
numbers. Their elements lie one after the other as (elements, 1); what reduces each matrix to a row
lies as (all widths together, 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.ragged import offsets_of


class Matrices:
    """K segments, each a matrix.

    Args:
        rows:   (K,) of each.
        widths: (K,) of each.
    """

    __slots__ = ("rows", "widths")

    def __init__(self, rows: Sequence[int] | Array, widths: Sequence[int] | Array) -> None:
        self.rows = np.asarray(rows, np.int64)
        self.widths = np.asarray(widths, np.int64)

    def of_one_width(self) -> Iterator[tuple[Array, int, slice, slice]]:
        """Runs of equal width: row offsets, the width, the elements, and the reduced elements."""
        elements, sums = offsets_of(self.rows * self.widths), offsets_of(self.widths)
        changes = np.flatnonzero(np.diff(self.widths)) + 1
        edges = [0, *changes.tolist(), self.rows.size]
        for first, end in itertools.pairwise(edges):
            if first < end and self.widths[first]:
                yield (
                    offsets_of(self.rows[first:end]),
                    int(self.widths[first]),
                    slice(int(elements[first]), int(elements[end])),
                    slice(int(sums[first]), int(sums[end])),
                )


Segments = Array | Matrices
"""How the rows of kernels are cut into segments: by offsets (K + 1,), or as matrices."""


def lengths_of(segments: Segments) -> Array:
    """(K,) rows of each segment."""
    return segments.rows if isinstance(segments, Matrices) else np.diff(segments)


def run_by_matrix(
    kernel: Callable[..., object], args: Sequence[Any], segments: int, reduced: Sequence[int]
) -> None:
    """Call a kernel of rows and offsets for each run of matrices of one width.

    Args:
        segments: the position of its `Matrices`, in whose place it is called with offsets.
        reduced:  positions of the arrays with one row per segment. All others have the segments'
                  own rows.
    """
    for offsets, width, elements, sums in args[segments].of_one_width():
        part = [
            arg.reshape(-1)[sums if k in reduced else elements].reshape(-1, width)
            if isinstance(arg, np.ndarray)
            else arg
            for k, arg in enumerate(args)
        ]
        part[segments] = offsets
        kernel(*part)
