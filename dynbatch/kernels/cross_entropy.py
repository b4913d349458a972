"""Softmax cross-entropy, on logits or fused with the projection that makes them.

The fused form walks over the tokens in chunks chosen by bytes, so the logits of a mini-batch never
exist as a whole; where the gradient of the loss is known it is made in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dynbatch.kernels import blas, parallel
from dynbatch.kernels.dispatch import twin

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_BYTES = 32 << 20
LEAST_ROWS = 256
# Elements of logits that one pass of softmax keeps in the second-level cache.
BLOCK_ELEMENTS = 1 << 17


@dataclass
class Targets:
    """What each token should predict.

    Args:
        ids:       (N,) int64, each within the vocabulary (ignored tokens: any).
        weights:   (N,) of each token's loss; 0 for ignored tokens.
        smoothing: ε: the target's probability is 1 - ε + ε/V, the others' ε/V.
    """

    ids: Array
    weights: Array
    smoothing: float = 0.0

    def part(self, span: slice) -> Targets:
        """The targets of some tokens."""
        return Targets(self.ids[span], self.weights[span], self.smoothing)


@dataclass
class Wanted:
    """Gradients the caller wants, overwritten: dh (N, D), dW (V, D), db (V,).

    `scale` (N,) is the gradient of each token's unweighted loss.
    """

    scale: Array
    hidden: Array | None = None
    weight: Array | None = None
    bias: Array | None = None


def chunk_rows(tokens: int, vocabulary: int, itemsize: int) -> int:
    """Tokens per chunk: as many as CHUNK_BYTES of logits hold, at least LEAST_ROWS."""
    return max(1, min(tokens, max(LEAST_ROWS, CHUNK_BYTES // max(1, vocabulary * itemsize))))


@twin()
def workspace(weight: Array, tokens: int) -> int:
    """Elements of scratch that `linear_cross_entropy` needs."""
    vocabulary, width = weight.shape
    rows = chunk_rows(tokens, vocabulary, weight.itemsize)
    elements: int = rows * vocabulary + (vocabulary * width if rows < tokens else 0)
    return elements


@twin()
def linear_cross_entropy(
    hidden: Array, weight: Array, bias: Array | None, targets: Targets, losses: Array,
    scratch: Array, wanted: Wanted | None = None,
) -> None:  # fmt: skip
    """losses_t = weights_t · (logsumexp(z_t) - z_t[target]), z_t = W h_t + b, without all z.

    Args:
        hidden:  (N, D).
        weight:  (V, D).
        losses:  (N,), overwritten, in nats.
        scratch: `workspace` elements.
        wanted:  gradients to make on the way.

    Source: chunking after Wijmans et al. 2024 (Cut Your Losses), arXiv:2411.09009; ours walks over
    tokens only, since a chunk's logits fit in memory.
    """
    tokens, width = hidden.shape
    vocabulary = weight.shape[0]
    rows = chunk_rows(tokens, vocabulary, hidden.itemsize)
    logits = scratch[: rows * vocabulary].reshape(rows, vocabulary)
    partial = scratch[rows * vocabulary :]
    if wanted is not None:
        for array in (wanted.weight, wanted.bias):
            if array is not None and not tokens:
                array[...] = 0
    for start in range(0, tokens, rows):
        end = min(tokens, start + rows)
        z = logits[: end - start]

        def shard(low: int, high: int, start: int = start, z: Array = z) -> None:
            span = slice(start + low, start + high)
            blas.matmul(hidden[span], weight.T, z[low:high])
            scale = None if wanted is None else wanted.scale[span]
            softmax_loss(z[low:high], bias, targets.part(span), losses[span], scale)
            if wanted is not None and wanted.hidden is not None:
                blas.matmul(z[low:high], weight, wanted.hidden[span])

        parallel.run(
            [lambda s=s, e=e: shard(s, e) for s, e in parallel.shards(end - start, 32)]  # type: ignore[misc]
        )
        if wanted is None:
            continue
        if wanted.weight is not None:
            into = wanted.weight if start == 0 else partial.reshape(vocabulary, width)
            blas.matmul_outer(hidden[start:end], z, into)
            if start:
                np.add(wanted.weight, into, out=wanted.weight)
        if wanted.bias is not None:
            _sum_rows(z, wanted.bias, add=start > 0)


def _sum_rows(z: Array, out: Array, add: bool) -> None:
    """out (+)= Σ_t z_t, as a product with ones (twice as fast); threads share the columns."""
    ones = np.ones(z.shape[0], z.dtype)

    def shard(low: int, high: int) -> None:
        total = ones @ z[:, low:high]
        out[low:high] = out[low:high] + total if add else total

    parallel.run([partial(shard, low, high) for low, high in parallel.shards(z.shape[1], 512)])


@twin()
def token_scales(dy: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out_t = weights_t · dy_k for the tokens t of sentence k.

    Args:
        dy:      (K,) gradient of each sentence's loss.
        weights: (N,) of the host.
        offsets: (K + 1,) first token of each sentence, from 0 to N.
        out:     (N,), overwritten.
    """
    np.multiply(weights, np.repeat(dy, np.diff(offsets)), out=out)


@twin()
def softmax_loss(
    logits: Array, bias: Array | None, targets: Targets, losses: Array, scale: Array | None = None
) -> None:
    """Losses of (n, V) logits.

    With `scale` (n,), the gradient of each token's unweighted loss, the logits become their
    gradient; without, they may hold anything afterwards.
    """
    vocabulary = logits.shape[1]
    step = max(1, BLOCK_ELEMENTS // max(1, vocabulary))
    for start in range(0, logits.shape[0], step):
        span = slice(start, start + step)
        z = logits[span]
        ids = targets.ids[span]
        if bias is not None:
            np.add(z, bias, out=z)
        rows = np.arange(z.shape[0])
        peak = z.max(axis=1, keepdims=True)
        np.subtract(z, peak, out=z)
        loss = -(1 - targets.smoothing) * z[rows, ids]
        if targets.smoothing:
            loss -= targets.smoothing * z.mean(axis=1)
        np.exp(z, out=z)
        total = z.sum(axis=1)
        loss += np.log(total)
        np.multiply(loss, targets.weights[span], out=losses[span])
        if scale is not None:
            weights = scale[span]
            np.multiply(z, (weights / total)[:, None], out=z)
            if targets.smoothing:
                z -= (targets.smoothing / vocabulary * weights)[:, None]
            z[rows, ids] -= (1 - targets.smoothing) * weights
