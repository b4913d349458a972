"""Softmax cross-entropy: cuBLAS for the products of a chunk, `cross_entropy.cu` for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.kernels import cross_entropy as kernels
from dynbatch.kernels.cuda.blas import Array, product
from dynbatch.kernels.cuda.queue import launch, queue
from dynbatch.kernels.segment import sum_segments

THREADS = 256
# Rows of at most so many logits go to a warp each, longer ones to a block, as in cross_entropy.cu.
SHORT_ROW = 1024
THREADS_OF_LONG_ROW = 512


def workspace(weight: Any, tokens: int) -> int:
    """Elements of scratch that `linear_cross_entropy` needs: the logits of a chunk.

    cuBLAS adds a chunk's gradient to the weight's, so that none is stored apart.
    """
    return kernels.chunk_rows(tokens, len(weight), weight.itemsize) * len(weight)


def linear_cross_entropy(
    hidden: Any, weight: Any, bias: Any, targets: kernels.Targets, losses: Any,
    scratch: Any, wanted: kernels.Wanted | None = None,
) -> None:  # fmt: skip
    """losses_t = weights_t · (logsumexp(z_t) - z_t[target]), z_t = W h_t + b, without all z.

    Launches for each chunk: a product and `softmax_loss`; with `wanted` a product for dh, one for
    dW, and the sum for db.
    """
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    rows = kernels.chunk_rows(tokens, vocabulary, hidden.itemsize)
    starts = range(0, max(1, tokens), rows)  # one empty chunk for no tokens: gradients of 0
    sums = None
    if wanted is not None and wanted.bias is not None:
        sums = queue().empty((len(starts), vocabulary), hidden.dtype)
    for chunk, start in enumerate(starts):
        span = slice(start, start + rows)
        h = hidden[span]
        z = scratch[: h.shape[0] * vocabulary].reshape(h.shape[0], vocabulary)
        product(h, weight.T, z)
        _softmax_loss(z, bias, targets, start, losses[span], wanted and wanted.scale[span])
        if wanted is None:
            continue
        if wanted.hidden is not None:
            product(z, weight, wanted.hidden[span])
        if wanted.weight is not None:
            product(z.T, h, wanted.weight, beta=int(start > 0))
        if sums is not None:
            sum_segments(z, np.array([0, h.shape[0]]), sums[chunk : chunk + 1])
    if sums is not None:
        total = wanted.bias.reshape(1, vocabulary)  # type: ignore[union-attr]
        sum_segments(sums, np.array([0, len(starts)]), total)


def softmax_loss(
    logits: Any, bias: Any, targets: kernels.Targets, losses: Any, scale: Any = None
) -> None:
    """Losses of (n, V) logits, which with `scale` become their gradient, in one launch."""
    _softmax_loss(logits, bias, targets, 0, losses, scale)


def _softmax_loss(
    logits: Any, bias: Any, targets: kernels.Targets, first: int, losses: Any, scale: Any
) -> None:
    """`softmax_loss` of the tokens from `first` on; ids and weights are uploaded once for all."""
    rows, vocabulary = logits.shape
    if vocabulary <= SHORT_ROW:
        blocks, threads = -(-rows * 32 // THREADS), THREADS
    else:
        blocks, threads = rows, THREADS_OF_LONG_ROW
    smoothing = targets.smoothing
    args = (
        logits, bias, targets.ids, targets.weights, scale, losses, first, rows, vocabulary,
        1 - smoothing, smoothing / max(1, vocabulary),
    )  # fmt: skip
    launch(logits, "softmax_loss", (blocks,), (threads,), args)


def token_scales(dy: Any, weights: Array, offsets: Array, out: Any) -> None:
    """out_t = weights_t · dy_k for the tokens t of sentence k."""
    args = (dy, weights, offsets, out, len(offsets) - 1, len(weights))
    launch(out, "token_scales", (-(-len(weights) // THREADS),), (THREADS,), args)
