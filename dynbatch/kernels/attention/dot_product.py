"""Dot-product attention of every sentence's queries over its own keys, without padding.

Scores exist for one block of one sentence's queries at a time. Forward leaves log Σ exp(score) for
each query and head; backward recomputes the probabilities with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array, ArraySpec, spec_of
from dynbatch.kernels import blas
from dynbatch.kernels.attention import single_query
from dynbatch.kernels.attention.addresses import PagedRows
from dynbatch.kernels.attention.bias import (
    BatchBias,
    DistanceVector,
    FeatureRows,
    FeatureTables,
    PairStarts,
    SentenceBias,
    add_up,
    gradient_size,
    table_gradient,
)
from dynbatch.kernels.attention.blocks import (
    AttentionSentence,
    Scoring,
    Tile,
    attention_sentences,
    bias_of,
    by_heads,
    matrices_of,
    room_of,
    share,
    sums_by_heads,
    tables_of,
)
from dynbatch.kernels.attention.packed import (
    AttentionGradients,
    PackedAttention,
    exp_rows,
    softmax_backward,
)
from dynbatch.kernels.runtime.dispatch import HOST, kernel, no_scratch_on_gpu
from dynbatch.kernels.runtime.precision import FULL, multiplying
from dynbatch.ragged import offsets_of


@no_scratch_on_gpu
@kernel(c=HOST)
def workspace(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring
) -> int:
    """Elements of scratch for `dot_attention`.

    The largest block of scores, once for each thread, and a bias.
    """
    threads, block, bias = room_of(query_lengths, key_lengths, scoring)
    return bias + threads * block


@kernel(c=HOST, cuda=HOST)
def workspace_backward(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring
) -> int:
    """Elements of scratch for `dot_attention_backward`.

    Blocks of scores and derivatives, and of a bias also its gradient, once for each thread; with
    dropout a block of its factors too, and one of the slopes of a softcap. Where sentences look up
    a table, its gradient for each.
    """
    threads, block, bias = room_of(query_lengths, key_lengths, scoring)
    tables = gradient_size(scoring.bias, len(scoring.masks))
    blocks = 2 + (scoring.streams is not None) + (scoring.softcap > 0)
    return bias + tables + threads * (blocks * block + (0 if tables else bias))


@kernel("queries", c=HOST, cuda=HOST)
def dot_attention(
    packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array | None, scratch: Array
) -> None:
    """out_i = Σ_j p_ij v_j,  p_ij = softmax_j(scale · q_i · k_j + bias_j-i), of each sentence.

    Heads attend each for itself, and p_ij may be dropped; a softcap bounds scaled products. A query
    that sees no key gives zeros.

    Args:
        out:      (N_q, E), overwritten.
        log_sums: (N_q, heads), overwritten: log Σ_j exp(score), +inf where no key is seen.
        scratch:  `workspace` elements.

    Cost: two products a sentence, each of all its heads. A loop over sentences: NumPy has no
        product of matrices of different shapes.
    Source: scores by blocks, and their sums kept for backward, as in Dao et al. 2022
        (FlashAttention), arXiv:2205.14135; a block here has all keys that its queries see.
    """
    if scoring.is_plain and single_query.applies(packed, scoring.masks):
        single_query.dot_attention(packed, scoring.scales, out, log_sums)
        return
    bias, scratch = bias_of(packed, scoring, scratch)

    def shard(span: range, room: Array) -> None:
        for sentence in attention_sentences(packed, scoring, bias, span):
            y = by_heads(out[sentence.rows], scoring.heads, scoring.shared)
            sums = None if log_sums is None else sums_by_heads(log_sums[sentence.rows], scoring)
            for block in sentence.blocks():
                _block_forward(sentence, block, y, sums, room)

    share(packed, scoring, scratch, shard)


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
    sentence.drop(scores, block)
    np.matmul(scores, sentence.v[:, :, block.low : block.high], out=part)
    hidden = total == 0
    np.copyto(total, 1, where=hidden)
    np.divide(part, total, out=part)
    if sums is not None:
        np.log(total, out=total)
        np.add(total, peak, out=total)
        np.copyto(total, np.inf, where=hidden)
        sums[:, :, block.first : block.last] = total[..., 0]


@kernel(c=HOST, cuda=HOST)
def dot_attention_of_pages(
    queries: Array, query_offsets: Array, paged: PagedRows, scoring: Scoring, out: Array
) -> None:
    """`dot_attention` of queries over keys and values that lie in pages.

    In C nothing is copied where all pages are alike, and a query's result has the bits that it has
    over the same keys in one run of rows. Otherwise keys and values are copied.

    Args:
        paged: keys and values, with the step's new rows.
        out:   (N_q, E), overwritten.
    """
    keys, values = paged.joined(out)
    lengths = paged.table.after
    packed = PackedAttention(queries, keys, values, query_offsets, offsets_of(lengths))
    size = workspace(spec_of(out), np.diff(query_offsets).tolist(), lengths.tolist(), scoring)
    dot_attention(packed, scoring, out, None, np.empty(size, out.dtype))


@kernel("queries", c=HOST, cuda=HOST)
def dot_attention_backward(
    packed: PackedAttention, scoring: Scoring, log_sums: Array, out: Array | None, dout: Array,
    wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `dot_attention`. With p = exp(score - log_sum) and dp_ij = dout_i · v_j:

        ds_ij = p_ij (dp_ij - Σ_j p_ij dp_ij);  dbias_n = Σ ds_ij of the pairs that find number n
        dq = scale · ds k;  dk = scale · dsᵀ q;  dv = pᵀ dout

    A softcap's slope 1 - tanh² is a factor of ds in dq and dk.
    With dropout the factors of p, 0 or 1/(1 - p), are factors of dp and of the p in dv.

    Args:
        log_sums: (N_q, heads), as forward left them.
        out:      (N_q, E), as forward left it, or None. Σ_j p_ij dp_ij = dout_i · out_i, which on a
            GPU saves a pass over the keys; elsewhere no node keeps it for this.
        dout:     (N_q, E).
        scratch:  `workspace_backward` elements.
    """
    if scoring.is_plain and single_query.applies(packed, scoring.masks):
        single_query.dot_attention_backward(packed, scoring.scales, log_sums, dout, wanted)
        return
    heads, shared = scoring.heads, scoring.shared
    bias, scratch = bias_of(packed, scoring, scratch)
    of_sentences, scratch = _gradients_of_sentences(packed, scoring, wanted, scratch)
    of_shards: dict[tuple[int, int], DistanceVector] = {}

    def shard(span: range, room: Array) -> None:
        dbias: BatchBias | None = of_sentences
        if wanted.bias is not None and isinstance(bias, DistanceVector):
            numbers, room = room[: bias.numbers.size], room[bias.numbers.size :]
            numbers[...] = 0
            dbias = bias._replace(numbers=numbers.reshape(bias.numbers.shape))
            of_shards[span.start, span.stop] = dbias  # an empty one may start there too
        sentences = attention_sentences(packed, scoring, bias, span)
        for number, sentence in zip(span, sentences, strict=True):
            slopes = None if dbias is None else dbias.of(number)
            dq, dk, dv = [
                None if array is None else by_heads(array[rows], count, shares)
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
            dy = by_heads(dout[sentence.rows], heads, shared)
            means = None
            if out is not None:
                means = np.vecdot(dy, by_heads(out[sentence.rows], heads, shared))
            sums = sums_by_heads(log_sums[sentence.rows], scoring)
            for block in blocks:
                _block_backward(sentence, block, sums, means, dy, dq, dk, dv, slopes, adds, room)

    share(packed, scoring, scratch, shard)
    rule = None if scoring.bias is None else scoring.bias.rule
    if wanted.bias is None or rule is None or isinstance(rule, PairStarts):
        return
    if isinstance(of_sentences, FeatureTables):
        add_up(of_sentences.numbers, wanted.bias)
    elif not isinstance(rule, FeatureRows):
        total, *others = [of_shards[edges] for edges in sorted(of_shards)]
        for other in others:
            np.add(total.numbers, other.numbers, out=total.numbers)
        table_gradient(rule, total, wanted.bias)


def _gradients_of_sentences(
    packed: PackedAttention, scoring: Scoring, wanted: AttentionGradients, scratch: Array
) -> tuple[BatchBias | None, Array]:
    """The place of a bias's gradients that sentences have for themselves, and what is left."""
    bias = scoring.bias
    if bias is not None and isinstance(bias.rule, PairStarts) and wanted.pairs is not None:
        wanted.pairs[...] = 0
        return matrices_of(packed, scoring, wanted.pairs, bias.rule), scratch
    if bias is not None and isinstance(bias.rule, FeatureRows) and wanted.bias is not None:
        size = gradient_size(bias, len(scoring.masks))
        tables = scratch[:size].reshape(-1, *bias.numbers.shape[::-1])
        tables[...] = 0
        return tables_of(scoring, tables, bias.rule), scratch[size:]
    return None, scratch


def _block_backward(
    sentence: AttentionSentence, block: Tile, sums: Array, means: Array | None, dy: Array,
    dq: Array | None, dk: Array | None, dv: Array | None, dbias: SentenceBias | None,
    adds: bool, scratch: Array,
) -> None:  # fmt: skip
    rows, seen = slice(block.first, block.last), slice(block.low, block.high)
    if block.low == block.high:
        if dq is not None:
            dq[:, :, rows] = 0
        return
    slopes = None
    if sentence.softcap:
        size = math.prod(sentence.shape(block))
        slopes = scratch[(2 + (sentence.stream is not None)) * size :][:size]
    p = sentence.scores(block, scratch, slopes)
    np.subtract(p, sums[:, :, rows, None], out=p)
    np.exp(p, out=p)
    dropped, factors = p, None
    if sentence.stream is not None:
        factors = scratch[2 * p.size : 3 * p.size].reshape(p.shape)
        factors[...] = 1
        sentence.drop(factors, block)
    ds = scratch[p.size : 2 * p.size].reshape(p.shape)
    if dv is not None:
        if factors is not None:
            dropped = np.multiply(p, factors, out=ds)
        _outer(dropped, dy[:, :, rows], dv[:, 0, seen], adds)
    if dq is None and dk is None and dbias is None:
        return
    np.matmul(dy[:, :, rows], sentence.v[:, :, seen].swapaxes(2, 3), out=ds)
    if factors is not None:
        np.multiply(ds, factors, out=ds)
    softmax_backward(p, ds, None if means is None else means[:, :, rows])
    if dbias is not None:
        dbias.add(ds, block.first, block.low)
    if slopes is not None:
        np.multiply(ds, slopes.reshape(ds.shape), out=ds)
    if sentence.scale != 1:
        np.multiply(ds, sentence.scale, out=ds)
    if dq is not None:
        np.matmul(ds, sentence.k[:, :, seen], out=dq[:, :, rows])
    if dk is not None:
        _outer(ds, sentence.q[:, :, rows], dk[:, 0, seen], adds)


def _outer(weights: Array, rows: Array, out: Array, adds: bool) -> None:
    """out (+)= Σ weightsᵀ rows over the heads that share one of `out`.

    weights (H, S, queries, keys), rows (H, S, queries, d), out (H, keys, d).
    """
    shared = weights.shape[1]
    if not adds:
        np.matmul(weights[:, 0].swapaxes(1, 2), rows[:, 0], out=out)
    for part in range(0 if adds else 1, shared):
        for head in zip(rows[:, part], weights[:, part], out, strict=True):
            with multiplying(FULL):
                blas.matmul_outer(*head, add=True)
