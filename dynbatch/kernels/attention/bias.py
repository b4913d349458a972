"""A bias of attention's scores that depends on the distance from query to key, j - i, alone.

A batch has one vector of numbers for each head, as long as its longest sentences need. All of its
sentences read this vector, and no matrix of a sentence's pairs is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dynbatch.backend import Array


class DistanceRows(Protocol):
    """The row of a table that each distance has."""

    def rows(self, distances: Array) -> Array: ...


class ScoreBias(NamedTuple):
    """The numbers added to scores: for each head a number for each distance.

    numbers: a table (rows, heads); without `rule` slopes (1, heads), which multiply |distance|.
    rule:    the row of each distance.
    """

    numbers: Array
    rule: DistanceRows | None


class DistanceVector(NamedTuple):
    """A number for each head and distance.

    numbers: (H, S, distances), contiguous.
    zero:    the place of distance 0.
    """

    numbers: Array
    zero: int

    def matrix(self, first: int, last: int, low: int, high: int) -> Array:
        """The numbers of queries first … last - 1 and keys low … high - 1: (H, S, …, …), a view."""
        numbers = self.numbers
        shape = (*numbers.shape[:2], last - first, high - low)
        step = numbers.itemsize
        strides = (*numbers.strides[:2], -step, step)
        start = (self.zero + low - first) * step
        return np.ndarray(shape, numbers.dtype, numbers, start, strides)

    def add(self, pairs: Array, first: int, low: int) -> None:
        """Add numbers of queries from `first` and keys from `low`, each to its distance."""
        queries, keys = pairs.shape[2:]
        start = self.zero + low - first
        for i in range(queries):
            part = self.numbers[:, :, start - i : start - i + keys]
            np.add(part, pairs[:, :, i], out=part)


def distances_of(query_lengths: Sequence[int] | Array, key_lengths: Sequence[int] | Array) -> range:
    """The distances from any query to any key of sentences of such lengths; 0 is among them."""
    queries, keys = [max([1, *lengths]) for lengths in (query_lengths, key_lengths)]
    return range(1 - queries, keys)


def vector_of(bias: ScoreBias, distances: range, shared: int, out: Array) -> DistanceVector:
    """The numbers of the distances, in `out`; `shared` heads of queries for each head of keys."""
    heads = bias.numbers.shape[1]
    numbers = out[: heads * len(distances)].reshape(heads, len(distances))
    each = np.arange(distances.start, distances.stop, distances.step)
    if bias.rule is None:
        np.multiply(bias.numbers.T, np.abs(each).astype(out.dtype), out=numbers)
    else:
        np.take(bias.numbers.T, bias.rule.rows(each), axis=1, out=numbers, mode="clip")
    return DistanceVector(numbers.reshape(heads // shared, shared, -1), distances.index(0))


def table_gradient(rule: DistanceRows, slopes: DistanceVector, out: Array) -> None:
    """The table's gradient (rows, heads), overwritten, from those of the distances."""
    numbers = slopes.numbers.reshape(out.shape[1], -1)
    each = np.arange(numbers.shape[1]) - slopes.zero
    out[...] = 0
    np.add.at(out, rule.rows(each), numbers.T)
