"""Dot-product attention of every sentence's queries over its own keys, without padding.

Scores exist for one block of one sentence's queries at a time. Forward leaves log Σ exp(score) for
each query and head; backward recomputes the probabilities with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import blas
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import (
    AttentionGradients,
    PackedAttention,
    exp_rows,
    sentences_of,
    softmax_backward,
)
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import has_cuda, no_scratch_on_gpu

# Elements of one block of scores. Measured with 8 sentences of 512 tokens and 8 heads, float32:
# 68 ms forward with 2^16, 57 with 2^17, 52 with 2^18, 49 with 2^19.
BLOCK_ELEMENTS = 1 << 18
# Scores of an average sentence from which threads share the sentences. Below, calls are so short
# that threads wait for the interpreter: two took 3.6 -> 5.4 ms at 2^12 scores, 7.2 -> 3.7 at 2^17.
WORTH_A_THREAD = 1 << 16
# Queries of one block where a window limits the keys: neighbours see mostly the same keys.
BAND_ROWS = 128


class Scoring(NamedTuple):
    """How scores are computed: heads; for each sentence a scale (K,) and a mask.

    Head h has columns [h d, (h + 1) d) of the queries (N_q, heads · d), and head h // shared of
    keys and values, which have heads / shared heads.
    """

    heads: int
    scales: Array
    masks: Sequence[Mask]
    shared: int = 1


class Tile(NamedTuple):
    """Queries first … last - 1 of a sentence, and the keys low … high - 1 that they may see."""

    first: int
    last: int
    low: int
    high: int


class AttentionSentence(NamedTuple):
    """One sentence by heads, with its scale and mask.

    q (H, S, T_q, d), k (H, 1, T_k, d), v (H, 1, T_k, e): S heads of queries share a head of keys.
    """

    rows: slice
    keys: slice
    q: Array
    k: Array
    v: Array
    scale: float
    mask: Mask

    def block_shape(self) -> tuple[int, int]:
        """The number of queries in a block, and the most keys they see."""
        heads, shared, count = self.q.shape[:3]
        return block_shape(count, self.k.shape[2], heads * shared, self.mask)

    def blocks(self) -> Iterator[Tile]:
        """The sentence's queries, block by block."""
        count, keys = self.q.shape[2], self.k.shape[2]
        rows, _ = self.block_shape()
        for first in range(0, count, max(1, rows)):
            last = min(count, first + rows)
            yield Tile(first, last, *self.mask.keys(first, last, keys))

    def scores(self, block: Tile, scratch: Array) -> Array:
        """scale · q kᵀ of one block, -inf where hidden: (H, S, queries, keys) in `scratch`."""
        shape = (*self.q.shape[:2], block.last - block.first, block.high - block.low)
        scores = scratch[: math.prod(shape)].reshape(shape)
        k = self.k[:, :, block.low : block.high]
        np.matmul(self.q[:, :, block.first : block.last], k.swapaxes(2, 3), out=scores)
        if self.scale != 1:
            np.multiply(scores, self.scale, out=scores)
        if self.mask is not NO_MASK:
            self.mask.hide(scores, block.first, block.low)
        return scores


def block_shape(queries: int, keys: int, heads: int, mask: Mask) -> tuple[int, int]:
    """The number of queries in a block of a sentence's scores, and the most keys they see."""
    span = min(keys, mask.left + mask.right + BAND_ROWS)
    rows = max(1, BLOCK_ELEMENTS // max(1, heads * span))
    if span < keys:
        rows = min(rows, BAND_ROWS)
    return min(queries, rows), span


@no_scratch_on_gpu
def workspace(
    array: Array, query_lengths: Sequence[int], key_lengths: Sequence[int],
    heads: int, masks: Sequence[Mask],
) -> int:  # fmt: skip
    """Elements of scratch for `dot_attention`, on the device of `array`.

    The largest block of scores, once for each thread.
    """
    lengths = list(zip(query_lengths, key_lengths, strict=True))
    shapes = [block_shape(*pair, heads, mask) for pair, mask in zip(lengths, masks, strict=True)]
    threads = num_shards(len(lengths), heads * sum([a * b for a, b in lengths]))
    return threads * max([heads * rows * span for rows, span in shapes], default=0)


@has_cuda()
def workspace_backward(
    array: Array, query_lengths: Sequence[int], key_lengths: Sequence[int],
    heads: int, masks: Sequence[Mask],
) -> int:  # fmt: skip
    """Elements of scratch for `dot_attention_backward`: blocks of scores and derivatives."""
    return 2 * workspace(array, query_lengths, key_lengths, heads, masks)


def num_shards(sentences: int, scores: int) -> int:
    """The number of threads that share the sentences."""
    if scores < WORTH_A_THREAD * sentences:
        return 1
    return max(1, min(parallel.num_threads(), sentences))


@has_cuda("queries")
def dot_attention(
    packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array | None, scratch: Array
) -> None:
    """out_i = Σ_j p_ij v_j,  p_ij = softmax_j(scale · q_i · k_j), of each sentence in each head.

    A query that sees no key gives zeros.

    Args:
        out:      (N_q, E), overwritten.
        log_sums: (N_q, heads), overwritten: log Σ_j exp(score), +inf where no key is seen.
        scratch:  `workspace` elements.

    Cost: two products a sentence, each of all its heads. A loop over sentences: NumPy has no
        product of matrices of different shapes.
    Source: scores by blocks, and their sums kept for backward, as in Dao et al. 2022
        (FlashAttention), arXiv:2205.14135; a block here has all keys that its queries see.
    """

    def shard(span: range, room: Array) -> None:
        for sentence in _sentences(packed, scoring, span):
            y = _heads(out[sentence.rows], scoring.heads, scoring.shared)
            sums = None if log_sums is None else _sums(log_sums[sentence.rows], scoring)
            for block in sentence.blocks():
                _block_forward(sentence, block, y, sums, room)

    _share(packed, scoring, scratch, shard)


def _block_forward(
    sentence: AttentionSentence, block: Tile, y: Array, sums: Array | None, scratch: Array
) -> None:
    part = y[:, :, block.first : block.last]
    if block.low == block.high:
        part[...] = 0
        if sums is not None:
            sums[:, :, block.first : block.last] = np.inf
        return
    scores = sentence.scores(block, scratch)
    peak, total = exp_rows(scores)
    np.matmul(scores, sentence.v[:, :, block.low : block.high], out=part)
    hidden = total == 0
    np.copyto(total, 1, where=hidden)
    np.divide(part, total, out=part)
    if sums is not None:
        np.log(total, out=total)
        np.add(total, peak, out=total)
        np.copyto(total, np.inf, where=hidden)
        sums[:, :, block.first : block.last] = total[..., 0]


@has_cuda("queries")
def dot_attention_backward(
    packed: PackedAttention, scoring: Scoring, log_sums: Array, dout: Array,
    wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `dot_attention`. With p = exp(score - log_sum) and dp_ij = dout_i · v_j:

        ds_ij = scale · p_ij (dp_ij - Σ_j p_ij dp_ij);  dq = ds k;  dk = dsᵀ q;  dv = pᵀ dout

    Args:
        log_sums: (N_q, heads), as forward left them.
        dout:     (N_q, E).
        scratch:  `workspace_backward` elements.
    """
    heads, shared = scoring.heads, scoring.shared

    def shard(span: range, room: Array) -> None:
        for sentence in _sentences(packed, scoring, span):
            dq, dk, dv = [
                None if array is None else _heads(array[rows], count, shares)
                for array, rows, count, shares in (
                    (wanted.queries, sentence.rows, heads, shared),
                    (wanted.keys, sentence.keys, heads // shared, 1),
                    (wanted.values, sentence.keys, heads // shared, 1),
                )
            ]
            blocks = list(sentence.blocks())
            # One block that sees every key writes dk and dv; otherwise blocks add to what is there.
            adds = wanted.accumulate or [b[2:] for b in blocks] != [(0, sentence.k.shape[2])]
            if not wanted.accumulate and adds:
                for array in (dk, dv):
                    if array is not None:
                        array[...] = 0
            dy = _heads(dout[sentence.rows], heads, shared)
            sums = _sums(log_sums[sentence.rows], scoring)
            for block in blocks:
                _block_backward(sentence, block, sums, dy, dq, dk, dv, adds, room)

    _share(packed, scoring, scratch, shard)


def _block_backward(
    sentence: AttentionSentence, block: Tile, sums: Array, dy: Array,
    dq: Array | None, dk: Array | None, dv: Array | None, adds: bool, scratch: Array,
) -> None:  # fmt: skip
    rows, seen = slice(block.first, block.last), slice(block.low, block.high)
    if block.low == block.high:
        if dq is not None:
            dq[:, :, rows] = 0
        return
    half = scratch.size // 2
    p = sentence.scores(block, scratch[:half])
    np.subtract(p, sums[:, :, rows, None], out=p)
    np.exp(p, out=p)
    if dv is not None:
        _outer(p, dy[:, :, rows], dv[:, 0, seen], adds)
    if dq is None and dk is None:
        return
    ds = scratch[half : half + p.size].reshape(p.shape)
    np.matmul(dy[:, :, rows], sentence.v[:, :, seen].swapaxes(2, 3), out=ds)
    softmax_backward(p, ds)
    if sentence.scale != 1:
        np.multiply(ds, sentence.scale, out=ds)
    if dq is not None:
        np.matmul(ds, sentence.k[:, :, seen], out=dq[:, :, rows])
    if dk is not None:
        _outer(ds, sentence.q[:, :, rows], dk[:, 0, seen], adds)


def _heads(rows: Array, heads: int, shared: int) -> Array:
    """Rows (T, heads · d) as (heads / shared, shared, T, d)."""
    length, width = rows.shape
    return rows.reshape(length, heads // shared, shared, width // heads).transpose(1, 2, 0, 3)


def _sums(log_sums: Array, scoring: Scoring) -> Array:
    """Numbers of queries and heads (T_q, heads) as (heads / shared, shared, T_q)."""
    shared = scoring.shared
    return log_sums.T.reshape(scoring.heads // shared, shared, log_sums.shape[0])


def _sentences(
    packed: PackedAttention, scoring: Scoring, span: range
) -> Iterator[AttentionSentence]:
    shared = scoring.shared
    sentences = islice(sentences_of(packed), span.start, span.stop)
    for i, (rows, keys) in zip(span, sentences, strict=True):
        q = _heads(packed.queries[rows], scoring.heads, shared)
        k, v = [_heads(x[keys], scoring.heads // shared, 1) for x in (packed.keys, packed.values)]
        yield AttentionSentence(rows, keys, q, k, v, scoring.scales[i], scoring.masks[i])


def _share(
    packed: PackedAttention, scoring: Scoring, scratch: Array, shard: Callable[[range, Array], None]
) -> None:
    """Run `shard` over ranges of sentences with about equal work, each with its part of scratch."""
    count = len(scoring.masks)
    pairs = np.diff(packed.query_offsets) * np.diff(packed.key_offsets)
    shards = num_shards(count, scoring.heads * int(pairs.sum()))
    if shards == 1:
        shard(range(count), scratch)
        return
    done = np.cumsum(pairs)
    inner = np.searchsorted(done, done[-1] * np.arange(1, shards) / shards, side="right")
    edges = [0, *inner.tolist(), count]
    room = scratch.size // shards
    parallel.run(
        [
            partial(shard, range(edges[i], edges[i + 1]), scratch[i * room : (i + 1) * room])
            for i in range(shards)
        ]
    )


def _outer(weights: Array, rows: Array, out: Array, adds: bool) -> None:
    """out (+)= Σ weightsᵀ rows over the heads that share one of `out`.

    weights (H, S, queries, keys), rows (H, S, queries, d), out (H, keys, d).
    """
    shared = weights.shape[1]
    if not adds:
        np.matmul(weights[:, 0].swapaxes(1, 2), rows[:, 0], out=out)
    for part in range(0 if adds else 1, shared):
        for head in zip(rows[:, part], weights[:, part], out, strict=True):
            blas.matmul_outer(*head, add=True)
