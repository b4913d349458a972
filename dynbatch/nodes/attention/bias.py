"""Biases of attention's scores: by distance, or by features of pairs of a query and a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dynbatch.arguments import shown, size, switch
from dynbatch.backend import Array
from dynbatch.errors import DtypeError, ShapeError, VocabularyError
from dynbatch.kernels.attention.bias import FeatureRows, ScoreBias
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter


@dataclass(frozen=True, slots=True)
class ClippedDistance:
    """Row d + reach of a table for distance d, which is clipped to -reach … reach."""

    reach: int

    def rows(self, distances: Array) -> Array:
        return np.clip(distances, -self.reach, self.reach) + self.reach


@dataclass(frozen=True, slots=True)
class DistanceBuckets:
    """The bucket of each distance, as T5 numbers them: see `t5_bias`."""

    count: int
    max_distance: int
    bidirectional: bool

    def rows(self, distances: Array) -> Array:
        count = self.count // 2 if self.bidirectional else self.count
        exact = count // 2
        far = np.abs(distances) if self.bidirectional else np.maximum(-distances, 0)
        # In float32, as T5 computes it: a distance at the edge of a bucket falls on T5's side.
        ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
        ratio /= np.float32(math.log(self.max_distance / exact))
        wide = exact + (ratio * np.float32(count - exact)).astype(np.int64)
        bucket: Array = np.where(far < exact, far, np.minimum(wide, count - 1))
        return bucket + count * (distances > 0) if self.bidirectional else bucket


@dataclass(frozen=True, slots=True)
class DistanceSlopes:
    """-slope · |d| for distance d; a slope for each head."""

    slopes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PairFeature:
    """Row f_ij of a table for the pair of query i and key j; features are unsigned, of `bytes`."""

    bytes: int


BiasRule = ClippedDistance | DistanceBuckets | DistanceSlopes | PairFeature


class DistanceBias(NamedTuple):
    """The bias that `attention(bias=…)` adds to scores: a number for each head and distance.

    Attributes:
        rule:  which row of the table a distance has, or the slopes.
        table: (rows, heads); None for slopes.
    """

    rule: BiasRule
    table: Parameter | None = None


class FeatureBias(NamedTuple):
    """The bias that `attention(bias=…)` looks up for each pair of a sentence, in a table.

    Attributes:
        table:    (F, heads), or (F,) for all heads alike.
        features: (T_q, T_k), rows of the table, of the smallest unsigned dtype for F.
    """

    table: Parameter
    features: Array


Bias = DistanceBias | FeatureBias | Node | Array
"""A value of `attention(bias=…)`."""


def heads_of(rule: BiasRule, table: Parameter | None) -> int:
    """The number of heads that a bias is for; 0 for any number."""
    if isinstance(rule, DistanceSlopes):
        return len(rule.slopes)
    assert table is not None  # its rule finds rows in one
    return table.shape[1] if len(table.shape) > 1 else 0


def score_bias(
    rule: BiasRule | None, table: Parameter | None, features: Sequence[Any], dtype: np.dtype
) -> ScoreBias | None:
    """A bias that is no matrix, as the kernels take it."""
    if isinstance(rule, DistanceSlopes):
        return ScoreBias(-np.array([rule.slopes], dtype), None)
    if rule is None or table is None:
        return None
    if isinstance(rule, PairFeature):
        numbers = table.value.reshape(table.shape[0], -1)
        return ScoreBias(numbers, FeatureRows(features))
    return ScoreBias(table.value, rule)


def feature_bias(table: Parameter, features: Any) -> FeatureBias:
    """A learned bias of attention by a feature of each pair: score_hij += table[features[i, j], h].

    The feature says how query i and key j stand to each other: how far apart they are in a tree of
    dependencies or in a graph, which relation joins them, their distance in two dimensions. Nothing
    of T_q · T_k numbers is made of it: the features stay integers of one byte (F up to 256), two or
    four, and the table's gradient is the sum over the pairs of each feature, in a fixed order.

    Args:
        table:    (F, heads), a column for each head; or (F,), for all heads alike.
        features: integers (T_q, T_k) of one sentence, from 0 to F - 1.

    Returns:
        a value for `attention(bias=…)`.

    Raises:
        ShapeError:      the table is neither a vector nor a matrix, or the features no matrix.
        DtypeError:      the table is not a parameter, or features are not integers.
        VocabularyError: a feature is not a row of the table.

    Source: Ying et al. 2021 (Graphormer), arXiv:2106.05234, section 3.1.2, equation 6.

    Example:
        Distances in a tree of syntax, with a number for each of up to 7 steps and head:

        >>> import numpy as np, dynbatch as db
        >>> from dynbatch import nodes as F
        >>> table = db.Parameter(np.zeros((8, 4)))
        >>> steps = np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]])  # of a sentence of three tokens
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, np.ones((3, 16)))
        ...     y = F.attention(x, x, heads=4, bias=F.feature_bias(table, steps))
    """
    _table("feature_bias", table, (1, 2), "(F, heads), or (F,) for all heads alike")
    return FeatureBias(table, checked_features(features, table))


def checked_features(features: Any, table: Parameter) -> Array:
    """Features of pairs, once they are rows of a table, in the smallest unsigned dtype for it."""
    rows = table.shape[0]
    try:
        array = np.asarray(features)
        said = f"{array.dtype} {array.shape}"
    except ValueError:
        array, said = np.zeros(0), f"{shown(features)} of lists of different lengths"
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise DtypeError.at_caller(
            f"feature_bias: the features are {said}.\n"
            "  rule: a matrix of integers, with a feature of each query and key of one sentence\n"
            "  fix:  numbers to add need no table: attention(bias=matrix); flags that hide a key "
            "are a `mask`"
        )
    if array.size and not 0 <= array.min() <= array.max() < rows:
        raise VocabularyError.at_caller(
            f"feature_bias: features from {array.min()} to {array.max()}, and table "
            f"{table.name!r} has {rows} rows.\n"
            "  rule: 0 <= feature < F, the rows of the table\n"
            "  fix:  np.clip(features, 0, F - 1) gives all that lie beyond the last row"
        )
    dtype = np.uint8 if rows <= 1 << 8 else np.uint16 if rows <= 1 << 16 else np.uint32
    return np.array(array, dtype, order="C")


def relative_bias(table: Parameter) -> DistanceBias:
    """A learned bias of attention by distance: score_ij += table[clip(j - i, -R, R) + R, head].

    Args:
        table: (2R + 1, heads): row R is of a query's own position, row R + 1 of the key after it.

    Returns:
        a value for `attention(bias=…)`.

    Raises:
        ShapeError: the table is not a matrix with an odd number of rows.
        DtypeError: it is not a parameter.

    Source: Shaw et al. 2018, arXiv:1803.02155, section 3.2, for clipped distances; Raffel et al.
        2020, arXiv:1910.10683, section 2.1, for a scalar of each head.
    """
    rows = _table("relative_bias", table)
    if rows % 2 == 0:
        raise ShapeError.at_caller(
            f"relative_bias: table {table.name!r} has {rows} rows.\n"
            "  rule: 2R + 1 rows, for the distances -R … R\n"
            f"  fix:  make it of {rows + 1} rows; F.t5_bias takes any number of buckets"
        )
    return DistanceBias(ClippedDistance(rows // 2), table)


def t5_bias(table: Parameter, max_distance: int = 128, bidirectional: bool = True) -> DistanceBias:
    """T5's learned bias of attention: score_ij += table[bucket(j - i), head].

    Distances below half of a side's buckets have one each; the rest grow with the logarithm of the
    distance up to `max_distance`, beyond which all share the last one.

    Args:
        table:         (buckets, heads); T5 has 32 buckets.
        max_distance:  the distance from which on all share a bucket.
        bidirectional: half of the buckets are for keys before the query and for its own position,
            half for keys after it. Without, as in a decoder, all are for keys before it, and keys
            after it share bucket 0.

    Returns:
        a value for `attention(bias=…)`; T5 adds it in each layer, and has no scale of 1/√d.

    Raises:
        ShapeError:    the table is not a matrix, or has less than 4 buckets (2 in one direction).
        DtypeError:    it is not a parameter.
        ArgumentError: max_distance is not above half of a side's buckets.

    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1. Buckets are numbered as in the
        published checkpoints.
    """
    buckets = _table("t5_bias", table)
    least = 4 if switch("t5_bias", "bidirectional", bidirectional) else 2
    if buckets < least:
        raise ShapeError.at_caller(
            f"t5_bias: table {table.name!r} has {buckets} rows.\n"
            f"  rule: a row for each bucket, {least} or more\n"
            "  fix:  make it of 32 rows, as T5's are"
        )
    max_distance = size("t5_bias", "max_distance", max_distance, 2 * buckets // least // 2 + 1)
    return DistanceBias(DistanceBuckets(buckets, max_distance, bidirectional), table)


def alibi(heads: int) -> DistanceBias:
    """ALiBi, a bias of attention that is not learned: score_ij -= slope_h · |j - i|.

    The slopes of n heads, n a power of two, are 2^(-8/n), 2^(-16/n), …, 2^-8. With other numbers of
    heads the slopes of the next lower power come first, then every second one of the next higher.

    Args:
        heads: of the attention.

    Returns:
        a value for `attention(bias=…)`.

    Raises:
        ArgumentError: heads is not a positive integer.

    Source: Press et al. 2022, arXiv:2108.12409, section 3 and, for other numbers of heads, the code
        published with it. Keys after the query, which the paper's decoder hides, count alike.
    """
    heads = size("alibi", "heads", heads)
    power = 1 << heads.bit_length() - 1
    exponents = [8 * k / power for k in range(1, power + 1)]
    exponents += [4 * (2 * k + 1) / power for k in range(heads - power)]
    return DistanceBias(DistanceSlopes(tuple([2.0**-e for e in exponents])))


def _table(
    what: str, table: Parameter, ranks: tuple[int, ...] = (2,),
    rule: str = "(rows, heads), a column for each head",
) -> int:  # fmt: skip
    """The number of rows of a table, once it is known to be one."""
    if not isinstance(table, Parameter):
        raise DtypeError.at_caller(
            f"{what}: a parameter expected, got {type(table).__name__}.\n"
            "  fix:  make the table one, once, with db.Parameter(array)"
        )
    if len(table.shape) not in ranks:
        raise ShapeError.at_caller(
            f"{what}: table {table.name!r} is {table.shape}.\n"
            f"  rule: {rule}\n"
            "  fix:  make it a matrix"
        )
    return table.shape[0]
