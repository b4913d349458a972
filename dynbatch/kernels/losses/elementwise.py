"""Elementwise losses of two values, and the selection of log-probabilities.

A `PairLoss` gives the loss of every element and its two derivatives; the node sums them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import has_cuda
from dynbatch.kernels.segment import blocks, reduce_made, rows_of, sum_segments


@dataclass(frozen=True)
class PairLoss:
    """loss = f(x, t) of an input and a target.

    Args:
        name:       of the function, and of its CUDA kernel.
        forward:    (x, t, out).
        backward_x: (x, t, out), the derivative by x; `out` is neither of them.
        backward_t: (x, t, out), the derivative by t.
    """

    name: str
    forward: Callable[[Array, Array, Array], object]
    backward_x: Callable[[Array, Array, Array], object]
    backward_t: Callable[[Array, Array, Array], object]


@has_cuda(1)
def pair_loss(pair: PairLoss, x: Array, t: Array, offsets: Array, out: Array) -> None:
    """out[k] = Σ f(x_i, t_i) over the elements of segment k."""

    def each(part: slice) -> Array:
        losses = np.empty_like(x[part])
        pair.forward(x[part], t[part], losses)
        return losses[:, None]

    reduce_made(np.add, each, 1, offsets, out[:, None], 0)


@has_cuda(2)
def pair_loss_backward(
    pair: PairLoss, of_target: bool, dy: Array, x: Array, t: Array, offsets: Array, out: Array
) -> None:
    """out_i = dy[k] · f'(x_i, t_i), with f' the derivative by t if `of_target`, else by x."""
    derivative = pair.backward_t if of_target else pair.backward_x
    for part in blocks(x.size, 1):
        derivative(x[part], t[part], out[part])
        np.multiply(out[part], rows_of(dy, offsets, part), out=out[part])


def _log_or_zero(t: Array) -> Array:
    """log t, and 0 for t = 0, where t log t is 0."""
    with np.errstate(invalid="ignore"):
        logs: Array = np.log(np.where(t == 0, 1, t))
    return logs


def _divergence(x: Array, t: Array, out: Array) -> None:
    np.subtract(_log_or_zero(t), x, out=out)
    np.multiply(out, t, out=out)
    np.copyto(out, 0, where=t == 0)  # also where x = -inf: a class of probability 0 has no part


def _logistic(x: Array, t: Array, out: Array) -> None:
    # |x| times the probability of the other class, plus log(1 + exp(-|x|)): no term cancels another
    # where the prediction is right, however sure.
    size = np.abs(x)
    np.multiply(size, -1, out=out)
    np.exp(out, out=out)
    np.log1p(out, out=out)
    np.multiply(size, np.where(x > 0, 1 - t, t), out=size)
    np.add(out, size, out=out)


def _logistic_x(x: Array, t: Array, out: Array) -> None:
    # σ(x) - t as (1 - t) - σ(-x) for positive x: the smaller of σ(x) and σ(-x) is exact.
    np.abs(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.divide(1, out, out=out)
    np.subtract(np.where(x > 0, 1 - t, t), out, out=out)
    np.multiply(out, -1, out=out, where=~(x > 0))


squared_error = PairLoss(
    "squared_error",
    lambda x, t, out: np.square(np.subtract(x, t, out=out), out=out),
    lambda x, t, out: np.multiply(np.subtract(x, t, out=out), 2, out=out),
    lambda x, t, out: np.multiply(np.subtract(t, x, out=out), 2, out=out),
)
# By t at 0 the slope is -inf; a finite one lets a target underflow in training.
divergence = PairLoss(
    "divergence",
    _divergence,
    lambda x, t, out: np.negative(t, out=out),
    lambda x, t, out: np.add(np.subtract(_log_or_zero(t), x, out=out), 1, out=out),
)
log_divergence = PairLoss(
    "log_divergence",
    lambda x, t, out: np.multiply(np.subtract(t, x, out=out), np.exp(t), out=out),
    lambda x, t, out: np.negative(np.exp(t, out=out), out=out),
    lambda x, t, out: np.multiply(
        np.add(np.subtract(t, x, out=out), 1, out=out), np.exp(t), out=out
    ),
)
logistic = PairLoss("logistic", _logistic, _logistic_x, lambda x, t, out: np.negative(x, out=out))


@has_cuda()
def pick_loss(x: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out[k] = -Σ weights_n · x[n, ids_n] over the rows of segment k."""
    # A weight of 0 takes a token out, even where its log-probability is -inf.
    picked = np.where(weights == 0, 0, x[np.arange(ids.size), ids])
    sum_segments((picked * -weights)[:, None], offsets, out[:, None])


@has_cuda()
def pick_loss_backward(dy: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out[n, ids_n] = -weights_n · dy[k], and 0 elsewhere."""
    out[...] = 0
    out[np.arange(ids.size), ids] = -weights * np.repeat(dy, np.diff(offsets))
