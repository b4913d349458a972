"""`kernels.attention.dot_product` in C: threads share the heads of the sentences.

A query's numbers depend on the keys that it sees alone: other queries, other sentences and the
number of threads change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels.attention.addresses import PagedRows
from dynbatch.kernels.attention.bias import (
    DistanceVector,
    FeatureRows,
    PairStarts,
    ScoreBias,
    add_up,
    columns_of,
    distances_of,
    gradient_size,
    size_of,
    table_gradient,
    vector_of,
)
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.attention import single_query
from dynbatch.kernels.c.attention.mask import FAR, mask_table
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import is_writing, share
from dynbatch.ragged import offsets_of

SIDE = 32  # queries that are worked on at a time, as in tiles.h
# Scores that take a thread about 100 µs.
WORTH_A_THREAD = 1 << 16
# Scores of many queries that take as long as one of a query alone, whose keys serve no other.
OF_A_LONE_QUERY = 16

_library = Library("attention/dot_product.c")


def workspace(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring
) -> Any:
    if _library.functions(spec.dtype) is None:
        return NotImplemented
    bias = _bias_size(query_lengths, key_lengths, scoring)
    return max(bias, _room_of_lone(query_lengths, key_lengths, scoring))


def workspace_backward(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring
) -> Any:
    if _library.functions(spec.dtype) is None:
        return NotImplemented
    bias = _bias_size(query_lengths, key_lengths, scoring)
    bias += gradient_size(scoring.bias, len(scoring.masks)) or bias
    pairs = np.multiply(query_lengths, key_lengths)
    room = bias + _num_shards(pairs, scoring) * _room(key_lengths, scoring)
    return max(room, 2 * _room_of_lone(query_lengths, key_lengths, scoring))


def dot_attention(
    packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array | None, scratch: Array
) -> Any:
    functions = _library.functions(out.dtype)
    if functions is None or not _comes_again(packed, scoring):
        return NotImplemented
    lone = single_query.lone_sentences(packed, scoring, out, log_sums)
    if lone.size < len(scoring.masks):
        call = AttentionCall(packed, scoring, out, log_sums, scratch)
        call.leave_out(lone)
        call.run(functions.dot_attention, call.shares)
    if lone.size:
        single_query.attend(packed, scoring, lone, out, log_sums, scratch)
    return None


def dot_attention_backward(
    packed: PackedAttention, scoring: Scoring, log_sums: Array, out: Array | None, dout: Array,
    wanted: AttentionGradients, scratch: Array,
) -> Any:  # fmt: skip
    functions = _library.functions(dout.dtype)
    if functions is None or not _comes_again(packed, scoring):
        return NotImplemented
    gradients = wanted.keys, wanted.values
    lone = single_query.lone_sentences(
        packed, scoring, dout, log_sums, *gradients, dq=wanted.queries
    )
    if lone.size < len(scoring.masks):
        call = AttentionCall(packed, scoring, dout, log_sums, scratch)
        call.leave_out(lone)
        _run_backward(functions.dot_attention_backward, call, wanted)
    if lone.size:
        single_query.attend_backward(packed, scoring, lone, log_sums, dout, wanted, scratch)
    return None


def _run_backward(
    function: Callable[..., None], call: AttentionCall, wanted: AttentionGradients
) -> None:
    scoring, dbias = call.scoring, call.want(wanted)
    rule = None if scoring.bias is None else scoring.bias.rule
    # The gradient of a bias by distance sums over all sentences: one thread does so for a head.
    sums_all = dbias is not None and not isinstance(rule, FeatureRows)
    shares = call.shares_of_heads() if sums_all else call.shares
    size = _room(call.sentences[:, 3], scoring)
    rooms = [address(call.scratch[size * i :]) or 0 for i in range(len(shares))]
    call.run(function, shares, rooms)
    if dbias is None or wanted.bias is None or rule is None:
        return
    if isinstance(rule, FeatureRows):
        add_up(dbias, wanted.bias)
    elif not isinstance(rule, PairStarts):
        slopes = DistanceVector(dbias[:, None, ::-1], call.distances[::-1].index(0))
        table_gradient(rule, slopes, wanted.bias)


def _comes_again(packed: PackedAttention, scoring: Scoring) -> bool:
    """Whether a call may be written down, if it is to be: nothing is copied or computed for it."""
    if not is_writing():
        return True
    has_lone = bool((np.diff(packed.query_offsets) == 1).any())
    return scoring.bias is None and not has_lone and all(map(has_rows, packed[:3]))


def dot_attention_of_pages(
    queries: Array, query_offsets: Array, paged: PagedRows, scoring: Scoring, out: Array
) -> Any:
    functions = _library.functions(out.dtype)
    if functions is None:
        return NotImplemented
    call = _call_of_pages(queries, query_offsets, paged, scoring, out)
    call.run(functions.dot_attention, call.shares)
    return None


def _call_of_pages(
    queries: Array, query_offsets: Array, paged: PagedRows, scoring: Scoring, out: Array
) -> AttentionCall:
    """The call; the layers of a model that score alike share what it knows of the sentences."""
    table, of_scoring = paged.table, scoring.key
    key = of_scoring, paged.widths
    known = table.calls.get(key)
    if known is not None:
        known.place(queries, out)
        known.arrays[6] = paged.addresses
        return cast(AttentionCall, known)
    # C reads of these how far apart rows are.
    keys, values = [np.empty((1, width), out.dtype) for width in paged.widths]
    packed = PackedAttention(queries, keys, values, query_offsets, offsets_of(table.after))
    size = 0
    if scoring.bias is not None:
        size = _bias_size(np.diff(query_offsets).tolist(), table.after.tolist(), scoring)
    call = AttentionCall(packed, scoring, out, None, np.empty(size, out.dtype))
    call.use_pages(paged)
    if of_scoring is not None:
        table.calls[key] = call
    return call


def _bias_size(query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring) -> int:
    return size_of(scoring.bias, scoring.ends(query_lengths), key_lengths)


def _room_of_lone(
    query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring
) -> int:
    """Elements of p of all keys, which lone queries leave there."""
    return sum(key_lengths) if scoring.is_plain and 1 in query_lengths else 0


def _room(key_lengths: Sequence[int] | Array, scoring: Scoring) -> int:
    """Elements of p and ds of SIDE queries and all keys that they see, for one thread.

    With a softcap those of its slopes too; and the sums of the rows of a table that pairs look up,
    in float64.
    """
    lengths = key_lengths if isinstance(key_lengths, Sequence) else key_lengths.tolist()
    spans = [
        min(count, mask.left + mask.right + SIDE)
        for count, mask in zip(lengths, scoring.masks, strict=True)
    ]
    bias = scoring.bias
    by_features = bias is not None and isinstance(bias.rule, FeatureRows)
    rows = bias.numbers.shape[0] + 1 if bias is not None and by_features else 0
    return 2 * rows + (2 + (scoring.softcap > 0)) * SIDE * max(spans, default=0)


def _num_shards(pairs: Array, scoring: Scoring) -> int:
    return max(1, min(parallel.num_threads(), scoring.heads * int(pairs.sum()) // WORTH_A_THREAD))


Share = tuple[int, int, int, int]
"""What a thread computes: the first and last number, the first head of keys, and how many heads."""


class AttentionCall:
    """The arguments of one call of the C functions, and its shares for threads.

    A thread has a range of heads of keys, and of the sentences' numbers of those.

    Attributes:
        distances: from query to key, in the order of the bias's numbers.
        scratch:   what is left of it.
    """

    def __init__(
        self, packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array | None,
        scratch: Array,
    ) -> None:  # fmt: skip
        self.sentences, self.masks = _sentences(packed, scoring)
        queries, keys = self.sentences[:, 1], self.sentences[:, 3]
        self.pairs = queries * keys
        self.scoring = scoring
        self.scratch = scratch
        self.bias, self.distances = None, range(1)
        self.splits_heads, self.feature_bytes, self.held = True, 0, self.masks
        if scoring.bias is not None and scoring.bias.by_distance:
            # Downwards, so that the numbers of a key go up with the queries.
            self.distances = distances_of(scoring.ends(queries), keys)[::-1]
            vector = vector_of(scoring.bias, self.distances, scoring.shared, scratch)
            self.bias = vector.numbers.reshape(scoring.heads, -1)
            self.scratch = scratch[self.bias.size :]
        elif scoring.bias is not None:
            self._find_pairs(scoring.bias)
        q, k, v = [x if has_rows(x) else np.ascontiguousarray(x) for x in packed[:3]]
        scales = np.ascontiguousarray(scoring.scales, out.dtype)
        self.arrays = [q, k, v, out, log_sums, self.bias, None, self.sentences, scales]
        groups = scoring.heads // scoring.shared
        self.sizes = [
            *[row_stride(x) for x in (q, k, v, out)], scoring.heads, scoring.shared,
            k.shape[1] // groups, v.shape[1] // groups, len(self.distances),
            self.distances.index(0), self.feature_bytes, scoring.streams is not None, 0, 0, 0,
        ]  # fmt: skip
        self.gradients: list[Array | None] = [None] * 4

    def _find_pairs(self, bias: ScoreBias) -> None:
        """Find the numbers of each sentence's pairs, or the rows of the table that they look up."""
        sentences = self.sentences
        if isinstance(bias.rule, PairStarts):
            starts, size = bias.rule.starts, bias.numbers.itemsize
            sentences[:, 13] = (address(bias.numbers) or 0) + size * starts[:-1]
            sentences[:, 14] = np.where(np.diff(starts) > self.pairs, self.pairs, 0)
        elif isinstance(bias.rule, FeatureRows):
            self.bias = columns_of(bias.numbers, self.scratch)
            self.scratch = self.scratch[self.bias.size :]
            self.distances = range(len(bias.numbers))
            arrays = [np.ascontiguousarray(array) for array in bias.rule.arrays]
            sentences[:, 13] = [address(array) or 0 for array in arrays]
            sentences[:, 14] = len(bias.numbers) if len(self.bias) > 1 else 0
            self.feature_bytes = arrays[0].itemsize
            self.held = [*self.held, *arrays]

    def leave_out(self, sentences: Array) -> None:
        """Compute nothing for these sentences."""
        self.sentences[sentences, 1] = self.pairs[sentences] = 0

    def place(self, queries: Array, out: Array) -> None:
        """Attend with other queries of these sentences, as wide, and to another place."""
        q = queries if has_rows(queries) else np.ascontiguousarray(queries)
        self.arrays[0], self.arrays[3] = q, out
        self.sizes[0], self.sizes[3] = row_stride(q), row_stride(out)

    def use_pages(self, paged: PagedRows) -> None:
        """Find keys and values in pages."""
        table = paged.table
        self.arrays[6] = paged.addresses
        self.sentences[:, 9] = table.firsts
        if table.gaps is not None:
            self.sentences[:, 11:13] = table.gaps
        self.sizes[-3:-1] = [table.rows, paged.is_short]
        self.pairs[self.sentences[:, 1] == 1] *= OF_A_LONE_QUERY

    def want(self, wanted: AttentionGradients) -> Array | None:
        """Compute these gradients; return room for a table's.

        It is (heads, distances), or (K, H, rows) where pairs look up rows of the table.
        """
        dbias: Array | None = None
        rule = None if self.scoring.bias is None else self.scoring.bias.rule
        if isinstance(rule, PairStarts) and wanted.pairs is not None:
            wanted.pairs[...] = 0
            first, size = address(wanted.pairs) or 0, wanted.pairs.itemsize
            self.sentences[:, 15] = first + size * rule.starts[:-1]
        elif isinstance(rule, FeatureRows) and wanted.bias is not None and self.bias is not None:
            count = len(self.sentences)
            dbias = self.scratch[: count * self.bias.size].reshape(count, *self.bias.shape)
            dbias[...] = 0
            self.scratch = self.scratch[dbias.size :]
            self.sentences[:, 15] = [address(table) or 0 for table in dbias]
        elif wanted.bias is not None and self.bias is not None:
            dbias = self.scratch[: self.bias.size].reshape(self.bias.shape)
            dbias[...] = 0
            self.scratch = self.scratch[self.bias.size :]
        if self.sentences[:, 15].any():
            # Heads that have the same numbers add to one gradient, in their order.
            self.splits_heads = self.scoring.heads == 1 or bool(self.sentences[:, 14].all())
        self.gradients = [wanted.queries, wanted.keys, wanted.values]
        self.gradients.append(None if self.feature_bytes else dbias)
        self.sizes[-1] = wanted.accumulate
        return dbias

    @cached_property
    def shares(self) -> list[Share]:
        """The share of each thread: about as many scores as any other."""
        groups = self.scoring.heads // self.scoring.shared
        edges = [0, self.pairs.size * groups]
        shards = _num_shards(self.pairs, self.scoring)
        if shards > 1:
            parts = groups if self.splits_heads else 1
            done = np.cumsum(np.repeat(self.pairs, parts))
            inner = np.searchsorted(done, done[-1] * np.arange(1, shards) / shards)
            edges[1:1] = (inner * (groups // parts)).tolist()
        return [(*span, 0, groups) for span in pairwise(edges)]

    def shares_of_heads(self) -> list[Share]:
        """`shares` of whole heads, each with all sentences."""
        groups, count = self.scoring.heads // self.scoring.shared, self.pairs.size
        shards = min(groups, _num_shards(self.pairs, self.scoring))
        edges = [groups * part // shards for part in range(shards + 1)]
        return [(0, count * (end - start), start, end - start) for start, end in pairwise(edges)]

    def run(
        self, function: Callable[..., None], shares: list[Share],
        rooms: list[int] | None = None,
    ) -> None:  # fmt: skip
        places = [address(x) or 0 for x in (*self.arrays, *self.gradients)]
        strides = [0 if x is None else row_stride(x) for x in self.gradients[:3]]
        table = np.array([*places, *self.sizes, *strides, 0, 0], np.int64)
        table[-2:].view(np.float64)[:] = self.scoring.p, self.scoring.softcap
        room_of = [()] * len(shares) if rooms is None else [(room,) for room in rooms]
        parts = zip(shares, room_of, strict=True)
        rows = [(*span, address(table), *room) for span, room in parts]
        share(function, rows, [table, *self.held, *[x for x in self.arrays if x is not None]])


def _sentences(packed: PackedAttention, scoring: Scoring) -> tuple[Array, list[Array]]:
    """The table of sentences that C reads, and the flags that it names."""
    table = np.zeros((len(scoring.masks), 16), np.int64)
    for column, offsets in ((0, packed.query_offsets), (2, packed.key_offsets)):
        table[:, column] = offsets[:-1]
        np.subtract(offsets[1:], offsets[:-1], out=table[:, column + 1])
    table[:, 4:6] = FAR
    held: list[Array] = []
    first = scoring.masks[0] if scoring.masks else NO_MASK
    if first.visible is None and all([mask is first for mask in scoring.masks]):
        if first is not NO_MASK:
            starts = 0 if scoring.starts is None else scoring.starts
            table[:, 4] = np.minimum(first.left - starts, FAR)
            table[:, 5] = np.minimum(first.right + starts, FAR)
    else:
        masks, held = mask_table([scoring.mask(k) for k in range(len(scoring.masks))])
        if masks is not None:
            table[:, 4:8] = masks
    if scoring.streams is not None:
        table[:, 8] = scoring.streams
    if scoring.starts is not None:
        table[:, 10] = scoring.starts
    return table, held
