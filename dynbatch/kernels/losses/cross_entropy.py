"""Softmax cross-entropy, on logits or fused with the projection that makes them.

The fused form walks over the tokens in chunks chosen by bytes, so the logits of a mini-batch never
exist as a whole; if the gradient of the loss is known, theirs is computed in the same pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.indexing import repeat
from dynbatch.kernels import arrays, blas
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.segment import share_blocks, sum_segments

# Bytes of a chunk's logits, unless LEAST_ROWS need more: products of fewer rows are slower. 2,000
# tokens of 512 features, 32,000 words, one Zen 4 core: 2.01 s with all tokens in one chunk, 2.07 s
# with 512 in each, 2.14 with 256, 2.24 with 192, 2.39 with 128.
CHUNK_BYTES = 16 << 20
LEAST_ROWS = 256


class Distributions:
    """Packed rows (N, V) of several arrays (T, V), joined a few at a time.

    Args:
        arrays: C-contiguous, of the host.
        first, end: which rows of them all; by default every one.
    """

    def __init__(self, arrays: Sequence[Array], first: int = 0, end: int | None = None) -> None:
        self._arrays = arrays
        self._starts = np.cumsum([0, *[len(array) for array in arrays]])
        self._first = first
        self._end = int(self._starts[-1]) if end is None else end

    def part(self, span: slice) -> Distributions:
        first, end, _ = span.indices(self._end - self._first)
        return Distributions(self._arrays, self._first + first, self._first + end)

    def pieces(self) -> list[tuple[slice, Array]]:
        """The rows of each array, with their place among all rows."""
        first, end, starts = self._first, self._end, self._starts
        low = int(np.searchsorted(starts[:-1], first, side="right")) - 1
        high = max(low + 1, int(np.searchsorted(starts, end)))
        cut = []
        for array, start in zip(self._arrays[low:high], starts[low:high].tolist(), strict=True):
            piece = array[max(0, first - start) : end - start]
            begin = max(0, start - first)
            cut.append((slice(begin, begin + len(piece)), piece))
        return cut

    def rows(self) -> Array:
        """All rows; a copy only if they come from several arrays."""
        parts = [piece for _, piece in self.pieces()]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]


@dataclass
class Targets:
    """The target of each token: a class, or a probability for each class.

    Args:
        ids:       (N,) int64, each within the vocabulary (ignored tokens: any).
        weights:   (N,) of each token's loss; 0 for ignored tokens, whose logits may be anything.
        smoothing: ε: the target's probability is 1 - ε + ε/V, the others' ε/V.
        distributions: (N, V) instead of `ids`, smoothed in the same way: (1 - ε) p + ε/V.
    """

    ids: Array
    weights: Array
    smoothing: float = 0.0
    distributions: Distributions | None = None

    def part(self, span: slice) -> Targets:
        """The targets of some tokens."""
        rows = None if self.distributions is None else self.distributions.part(span)
        return Targets(self.ids[span], self.weights[span], self.smoothing, rows)


@dataclass
class LossGradients:
    """Gradients to compute, overwritten: dh (N, D), dW (V, D), db (V,).

    `scale` (N,) is the gradient of each token's unweighted loss.
    """

    scale: Array
    hidden: Array | None = None
    weight: Array | None = None
    bias: Array | None = None


def chunk_rows(
    tokens: int, vocabulary: int, itemsize: int,
    chunk_bytes: int = CHUNK_BYTES, least_rows: int = LEAST_ROWS,
) -> int:  # fmt: skip
    """Tokens per chunk: at most as many as `chunk_bytes` of logits hold, or `least_rows`.

    The number of chunks is minimal, and their sizes are about equal.
    """
    most = max(1, least_rows, chunk_bytes // max(1, vocabulary * itemsize))
    chunks = max(1, -(-tokens // most))
    return max(1, -(-tokens // chunks))


@kernel(cuda=HOST)
def workspace(spec: ArraySpec, tokens: int, vocabulary: int) -> int:
    """Elements of scratch for `linear_cross_entropy`: the logits of a chunk."""
    return chunk_rows(tokens, vocabulary, spec.itemsize) * vocabulary


@kernel(cuda=HOST)
def linear_cross_entropy(
    hidden: Array, weight: Array, bias: Array | None, targets: Targets, losses: Array,
    scratch: Array, wanted: LossGradients | None = None,
) -> None:  # fmt: skip
    """losses_t = weights_t · (logsumexp(z_t) - z_t[target]), z_t = W h_t + b, without all z.

    Args:
        hidden:  (N, D).
        weight:  (V, D); without gradients it may be upper halves of numbers.
        losses:  (N,), overwritten, in nats.
        scratch: `workspace` elements.
        wanted:  gradients to compute in the same pass.

    Memory: a chunk of logits, which become their gradient, and what `blas.matmul_outer` needs to
        add; neither grows with the tokens.
    Source: chunking after Wijmans et al. 2024 (Cut Your Losses), arXiv:2411.09009; ours walks over
    tokens only, since a chunk's logits fit in memory.
    """
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    rows = chunk_rows(tokens, vocabulary, hidden.itemsize)
    if wanted is not None and not tokens:
        for array in (wanted.weight, wanted.bias):
            if array is not None:
                array[...] = 0
    for start in range(0, tokens, rows):
        span = slice(start, min(tokens, start + rows))
        h = hidden[span]
        z = scratch[: len(h) * vocabulary].reshape(len(h), vocabulary)
        part = None if wanted is None else _part(wanted, span)
        _chunk(h, weight, bias, z, targets.part(span), losses[span], part)
        if part is None:
            continue
        if part.weight is not None:
            blas.matmul_outer(h, z, part.weight, add=start > 0)
        if part.bias is not None:
            total = part.bias if start == 0 else np.empty_like(part.bias)
            arrays.sum_rows(z, total)
            if start > 0:
                np.add(part.bias, total, out=part.bias)


def _part(wanted: LossGradients, span: slice) -> LossGradients:
    """The wanted gradients for some tokens; those of weight and bias are summed over all tokens."""
    hidden = None if wanted.hidden is None else wanted.hidden[span]
    return LossGradients(wanted.scale[span], hidden, wanted.weight, wanted.bias)


def _chunk(
    h: Array, weight: Array, bias: Array | None, z: Array, targets: Targets, losses: Array,
    wanted: LossGradients | None,
) -> None:  # fmt: skip
    """Losses, gradients of the logits in `z`, and dh of one chunk; threads share each."""
    blas.matmul_shared(h, weight.T, z)
    softmax_loss(z, bias, targets, losses, None if wanted is None else wanted.scale)
    if wanted is not None and wanted.hidden is not None:
        blas.matmul_shared(z, weight, wanted.hidden)


@kernel(cuda=HOST)
def token_scales(dy: Array, weights: Array, offsets: Array, out: Array) -> None:
    """out_t = weights_t · dy_k for the tokens t of sentence k."""
    np.multiply(weights, repeat(dy, np.diff(offsets)), out=out)


@kernel(c=HOST, cuda=HOST)
def softmax_loss(
    logits: Array, bias: Array | None, targets: Targets, losses: Array, scale: Array | None = None
) -> None:
    """Losses of (n, V) logits.

    With `scale` (n,), the gradient of each token's unweighted loss, the logits become their
    gradient; without, they stay as they are. For ignored tokens, whose weight is 0, both are 0.

    Memory: blocks of rows, one a thread: one without `scale`, three more for targets that are
        distributions.
    """

    def work(span: slice) -> None:
        z, part = logits[span], targets.part(span)
        shifted = np.empty_like(z) if scale is None else z
        if bias is not None:
            z = np.add(z, bias, out=shifted)
        peak = z.max(axis=1, keepdims=True)
        z = np.subtract(z, peak, out=shifted)
        block = _of_ids if part.distributions is None else _of_distributions
        block(z, part, losses[span], None if scale is None else scale[span])
        ignored = part.weights == 0
        if ignored.any():
            losses[span][ignored] = 0
            if scale is not None:
                z[ignored] = 0

    share_blocks(len(logits), logits.shape[1], work)


def _of_ids(z: Array, targets: Targets, losses: Array, scale: Array | None) -> None:
    """Losses of logits z with maximum 0; z becomes its gradient, or else exp(z)."""
    rows, ids = np.arange(z.shape[0]), targets.ids
    loss = -(1 - targets.smoothing) * z[rows, ids]
    if targets.smoothing:
        loss -= targets.smoothing * z.mean(axis=1)
    np.exp(z, out=z)
    total = _row_sums(z)
    loss += np.log(total)
    np.multiply(loss, targets.weights, out=losses)
    if scale is not None:
        np.multiply(z, (scale / total)[:, None], out=z)
        if targets.smoothing:
            z -= (targets.smoothing / z.shape[1] * scale)[:, None]
        z[rows, ids] -= (1 - targets.smoothing) * scale


def _row_sums(z: Array) -> Array:
    """The sum of each row, in the order of `log_softmax`: losses have its bits."""
    sums = np.empty((len(z), 1), z.dtype)
    sum_segments(z.reshape(-1, 1), np.arange(len(z) + 1) * z.shape[1], sums)
    return sums[:, 0]


def _of_distributions(z: Array, targets: Targets, losses: Array, scale: Array | None) -> None:
    """`_of_ids` for targets with a probability q per class: loss = Σ q · logsumexp(z) - Σ q z.

    A class of probability 0 contributes nothing, even if its logit is -inf.
    """
    assert targets.distributions is not None
    q = targets.distributions.rows()
    if targets.smoothing:
        q = q * (1 - targets.smoothing) + targets.smoothing / z.shape[1]
    products = np.multiply(q, z)
    products[q == 0] = 0
    mass, inner = q.sum(axis=1), products.sum(axis=1)
    np.exp(z, out=z)
    total = _row_sums(z)
    np.multiply(mass * np.log(total) - inner, targets.weights, out=losses)
    if scale is not None:
        np.multiply(z, (scale * mass / total)[:, None], out=z)
        np.multiply(q, scale[:, None], out=products)
        np.subtract(z, products, out=z)
