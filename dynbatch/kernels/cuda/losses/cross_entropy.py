"""Softmax cross-entropy: cuBLAS for the products of a chunk, `cross_entropy.cu` for the rest."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.blas import product
from dynbatch.kernels.cuda.runtime.queue import launch
from dynbatch.kernels.losses import cross_entropy as kernels
from dynbatch.kernels.runtime.precision import FULL, multiplying
from dynbatch.kernels.segment import sum_segments

# A GPU wants larger products than a core; a chunk costs five launches.
CHUNK_BYTES = 32 << 20
LEAST_ROWS = 256
THREADS = 256
# Rows of at most so many logits go to a warp each, longer ones to a block.
SHORT_ROW = 1024
THREADS_OF_LONG_ROW = 512


def chunk_rows(tokens: int, vocabulary: int, itemsize: int) -> int:
    return kernels.chunk_rows(tokens, vocabulary, itemsize, CHUNK_BYTES, LEAST_ROWS)


def workspace(spec: ArraySpec, tokens: int, vocabulary: int) -> int:
    """Elements of scratch for `linear_cross_entropy`: the logits of a chunk.

    With several chunks, cuBLAS adds each chunk's gradients to those of weight and bias directly;
    for the bias it multiplies by ones, one for each token of a chunk.
    """
    rows = chunk_rows(tokens, vocabulary, spec.itemsize)
    return rows * vocabulary + (rows if rows < tokens else 0)


def linear_cross_entropy(
    hidden: Array, weight: Array, bias: Array, targets: kernels.Targets, losses: Array,
    scratch: Array, wanted: kernels.LossGradients | None = None,
) -> None:  # fmt: skip
    """losses_t = weights_t · (logsumexp(z_t) - z_t[target]), z_t = W h_t + b, without all z.

    Launches for each chunk: a product and `softmax_loss`; with `wanted` a product for dh, one for
    dW, and the sum for db.
    """
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    rows = chunk_rows(tokens, vocabulary, weight.itemsize)
    ones = scratch[rows * vocabulary :][:rows]
    if wanted is not None and wanted.bias is not None and rows < tokens:
        arrays.fill(ones, 1)
    for start in range(0, max(1, tokens), rows):  # one empty chunk for no tokens: gradients of 0
        span = slice(start, start + rows)
        h = hidden[span]
        z = scratch[: h.shape[0] * vocabulary].reshape(h.shape[0], vocabulary)
        scale = None if wanted is None else wanted.scale[span]
        product(h, weight.T, z)
        _softmax_loss(z, bias, targets, start, losses[span], scale)
        if wanted is None:
            continue
        if wanted.hidden is not None:
            product(z, weight, wanted.hidden[span])
        if wanted.weight is not None:
            product(z.T, h, wanted.weight, beta=int(start > 0))
        if wanted.bias is not None:
            total = wanted.bias.reshape(1, vocabulary)
            if start == 0:
                sum_segments(z, np.array([0, h.shape[0]]), total)
            else:
                with multiplying(FULL):
                    product(ones[: h.shape[0]].reshape(1, -1), z, total, beta=1)


def softmax_loss(
    logits: Array, bias: Array, targets: kernels.Targets, losses: Array, scale: Array | None = None
) -> None:
    """Losses of (n, V) logits in one launch; with `scale` the logits become their gradient."""
    _softmax_loss(logits, bias, targets, 0, losses, scale)


def _softmax_loss(
    logits: Array, bias: Array, targets: kernels.Targets, first: int, losses: Array,
    scale: Array | None,
) -> None:  # fmt: skip
    """`softmax_loss` for the tokens from `first` on; ids and weights are uploaded once."""
    rows, vocabulary = logits.shape
    if vocabulary <= SHORT_ROW:
        kernel, blocks, threads = "softmax_loss", -(-rows * 32 // THREADS), THREADS
    else:
        kernel, blocks, threads = "softmax_loss_of_long_rows", rows, THREADS_OF_LONG_ROW
    smoothing = targets.smoothing
    args = (
        logits, bias, targets.ids, _distributions(targets, first, rows), targets.weights, scale,
        losses, first, rows, vocabulary, 1 - smoothing, smoothing / max(1, vocabulary),
    )  # fmt: skip
    launch(logits, kernel, (blocks,), (threads,), args)


def _distributions(targets: kernels.Targets, first: int, rows: int) -> Array | None:
    """The probabilities of these tokens, uploaded with the run's tables; None for ids."""
    if targets.distributions is None or not rows:
        return None
    return targets.distributions.part(slice(first, first + rows)).rows()


def token_scales(dy: Array, weights: Array, offsets: Array, out: Array) -> None:
    args = (dy, weights, offsets, out, len(offsets) - 1, len(weights))
    launch(out, "token_scales", (-(-len(weights) // THREADS),), (THREADS,), args)
