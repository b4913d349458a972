"""Prefix layout: the rows of a scan, time step by time step, the longest sentence first.

The sentences still running at step t are then the first n_t of a shard, so that states, gates and
gradients of a step are views: no gather, no scatter, no work for sentences that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array

Step = tuple[int, int, int, int]
Block = tuple[int, int, list[tuple[int, Step]]]
# Least rows of a block: fewer make more and shorter kernels, more leave the caches (measured).
BLOCK_ROWS = 256


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
    def numbered(self) -> list[tuple[int, Step]]:
        """The steps with their numbers."""
        return list(enumerate(self.steps, self.first))

    @property
    def blocks(self) -> list[Block]:
        """(first row, end row, numbered steps): as many steps as make `BLOCK_ROWS` rows or more.

        Of a rest smaller than half of that the last block makes no other.
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
    """Where each token of a mini-batch is in packed order.

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
