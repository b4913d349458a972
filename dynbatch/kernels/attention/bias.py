"""A bias of attention's scores: a number for each, by how score (head, i, j) finds its own.

By the distance j - i: a batch has one vector of numbers for each head, as long as its longest
sentences need, and all of its sentences read it. By a feature of the pair (i, j): the row of a
table. By the pair itself: sentences bring a matrix each. No other matrix of pairs is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import bincount, take


class DistanceRows(Protocol):
    """The row of a table that each distance has."""

    def rows(self, distances: Array) -> Array: ...


class FeatureRows(NamedTuple):
    """The row of a table that each pair has: (T_q, T_k) of each sentence, of one unsigned dtype."""

    arrays: Sequence[Array]


class PairStarts(NamedTuple):
    """Numbers of pairs themselves: (H, T_q, T_k) of each sentence, from `starts` (K + 1,) on.

    H is 1, for all heads, or the number of heads.
    """

    starts: Array


class ScoreBias(NamedTuple):
    """The numbers added to scores, and how a score finds its own.

    numbers: a table (rows, heads), or (rows, 1) for all heads alike; of `PairStarts` a flat array;
             without `rule` slopes (1, heads), which multiply |distance|.
    rule:    the row of each distance, or of each pair; or the pairs' places.
    """

    numbers: Array
    rule: DistanceRows | FeatureRows | PairStarts | None

    @property
    def by_distance(self) -> bool:
        """Whether the numbers depend on the distance alone."""
        return not isinstance(self.rule, FeatureRows | PairStarts)


class SentenceBias(Protocol):
    """The numbers of one sentence's pairs, or their gradient."""

    def matrix(self, first: int, last: int, low: int, high: int) -> Array:
        """The numbers of queries first … last - 1 and keys low … high - 1: (H, S, …, …)."""

    def add(self, pairs: Array, first: int, low: int) -> None:
        """Add numbers of queries from `first` and keys from `low`, each where it was found."""


class BatchBias(Protocol):
    """The numbers of all sentences."""

    def of(self, sentence: int) -> SentenceBias: ...


class DistanceVector(NamedTuple):
    """A number for each head and distance.

    numbers: (H, S, distances), contiguous.
    zero:    the place of distance 0.
    """

    numbers: Array
    zero: int

    def of(self, sentence: int) -> Self:
        return self

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


class FeatureTable(NamedTuple):
    """A number for each head and feature, (H, S, rows), and the features of one sentence's pairs.

    H and S are 1 where all heads have the same numbers.
    """

    numbers: Array
    features: Array

    def matrix(self, first: int, last: int, low: int, high: int) -> Array:
        return take(self.numbers, self.features[first:last, low:high], axis=2, mode="clip")

    def add(self, pairs: Array, first: int, low: int) -> None:
        queries, keys = pairs.shape[2:]
        features = self.features[first : first + queries, low : low + keys].ravel()
        numbers = self.numbers.reshape(-1, self.numbers.shape[2])
        for head, slopes in enumerate(pairs.reshape(-1, queries * keys)):
            # In float64, pair by pair: a table has few rows for many pairs.
            sums = bincount(features, slopes, numbers.shape[1])
            numbers[head % len(numbers)] += sums.astype(numbers.dtype)


class PairMatrix(NamedTuple):
    """A number for each pair of one sentence, (H, S, T_q, T_k); H and S are 1 for all heads."""

    numbers: Array

    def matrix(self, first: int, last: int, low: int, high: int) -> Array:
        return self.numbers[:, :, first:last, low:high]

    def add(self, pairs: Array, first: int, low: int) -> None:
        queries, keys = pairs.shape[2:]
        part = self.numbers[:, :, first : first + queries, low : low + keys]
        if part.shape == pairs.shape:
            np.add(part, pairs, out=part)
            return
        for slopes in pairs.reshape(-1, queries, keys):  # of one head after the other
            np.add(part[0, 0], slopes, out=part[0, 0])


class FeatureTables(NamedTuple):
    """The tables that sentences look up: (1, H, S, rows), one for all, or (K, H, S, rows)."""

    numbers: Array
    features: Sequence[Array]

    def of(self, sentence: int) -> FeatureTable:
        return FeatureTable(self.numbers[sentence % len(self.numbers)], self.features[sentence])


class PairMatrices(NamedTuple):
    """The matrices of all sentences, one behind the other, of `groups` heads of keys."""

    numbers: Array
    starts: Array
    lengths: Array
    groups: int

    def of(self, sentence: int) -> PairMatrix:
        """The matrix of a sentence, a view."""
        start, end = self.starts[sentence : sentence + 2]
        queries, keys = self.lengths[sentence]
        heads = (end - start) // max(1, queries * keys)
        groups = self.groups if heads > 1 else 1
        shape = groups, max(1, heads) // groups, queries, keys
        return PairMatrix(self.numbers[start:end].reshape(shape))


def distances_of(query_lengths: Sequence[int] | Array, key_lengths: Sequence[int] | Array) -> range:
    """The distances from any query to any key of sentences of such lengths; 0 is among them."""
    queries, keys = [max([1, *lengths]) for lengths in (query_lengths, key_lengths)]
    return range(1 - queries, keys)


def size_of(
    bias: ScoreBias | None, query_lengths: Sequence[int] | Array, key_lengths: Sequence[int] | Array
) -> int:
    """Elements of a batch's copy of the numbers: vectors of distances, or a table's columns."""
    if bias is None or isinstance(bias.rule, PairStarts):
        return 0
    if isinstance(bias.rule, FeatureRows):
        return int(bias.numbers.size)
    return int(bias.numbers.shape[1]) * len(distances_of(query_lengths, key_lengths))


def gradient_size(bias: ScoreBias | None, sentences: int) -> int:
    """Elements of the gradients of a table that sentences look up, one for each."""
    if bias is None or not isinstance(bias.rule, FeatureRows):
        return 0
    return sentences * bias.numbers.size


def columns_of(table: Array, out: Array) -> Array:
    """A table (rows, H) by columns, (H, rows), in `out`."""
    columns: Array = out[: table.size].reshape(table.shape[::-1])
    np.copyto(columns, table.T)
    return columns


def vector_of(bias: ScoreBias, distances: range, shared: int, out: Array) -> DistanceVector:
    """The numbers of the distances, in `out`; `shared` heads of queries for each head of keys."""
    rule = bias.rule
    assert not isinstance(rule, FeatureRows | PairStarts)
    heads = bias.numbers.shape[1]
    numbers = out[: heads * len(distances)].reshape(heads, len(distances))
    each = np.arange(distances.start, distances.stop, distances.step)
    if rule is None:
        np.multiply(bias.numbers.T, np.abs(each).astype(out.dtype), out=numbers)
    else:
        take(bias.numbers.T, rule.rows(each), axis=1, out=numbers, mode="clip")
    return DistanceVector(numbers.reshape(heads // shared, shared, -1), distances.index(0))


def add_up(sentences: Array, out: Array) -> None:
    """A table's gradient (rows, H), overwritten, from those of sentences (K, H, rows), in order."""
    out[...] = 0
    for gradient in sentences.reshape(-1, out.shape[1], out.shape[0]):
        np.add(out, gradient.T, out=out)


def table_gradient(rule: DistanceRows, slopes: DistanceVector, out: Array) -> None:
    """The table's gradient (rows, heads), overwritten, from those of the distances."""
    numbers = slopes.numbers.reshape(out.shape[1], -1)
    each = np.arange(numbers.shape[1]) - slopes.zero
    out[...] = 0
    np.add.at(out, rule.rows(each), numbers.T)
