"""Rules of reductions, running sums, variances and extrema."""

from __future__ import annotations

import math

import numpy as np

from dynbatch import nodes as F
from dynbatch.differentiation.repeated import rows_of, spread
from dynbatch.differentiation.rules.selection import equals
from dynbatch.differentiation.table import Made, rule
from dynbatch.indexing import repeat
from dynbatch.nodes.node import Node
from dynbatch.nodes.reductions.extremum import Extremum, Max, Min
from dynbatch.nodes.reductions.reduce import LogSumExp, Mean, Sum, Total
from dynbatch.nodes.reductions.segments import SegmentMean, SegmentSum
from dynbatch.nodes.reductions.statistics import CumSum, Spread, StandardDeviation, Variance
from dynbatch.nodes.shape.axes import ALL, FEATURES, TOKENS


def count_of(x: Node, over: str) -> int:
    """The number of elements that a reduction of x adds up."""
    return {TOKENS: x.rows, FEATURES: x.width, ALL: x.rows * x.width}[over]


@rule(Total)
def _total(y: Total, dy: Node) -> tuple[Made, ...]:
    return tuple([lambda: dy * y.number for _ in y.inputs])


@rule(Sum)
def _sum(y: Sum, dy: Node) -> tuple[Made, ...]:
    return (lambda: spread(dy, y.inputs[0]),)


@rule(Mean)
def _mean(y: Mean, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: spread(dy / max(count_of(x, y.over), 1), x),)


@rule(SegmentSum, SegmentMean)
def _segment_sum(y: SegmentSum, dy: Node) -> tuple[Made, ...]:
    rows = repeat(np.arange(y.rows), y.counts)
    divisors = np.maximum(y.counts, 1).astype(float)[:, None]
    is_mean = isinstance(y, SegmentMean)
    return (lambda: F.gather_rows(dy / F.input(y.graph, divisors) if is_mean else dy, rows),)


@rule(LogSumExp)
def _logsumexp(y: LogSumExp, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs

    def by_shares() -> Node:
        finite = F.where(F.equal(y, -math.inf), 0.0, y)  # all shares of -inf are 0
        return spread(dy, x) * F.exp(x - spread(finite, x))

    return (by_shares,)


@rule(CumSum)
def _cumsum(y: CumSum, dy: Node) -> tuple[Made, ...]:
    def summed_from_the_end() -> Node:
        if y.over == TOKENS:
            return F.reverse(F.cumsum(F.reverse(dy), 0))
        columns = F.transpose(rows_of(dy))
        sums = F.transpose(F.reverse(F.cumsum(F.reverse(columns), 0)))
        return sums if dy.ndim == 2 else F.squeeze(sums, 0)

    return (summed_from_the_end,)


@rule(Variance, StandardDeviation)
def _spread(y: Spread, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    with np.errstate(divide="ignore"):
        factor = float(np.divide(1.0, max(count_of(x, y.over) - y.correction, 0)))

    def by_deviations() -> Node:
        scaled = dy * (2.0 * factor)
        if y.root:
            is_zero = F.equal(y, 0.0)
            scaled = F.where(is_zero, 0.0, dy * factor / F.where(is_zero, 1.0, y))
        return spread(scaled, x) * (x - spread(Mean(x, over=y.over), x))

    return (by_deviations,)


@rule(Max, Min)
def _extremum(y: Extremum, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: spread(dy, x) * _is_first(equals(x, spread(y, x)), y.over),)


def _is_first(mask: Node, over: str) -> Node:
    """1 at the first 1 of each token, each feature, or of all."""
    if over == ALL:
        column = F.reshape(mask, (mask.rows * mask.width, 1))
        first = _is_first(column, TOKENS)
        return F.reshape(first, mask.shape)
    along = F.cumsum(mask, 0 if over == TOKENS else -1)
    return mask * F.equal(along, 1.0)
