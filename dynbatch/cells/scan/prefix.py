"""Prefix layout: the rows of a scan, time step by time step, the longest sentence first.

The sentences still running at step t are then the first n_t of a shard, so that states, gates and
gradients of a step are views: no gather, no scatter, no work for sentences that have ended.

Chunks are ranges of steps that a scan runs one after the other. A chunk is a scan of its own that
begins from the states which the one before left. Backward goes chunk by chunk, so that streams,
gradients of gates and all else that it needs on the way take a chunk's room. Where it makes a
chunk's values again, the states between chunks are all that is kept. The rows of a chunk are one
stretch of every shard's.

Source: Chen et al. 2016, arXiv:1604.06174: with √T chunks of √T steps both what is kept and what
    is made again is O(√T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array

Step = tuple[int, int, int, int]
Block = tuple[int, int, list[tuple[int, Step]]]
# Least rows of a block: fewer make more and shorter kernels, more leave the caches (measured).
BLOCK_ROWS = 256

# Rows of a chunk where nothing is made again. A tagger's and a translator's step take
# as long with 256, 384, 512 or all of them (measured); wider weights, which each chunk's products
# are added to, like more.
LEAST_ROWS = 384


@dataclass
class Shard:
    """Sentences that one thread runs through all their steps.

    Args:
        sentences: (S,) their numbers in the batch, longest first; empty ones last.
        lengths:   (S,) their lengths.
        start:     first packed row of the shard.
        steps:     per step (first row, end row, sentences running, first row of the step before
                   or -1), rows counted from `start`.
        first:     number of the first step.
    """

    sentences: Array
    lengths: Array
    start: int
    steps: list[Step]
    first: int = 0

    @property
    def rows(self) -> int:
        """Tokens of the shard."""
        return self.steps[-1][1] if self.steps else 0

    @property
    def counts(self) -> list[int]:
        """Sentences running in each step."""
        return [count for _, _, count, _ in self.steps]

    @property
    def numbered(self) -> list[tuple[int, Step]]:
        """The steps with their numbers."""
        return list(enumerate(self.steps, self.first))

    @property
    def blocks(self) -> list[Block]:
        """(first row, end row, numbered steps) of blocks with `BLOCK_ROWS` rows or more.

        A remainder below half of that joins the last block.
        """
        blocks: list[Block] = []
        first = 0
        numbered = self.numbered
        for last, (_, end, _, _) in enumerate(self.steps, 1):
            start = self.steps[first][0]
            full = end - start >= BLOCK_ROWS and self.rows - end >= BLOCK_ROWS // 2
            if full or last == len(self.steps):
                blocks.append((start, end, numbered[first:last]))
                first = last
        return blocks

    @property
    def span(self) -> slice:
        """The shard's packed rows."""
        return slice(self.start, self.start + self.rows)


class PrefixLayout:
    """The position of each token of a mini-batch in packed order.

    Args:
        lengths: (B,) tokens of each sentence.
        offsets: (B + 1,) first row of each sentence in sentence order.
        reverse: whether the scan runs from the last token to the first.
        shards:  threads to share the sentences between.

    Attributes:
        order:    (N,) row in sentence order of each packed row.
        inverse:  (N,) packed row of each row in sentence order.
        previous: (N,) packed row of the same sentence one step earlier; -1 at its first step.
        last:     (B,) packed row of each sentence's last step; -1 for an empty sentence.
    """

    def __init__(self, lengths: Array, offsets: Array, reverse: bool, shards: int) -> None:
        by_length = np.argsort(-lengths, kind="stable")
        total = int(offsets[-1])
        self.order = np.empty(total, np.int64)
        self.previous = np.empty(total, np.int64)
        self.last = np.full(lengths.size, -1, np.int64)
        self.shards: list[Shard] = []
        start = 0
        for number in range(shards):
            sentences = by_length[number::shards]
            shard = self._add(sentences, lengths[sentences], offsets, reverse, start)
            self.shards.append(shard)
            start += shard.rows
        self.inverse = np.empty(total, np.int64)
        self.inverse[self.order] = np.arange(total)

    def _add(
        self, sentences: Array, lengths: Array, offsets: Array, reverse: bool, start: int
    ) -> Shard:
        longest = int(lengths[0]) if lengths.size else 0
        times = np.arange(longest)
        running = np.searchsorted(-lengths, -times, side="left")  # sentences longer than t
        starts = np.concatenate(([0], np.cumsum(running)))
        time_of = np.repeat(times, running)
        within = np.arange(int(starts[-1])) - np.repeat(starts[:-1], running)
        token = lengths[within] - 1 - time_of if reverse else time_of
        span = slice(start, start + int(starts[-1]))
        self.order[span] = offsets[sentences[within]] + token
        before = np.concatenate(([0], starts[:-2])) if longest else starts[:0]
        earlier = start + np.repeat(before, running) + within
        self.previous[span] = np.where(time_of == 0, -1, earlier)
        occupied = lengths > 0
        self.last[sentences[occupied]] = (
            start + starts[lengths[occupied] - 1] + np.flatnonzero(occupied)
        )
        firsts = [-1, *starts.tolist()]
        steps = [
            (firsts[t + 1], firsts[t + 2], n, firsts[t]) for t, n in enumerate(running.tolist())
        ]
        return Shard(sentences, lengths, start, steps)


class Extent(NamedTuple):
    """Steps first … end - 1, their rows, and the sentences running at the first of them."""

    first: int
    end: int
    rows: int
    running: int


@dataclass
class Chunk:
    """Some steps of all shards, as a scan of their own.

    Attributes:
        shards:   steps of each shard; rows are counted from the chunk's first.
        order:    (R,) row in sentence order of each packed row.
        previous: (R,) packed row of the same sentence one step earlier; -1 at the first step.
        ended:    sentences whose last step it holds, and `last`, the packed rows of these steps.
        starts:   of each shard, rows of the states before the chunk.
        spans:    of each shard, its rows in the layout; and `before`, the first row of the step
            before these.
        kept:     rows of states that are kept for earlier chunks.
    """

    shards: list[Shard]
    order: Array
    previous: Array
    ended: Array
    last: Array
    starts: list[slice]
    spans: list[slice]
    before: list[int]
    kept: int


def extents(lengths: Array, steps: int) -> list[Extent]:
    """The chunks of sentences of these lengths: one, or more of `steps` steps.

    Where sentences have ended a chunk takes more steps, as long as it has no more rows than
    `steps` steps of all sentences: what it needs does not grow, and products of few rows are slow.
    """
    longest = int(lengths.max(initial=0))
    running = lengths.size - np.cumsum(np.bincount(lengths, minlength=longest + 1))[:longest]
    counts: list[int] = running.tolist()
    if not steps or not counts:
        return [Extent(0, longest, sum(counts), max(counts, default=0))]
    chunks = _filled(counts, steps * counts[0])
    even = -(-sum(counts) // len(chunks)) + counts[0]
    return _filled(counts, min(even, steps * counts[0]))


def _filled(counts: list[int], most: int) -> list[Extent]:
    """Chunks of as many steps as have at most `most` rows, and of one step at least."""
    chunks: list[Extent] = []
    first = rows = 0
    for t, count in enumerate(counts):
        if t > first and rows + count > most:
            chunks.append(Extent(first, t, rows, counts[first]))
            first, rows = t, 0
        rows += count
    return [*chunks, Extent(first, len(counts), rows, counts[first])]


def of_pass(lengths: Array, steps: int, leaves_all: bool) -> list[Extent]:
    """The chunks of a pass.

    Args:
        steps:      of a chunk that is made again; 0 where none is.
        leaves_all: whether it is the forward that leaves all values: in one chunk. Other passes
            need the room of a chunk, which then has `LEAST_ROWS` rows or more.
    """
    sentences = max(1, int(np.count_nonzero(lengths)))
    return extents(lengths, steps or (0 if leaves_all else -(-LEAST_ROWS // sentences)))


def sqrt_steps(lengths: Array) -> int:
    """√T, rounded up, of T tokens a sentence in the mean, empty sentences left out."""
    sentences = max(1, int(np.count_nonzero(lengths)))
    return max(1, math.ceil(math.sqrt(int(lengths.sum()) / sentences)))


def choices(lengths: Array) -> list[int]:
    """Numbers of steps worth a try, the longest and so the fastest first: down by halves to 1."""
    by_number: dict[int, int] = {}
    longest = int(lengths.max(initial=0))
    steps = {max(1, longest), sqrt_steps(lengths)}
    while longest > 1:
        longest = -(-longest // 2)
        steps.add(longest)
    for number in sorted(steps, reverse=True):
        by_number.setdefault(len(extents(lengths, number)), number)
    return list(by_number.values())


def cut(layout: PrefixLayout, extents: list[Extent]) -> list[Chunk]:
    """The chunks of a layout."""
    chunks: list[Chunk] = []
    kept = 0
    for extent in extents:
        chunks.append(_chunk(layout, extent, kept))
        kept += extent.running if extent.first else 0
    return chunks


def _chunk(layout: PrefixLayout, extent: Extent, kept: int) -> Chunk:
    shards: list[Shard] = []
    starts: list[slice] = []
    spans: list[slice] = []
    before: list[int] = []
    order, previous, ended, last = [], [], [], []
    row = start = 0
    for shard in layout.shards:
        steps = shard.steps[extent.first : extent.end]
        low, high, running = (steps[0][0], steps[-1][1], steps[0][2]) if steps else (0, 0, 0)
        local = [
            (s - low, e - low, n, p - low if k else -1) for k, (s, e, n, p) in enumerate(steps)
        ]
        shards.append(Shard(shard.sentences, shard.lengths, row, local, extent.first))
        starts.append(slice(start, start + running))
        before.append(shard.start + (steps[0][3] if steps else 0))
        span, shift = slice(shard.start + low, shard.start + high), row - shard.start - low
        spans.append(span)
        order.append(layout.order[span])
        earlier = layout.previous[span]
        previous.append(np.where(earlier < span.start, -1, earlier + shift))
        inside = (shard.lengths > extent.first) & (shard.lengths <= extent.end)
        ended.append(shard.sentences[inside])
        last.append(layout.last[ended[-1]] + shift)
        row += high - low
        start += running
    parts = (order, previous, ended, last)
    rows, earlier, sentences, ends = [np.concatenate(part) for part in parts]
    return Chunk(shards, rows, earlier, sentences, ends, starts, spans, before, kept)
