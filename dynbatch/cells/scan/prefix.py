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
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.compiler.arrays import Step
from dynbatch.indexing import bincount, repeat

NO_ROWS = slice(0, 0)

# Rows of a chunk where nothing is made again. A tagger's and a translator's step take
# as long with 256, 384, 512 or all of them (measured); wider weights, which each chunk's products
# are added to, like more.
LEAST_ROWS = 384


class Shard(NamedTuple):
    """Sentences that one thread runs through all their steps, or through those of a chunk.

    sentences: (S,) their numbers in the batch, longest first; empty ones last.
    lengths:   (S,) their lengths.
    order:     (R,) row in sentence order of each of its packed rows.
    start:     first packed row of the shard, among those of all shards.
    steps:     of the rows of running sentences, counted from `start`.
    first:     number of the first step.
    place:     its rows in the layout; `before`, those of the step before the first, of the
               sentences that run on.
    found:     its rows among the states that all chunks but the first begin from.
    states:    its rows where sentences have one each, shard after shard: parts of the state.
    """

    sentences: Array
    lengths: Array
    order: Array
    start: int
    steps: list[Step]
    first: int
    place: slice
    states: slice
    before: slice = NO_ROWS
    found: slice = NO_ROWS

    @property
    def rows(self) -> int:
        return self.order.size

    @property
    def counts(self) -> list[int]:
        return [count for _, _, count, _ in self.steps]

    @property
    def running(self) -> int:
        return self.steps[0][2] if self.steps else 0

    @property
    def numbered(self) -> list[tuple[int, Step]]:
        return list(enumerate(self.steps, self.first))

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.rows)

    def last(self) -> Array:
        """(running,) row of each sentence's last step, counted from `start`."""
        steps = np.minimum(self.lengths[: self.running] - self.first, len(self.steps)) - 1
        starts = np.array([start for start, _, _, _ in self.steps], np.int64)
        last: Array = starts[steps] + np.arange(self.running)
        return last

    def earlier(self) -> Array:
        """(R,) row of the same sentence one step earlier, or -1 - its place among the sentences."""
        rows = [np.arange(n) + p if p >= 0 else -1 - np.arange(n) for _, _, n, p in self.steps]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)


def prefix_layout(lengths: Array, offsets: Array, reverse: bool, count: int) -> list[Shard]:
    """The shards of a mini-batch, which take long and short sentences in turn.

    Args:
        lengths: (B,) tokens of each sentence.
        offsets: (B + 1,) first row of each sentence in sentence order.
        reverse: whether the scan runs from the last token to the first.
        count:   threads to share the sentences between.
    """
    by_length = np.argsort(-lengths, kind="stable")
    shards: list[Shard] = []
    for number in range(count):
        sentences = by_length[number::count]
        start, first = (shards[-1].span.stop, shards[-1].states.stop) if shards else (0, 0)
        states = slice(first, first + sentences.size)
        shards.append(_shard(sentences, lengths[sentences], offsets, reverse, start, states))
    return shards


def _shard(
    sentences: Array, lengths: Array, offsets: Array, reverse: bool, start: int, states: slice
) -> Shard:
    times = np.arange(int(lengths[0]) if lengths.size else 0)
    running = np.searchsorted(-lengths, -times, side="left")  # sentences longer than t
    starts = np.concatenate(([0], np.cumsum(running)))
    time_of = repeat(times, running)
    within = np.arange(int(starts[-1])) - repeat(starts[:-1], running)
    token = lengths[within] - 1 - time_of if reverse else time_of
    order = offsets[sentences[within]] + token
    firsts = [-1, *starts.tolist()]
    steps = [(firsts[t + 1], firsts[t + 2], n, firsts[t]) for t, n in enumerate(running.tolist())]
    span = slice(start, start + order.size)
    return Shard(sentences, lengths, order, start, steps, 0, span, states)


class Extent(NamedTuple):
    """Steps first … end - 1, their rows, and the sentences running at the first of them."""

    first: int
    end: int
    rows: int
    running: int


def extents(lengths: Array, steps: int) -> tuple[Extent, ...]:
    """The chunks of sentences of these lengths: one, or more of `steps` steps.

    Where sentences have ended a chunk takes more steps, as long as it has no more rows than
    `steps` steps of all sentences: what it needs does not grow, and products of few rows are slow.
    """
    return _extents(lengths.tobytes(), steps)


@lru_cache(maxsize=32)  # planning asks again and again, for each direction
def _extents(of_sentences: bytes, steps: int) -> tuple[Extent, ...]:
    lengths = np.frombuffer(of_sentences, np.int64)
    longest = int(lengths.max(initial=0))
    running = lengths.size - np.cumsum(bincount(lengths, minlength=longest + 1))[:longest]
    counts: list[int] = running.tolist()
    if not steps or not counts:
        return (Extent(0, longest, sum(counts), max(counts, default=0)),)
    chunks = _filled(counts, steps * counts[0])
    even = -(-sum(counts) // len(chunks)) + counts[0]
    return _filled(counts, min(even, steps * counts[0]))


def _filled(counts: list[int], most: int) -> tuple[Extent, ...]:
    """Chunks of as many steps as have at most `most` rows, and of one step at least."""
    chunks: list[Extent] = []
    first = rows = 0
    for t, count in enumerate(counts):
        if t > first and rows + count > most:
            chunks.append(Extent(first, t, rows, counts[first]))
            first, rows = t, 0
        rows += count
    return (*chunks, Extent(first, len(counts), rows, counts[first]))


def of_pass(lengths: Array, steps: int, leaves_all: bool) -> tuple[Extent, ...]:
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


def cut(shards: Sequence[Shard], extents: Sequence[Extent]) -> list[list[Shard]]:
    """The shards of each chunk: scans of their own, which begin from the states before it."""
    chunks, num_found = [], 0
    for first, end, _, _ in extents:
        chunk: list[Shard] = []
        for shard in shards:
            start = chunk[-1].span.stop if chunk else 0
            chunk.append(_cut(shard, shard.steps[first:end], start, first, num_found))
            num_found += chunk[-1].running if first else 0
        chunks.append(chunk)
    return chunks


def _cut(shard: Shard, steps: list[Step], start: int, first: int, found: int) -> Shard:
    low, high, running, p = (steps[0][0], steps[-1][1], *steps[0][2:]) if steps else (0, 0, 0, 0)
    local = [(s - low, e - low, n, p - low if k else -1) for k, (s, e, n, p) in enumerate(steps)]
    cut = shard._replace(
        order=shard.order[low:high],
        start=start,
        steps=local,
        first=first,
        place=slice(shard.start + low, shard.start + high),
    )
    if not first:
        return cut
    before = slice(shard.start + p, shard.start + p + running)
    return cut._replace(before=before, found=slice(found, found + running))
