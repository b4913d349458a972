"""Chunks: ranges of steps that a scan runs one after the other.

A chunk is a scan of its own that begins from the states which the one before left. Backward goes
chunk by chunk, so that streams, gradients of gates and all else that it needs on the way take a
chunk's room. Where it makes a chunk's values again, the states between chunks are all that is
kept. Rows are in prefix layout, so that each chunk's are one stretch of every shard's.

Source: Chen et al. 2016, arXiv:1604.06174: with √T chunks of √T steps both what is kept and what
    is made again is O(√T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.scan.prefix import PrefixLayout, Shard

# Rows of a chunk where nothing is made again. A tagger's and a translator's step take
# as long with 256, 384, 512 or all of them (measured); wider weights, which each chunk's products
# are added to, like more.
LEAST_ROWS = 384


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
