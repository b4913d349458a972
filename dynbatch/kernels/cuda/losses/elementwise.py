"""CUDA versions of `kernels/losses/elementwise.py`: losses, and picked log-probabilities."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.walks import over_elements, over_segments, reduce_parts
from dynbatch.kernels.losses.elementwise import PairLoss
from dynbatch.kernels.matrices import Segments
from dynbatch.kernels.segment import sum_segments

PAIRS = {
    "squared_error": 0,
    "divergence": 1,
    "log_divergence": 2,
    "logistic": 3,
}  # as in elementwise_losses.cu


def pair_loss(pair: PairLoss, x: Array, t: Array, offsets: Array, out: Array) -> None:
    """out[k] = Σ f(x_i, t_i) over the elements of segment k: one launch unless one is very long."""
    elements = x.reshape(-1, 1)

    def reduce(rows: Array, offsets: Segments, out: Array) -> None:
        if rows is elements:
            over_segments("pair_loss", (x, t, out), offsets, 1, PAIRS[pair.name])
        else:
            sum_segments(rows, offsets, out)

    reduce(*reduce_parts(elements, offsets, reduce), out.reshape(-1, 1))


def pair_loss_backward(
    pair: PairLoss, of_target: bool, dy: Array, x: Array, t: Array, offsets: Array, out: Array
) -> None:
    """out_i = dy[k] · f'(x_i, t_i), with f' the derivative by t if `of_target`, else by x."""
    more = (PAIRS[pair.name], of_target)
    over_elements("pair_loss_backward", (dy, x, t), offsets, out, *more)


def pick_loss(x: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out[k] = -Σ weights_n · x[n, ids_n] over the rows of segment k."""
    over_segments("pick_loss", (x, out), offsets, 1, ids, weights, x.shape[1])


def pick_loss_backward(dy: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out[n, ids_n] = -weights_n · dy[k], and 0 elsewhere."""
    over_elements("pick_loss_backward", (dy,), offsets, out, ids, weights)
