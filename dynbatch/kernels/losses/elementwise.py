"""Elementwise losses of two values, and the selection of log-probabilities.

A loss is one definition, from which its code for NumPy, C and CUDA and its rule on nodes are made:
see `kernels.scalar`. The node sums the losses of its elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat
from dynbatch.kernels import binary
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.scalar.expressions import (
    Expression,
    equal,
    log1p,
    sigmoid_above,
    sigmoid_below,
    where,
)
from dynbatch.kernels.scalar.pair import Body, Pair
from dynbatch.kernels.segment import BLOCK, blocks, reduce_made, rows_of, sum_segments
from dynbatch.kernels.unary.activations import softplus
from dynbatch.kernels.unary.arithmetic import absolute, exp, log

LOSSES: dict[str, Pair] = {}
"""The losses f(x, t) of an input and a target, by name."""


class PairLoss(Pair):
    """A loss of an input and a target. The dy of its elements is an array of its own."""

    over_dy = False


def loss(**slopes: Body) -> Callable[[Body], Pair]:
    """Define the loss that the decorated function is: see `Pair`."""
    return lambda body: LOSSES.setdefault(body.__name__, PairLoss(body, slopes))


LEAST_RATE = 1e-8


@loss(x=lambda x, t: 2 * (x - t), t=lambda x, t: 2 * (t - x))
def squared_error(x: Expression, t: Expression) -> Expression:
    """(x - t)²."""
    return (x - t) * (x - t)


def _log_or_zero(t: Expression) -> Expression:
    """log t, and 0 for t = 0, where t log t is 0."""
    return log(where(equal(t, 0), 1, t))


# By t at 0 the slope is -inf; a finite one lets a target underflow in training.
@loss(x=lambda x, t: -t, t=lambda x, t: _log_or_zero(t) - x + 1)
def divergence(x: Expression, t: Expression) -> Expression:
    """t (log t - x), 0 where t = 0, also where x = -inf: a class of probability 0 has no part."""
    return where(equal(t, 0), 0, (_log_or_zero(t) - x) * t)


@loss(t=lambda x, t: (t - x + 1) * exp(t))
def log_divergence(x: Expression, t: Expression) -> Expression:
    """exp(t) (t - x)."""
    return (t - x) * exp(t)


def _logistic_by_x(x: Expression, t: Expression) -> Expression:
    """σ(x) - t; the smaller of σ(x) and σ(-x) is exact."""
    return where(x > 0, 1 - t - sigmoid_above(x), sigmoid_below(x) - t)


@loss(x=_logistic_by_x, t=lambda x, t: -x)
def logistic(x: Expression, t: Expression) -> Expression:
    """log(1 + exp(x)) - t x: |x| times the probability of the other class, and log(1 + exp(-|x|)).

    No term cancels another where the prediction is right, however sure.
    """
    return absolute(x) * where(x > 0, 1 - t, t) + log1p(exp(-absolute(x)))


@loss()
def poisson(x: Expression, t: Expression) -> Expression:
    """exp(x) - t x."""
    return exp(x) - t * x


@loss()
def poisson_rate(x: Expression, t: Expression) -> Expression:
    """x - t log(x + 1e-8)."""
    return x - t * log(x + LEAST_RATE)


@loss()
def soft_margin(x: Expression, t: Expression) -> Expression:
    """log(1 + exp(-t x))."""
    return softplus(-(t * x))


@kernel(1, cuda=HOST)
def pair_loss(pair: Pair, x: Array, t: Array, offsets: Array, out: Array) -> None:
    """out[k] = Σ f(x_i, t_i) over the elements of segment k."""

    def each(part: slice) -> Array:
        xs = x[part]
        losses = np.empty_like(xs)
        binary.combine(pair, xs, t[part], losses)
        return losses[:, None]

    reduce_made(np.add, each, 1, offsets, out[:, None], 0)


@kernel(2, cuda=HOST)
def pair_loss_backward(
    pair: Pair, of_target: bool, dy: Array, x: Array, t: Array, offsets: Array, out: Array
) -> None:
    """out_i = dy[k] · f'(x_i, t_i), with f' the derivative by t if `of_target`, else by x."""
    side = int(of_target)
    if x.size <= BLOCK:  # cutting small arrays would take as long as the arithmetic
        above = repeat(dy, offsets[1:] - offsets[:-1])
        binary.combine_backward(pair, above, x, t, out, side)
        return
    for part in blocks(x.size, 1):
        above = rows_of(dy, offsets, part)
        binary.combine_backward(pair, above, x[part], t[part], out[part], side)


@kernel(cuda=HOST)
def pick_loss(x: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out[k] = -Σ weights_n · x[n, ids_n] over the rows of segment k."""
    # A weight of 0 takes a token out, even where its log-probability is -inf.
    picked = np.where(weights == 0, 0, x[np.arange(ids.size), ids])
    sum_segments((picked * -weights)[:, None], offsets, out[:, None])


@kernel(cuda=HOST)
def pick_loss_backward(dy: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out[n, ids_n] = -weights_n · dy[k], and 0 elsewhere."""
    out[...] = 0
    out[np.arange(ids.size), ids] = -weights * repeat(dy, np.diff(offsets))
