"""Scores of packed sentences, block by block, and the threads that share the sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.attention.bias import (
    BatchBias,
    FeatureRows,
    FeatureTables,
    PairMatrices,
    PairStarts,
    ScoreBias,
    SentenceBias,
    columns_of,
    distances_of,
    size_of,
    vector_of,
)
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import PackedAttention, sentences_of
from dynbatch.kernels.blas import has_fixed_rows
from dynbatch.kernels.dropout import drop_rows
from dynbatch.kernels.runtime import parallel

# Elements of one block of scores. Measured with 8 sentences of 512 tokens and 8 heads, float32:
# 68 ms forward with 2^16, 57 with 2^17, 52 with 2^18, 49 with 2^19.
BLOCK_ELEMENTS = 1 << 18
# Scores of an average sentence from which threads share the sentences. Below, calls are so short
# that threads wait for the interpreter: two took 3.6 -> 5.4 ms at 2^12 scores, 7.2 -> 3.7 at 2^17.
WORTH_A_THREAD = 1 << 16
# Queries of one block where a window limits the keys: neighbours see mostly the same keys.
BAND_ROWS = 128


class Scoring(NamedTuple):
    """The way scores are computed: heads, scale (K,) and mask per sentence; a bias for all.

    Head h has columns [h d, (h + 1) d) of the queries (N_q, heads · d), and head h // shared of
    keys and values, which have heads / shared heads. Probabilities are dropped with probability
    `p`; `streams` (K,) uint32 are the sentences' random streams, None where p = 0. Query i stands
    at position starts[k] + i of sentence k, at i where there are no `starts`. A `softcap` c > 0
    makes c · tanh(score / c) of scores, before a bias is added.
    """

    heads: int
    scales: Array
    masks: Sequence[Mask]
    shared: int = 1
    bias: ScoreBias | None = None
    p: float = 0.0
    streams: Array | None = None
    starts: Array | None = None
    softcap: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether there is one head, without a bias, dropout or a softcap."""
        return self.heads == 1 and not self.is_extended

    @property
    def is_extended(self) -> bool:
        """Whether scores are more than scaled products, or probabilities are dropped."""
        return self.bias is not None or self.streams is not None or self.softcap > 0

    @property
    def key(self) -> Hashable:
        """Equal where the same sentences are scored alike, as by the layers of a model; None where
        that is not known."""
        first = self.masks[0]
        is_plain = self.bias is None and self.streams is None and first.visible is None
        if not (is_plain and all([mask is first for mask in self.masks])):
            return None
        of_scores = self.scales.tobytes(), self.softcap, self.starts is None
        return (self.heads, self.shared, first[:2], *of_scores)

    def mask(self, sentence: int) -> Mask:
        """The mask of a sentence, by the distance of key and query in their arrays."""
        mask = self.masks[sentence]
        if self.starts is None or mask is NO_MASK:
            return mask
        start = int(self.starts[sentence])
        return mask._replace(left=mask.left - start, right=mask.right + start)

    def ends(self, query_lengths: Sequence[int] | Array) -> Sequence[int] | Array:
        """Behind which position the queries of each sentence end."""
        if self.starts is None:
            return query_lengths
        return np.add(query_lengths, self.starts)


class Tile(NamedTuple):
    """Queries first … last - 1 of a sentence, and the keys low … high - 1 that they may see."""

    first: int
    last: int
    low: int
    high: int


class AttentionSentence(NamedTuple):
    """One sentence by heads, with what is its own of `Scoring`, and the batch's bias.

    q (H, S, T_q, d), k (H, 1, T_k, d), v (H, 1, T_k, e): S heads of queries share a head of keys.
    """

    rows: slice
    keys: slice
    q: Array
    k: Array
    v: Array
    scale: float
    mask: Mask
    bias: SentenceBias | None
    p: float
    stream: np.generic | None
    start: int
    softcap: float

    def block_shape(self) -> tuple[int, int]:
        """The number of queries in a block, and the most keys they see."""
        heads, shared, count = self.q.shape[:3]
        return block_shape(count, self.k.shape[2], heads * shared, self.mask)

    def blocks(self) -> Iterator[Tile]:
        count, keys = self.q.shape[2], self.k.shape[2]
        # A query by itself, and the keys that it sees: no product depends on others then.
        rows = 1 if has_fixed_rows() else self.block_shape()[0]
        for first in range(0, count, max(1, rows)):
            last = min(count, first + rows)
            yield Tile(first, last, *self.mask.keys(first, last, keys))

    def shape(self, block: Tile) -> tuple[int, ...]:
        """The shape of a block's scores, (H, S, queries, keys)."""
        return (*self.q.shape[:2], block.last - block.first, block.high - block.low)

    def scores(self, block: Tile, scratch: Array, slopes: Array | None = None) -> Array:
        """scale · q kᵀ + bias of a block, (H, S, queries, keys) in `scratch`; -inf where hidden.

        Args:
            slopes: overwritten with the derivative of the softcap, if there is one.
        """
        shape = self.shape(block)
        scores = scratch[: math.prod(shape)].reshape(shape)
        k = self.k[:, :, block.low : block.high]
        np.matmul(self.q[:, :, block.first : block.last], k.swapaxes(2, 3), out=scores)
        if self.scale != 1:
            np.multiply(scores, self.scale, out=scores)
        if self.softcap:
            np.divide(scores, self.softcap, out=scores)
            np.tanh(scores, out=scores)
            if slopes is not None:
                np.multiply(scores, scores, out=slopes[: scores.size].reshape(shape))
                np.subtract(1, slopes, out=slopes)
            np.multiply(scores, self.softcap, out=scores)
        if self.bias is not None:
            first, last = block.first + self.start, block.last + self.start
            np.add(scores, self.bias.matrix(first, last, block.low, block.high), out=scores)
        if self.mask is not NO_MASK:
            self.mask.hide(scores, block.first, block.low)
        return scores

    def drop(self, weights: Array, block: Tile) -> None:
        """Drop some weights of a block, (H, S, queries, keys), and scale up the rest, in place.

        A pair's number counts heads, then queries, then keys, all of the sentence.
        """
        if self.stream is None:
            return
        heads, shared, count = self.q.shape[:3]
        rows = np.arange(heads * shared)[:, None] * count + np.arange(block.first, block.last)
        first = rows.reshape(-1) * self.k.shape[2] + block.low
        drop_rows(weights.reshape(first.size, -1), first.astype(np.uint32), self.stream, self.p)


def block_shape(queries: int, keys: int, heads: int, mask: Mask) -> tuple[int, int]:
    """The number of queries in a block of a sentence's scores, and the most keys they see."""
    span = min(keys, mask.left + mask.right + BAND_ROWS)
    rows = max(1, BLOCK_ELEMENTS // max(1, heads * span))
    if span < keys:
        rows = min(rows, BAND_ROWS)
    return min(queries, rows), span


def room_of(
    query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring
) -> tuple[int, int, int]:
    """The number of threads, and elements of a block of scores and of the bias."""
    lengths = list(zip(query_lengths, key_lengths, strict=True))
    heads = scoring.heads
    shapes = [block_shape(*pair, heads, scoring.mask(k)) for k, pair in enumerate(lengths)]
    threads = num_shards(len(lengths), heads * sum([a * b for a, b in lengths]))
    bias = size_of(scoring.bias, scoring.ends(query_lengths), key_lengths)
    return threads, max([heads * rows * span for rows, span in shapes], default=0), bias


def num_shards(sentences: int, scores: int) -> int:
    if scores < WORTH_A_THREAD * sentences:
        return 1
    return max(1, min(parallel.num_threads(), sentences))


def bias_of(
    packed: PackedAttention, scoring: Scoring, scratch: Array
) -> tuple[BatchBias | None, Array]:
    """The numbers of all sentences, by heads, and what is left of scratch."""
    bias, queries, keys = scoring.bias, *map(np.diff, packed[3:])
    if bias is None:
        return None, scratch
    if isinstance(bias.rule, PairStarts):
        return matrices_of(packed, scoring, bias.numbers, bias.rule), scratch
    size = size_of(bias, scoring.ends(queries), keys)
    if isinstance(bias.rule, FeatureRows):
        columns = columns_of(bias.numbers, scratch)
        return tables_of(scoring, columns, bias.rule), scratch[size:]
    distances = distances_of(scoring.ends(queries), keys)
    return vector_of(bias, distances, scoring.shared, scratch), scratch[size:]


def matrices_of(
    packed: PackedAttention, scoring: Scoring, numbers: Array, rule: PairStarts
) -> PairMatrices:
    """Sentences' matrices, or their gradients, from the flat array of them."""
    lengths = np.diff(packed[3:]).T
    return PairMatrices(numbers, rule.starts, lengths, scoring.heads // scoring.shared)


def tables_of(scoring: Scoring, columns: Array, rule: FeatureRows) -> FeatureTables:
    """A table (H, rows) that all sentences look up, or (K, H, rows) with one for each."""
    groups = 1 if columns.shape[-2] == 1 else scoring.heads // scoring.shared
    shape = -1, groups, columns.shape[-2] // groups, columns.shape[-1]
    return FeatureTables(columns.reshape(shape), rule.arrays)


def by_heads(rows: Array, heads: int, shared: int) -> Array:
    """Rows (T, heads · d) as (heads / shared, shared, T, d)."""
    length, width = rows.shape
    return rows.reshape(length, heads // shared, shared, width // heads).transpose(1, 2, 0, 3)


def sums_by_heads(log_sums: Array, scoring: Scoring) -> Array:
    """Numbers of queries and heads (T_q, heads) as (heads / shared, shared, T_q)."""
    shared = scoring.shared
    return log_sums.T.reshape(scoring.heads // shared, shared, log_sums.shape[0])


def attention_sentences(
    packed: PackedAttention, scoring: Scoring, bias: BatchBias | None, span: range
) -> Iterator[AttentionSentence]:
    shared = scoring.shared
    sentences = islice(sentences_of(packed), span.start, span.stop)
    for i, (rows, keys) in zip(span, sentences, strict=True):
        q = by_heads(packed.queries[rows], scoring.heads, shared)
        k, v = [by_heads(x[keys], scoring.heads // shared, 1) for x in (packed.keys, packed.values)]
        stream = None if scoring.streams is None else scoring.streams[i]
        start = 0 if scoring.starts is None else scoring.starts[i]
        numbers = None if bias is None else bias.of(i)
        yield AttentionSentence(
            rows, keys, q, k, v, scoring.scales[i], scoring.mask(i), numbers, scoring.p, stream,
            start, scoring.softcap,
        )  # fmt: skip


def share(
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
    edges = sorted({0, *inner.tolist(), count})  # a shard has at least one sentence
    room = scratch.size // shards
    parallel.run(
        [
            partial(shard, range(start, end), scratch[i * room : (i + 1) * room])
            for i, (start, end) in enumerate(pairwise(edges))
        ]
    )
