"""The mini-batches of an epoch: shuffled, length-bucketed or by tokens; the sample to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from dynbatch.train.batching import TokenBatches, epoch_order

Batch = list[int]
"""The numbers of a mini-batch's examples."""

Lengths = Sequence[tuple[int, ...]]
"""The lengths of each example's sequences: (T,), or (T_source, T_target)."""


def random_batches(lengths: Lengths, batch_size: int, seed: int) -> list[Batch]:
    """The epoch in shuffled order, without a last incomplete batch."""
    return _cut(epoch_order(len(lengths), seed, 0).tolist(), batch_size)


def bucketed_batches(lengths: Lengths, batch_size: int) -> list[Batch]:
    """The epoch in batches of like lengths, as well as a corpus of this size allows.

    Sorted by the first length, cut into strips of as many batches as there are strips, each strip
    sorted by the last length. One sequence an example: sorted by its length. Frameworks sort less,
    so that batches stay random: this is padding's best case. A rest of fewer sentences than a batch
    is left out: the shortest, so that the longest, which make the peak, are in.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    order = order[len(order) % batch_size :]
    strip = batch_size * max(1, isqrt(len(lengths) // batch_size))
    order = [
        index
        for start in range(0, len(order), strip)
        for index in sorted(order[start : start + strip], key=lambda i: (lengths[i][-1], i))
    ]
    return _cut(order, batch_size)


def random_batches_by_tokens(lengths: Lengths, most_tokens: int, seed: int) -> list[Batch]:
    """The epoch in shuffled order, in batches of at most so many tokens: `train.TokenBatches`."""
    examples = range(len(lengths))
    return TokenBatches(examples, most_tokens, lambda i: sum(lengths[i]), seed).indices(0)


def batches_by_tokens(lengths: Lengths, most_cells: int) -> list[Batch]:
    """The epoch in batches of at most `most_cells` tokens each, padding among them.

    In the order of their lengths sentences join a batch until the next would take it above; a
    longer sentence is a batch of its own. So fairseq's `--max-tokens` makes batches, but for what
    it counts: the longer side of a pair (`fairseq.data.data_utils.batch_by_size`), here both.
    """
    batches: list[Batch] = []
    longest: tuple[int, ...] = ()
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        longer = tuple(map(max, longest, lengths[index])) if longest else lengths[index]
        if batches and (len(batches[-1]) + 1) * sum(longer) <= most_cells:
            batches[-1].append(index)
            longest = longer
        else:
            batches.append([index])
            longest = lengths[index]
    return batches


def tokens_of(batch_size: int, lengths: Lengths) -> int:
    """The tokens, without padding, that so many sentences have on average."""
    return -(-batch_size * sum(map(sum, lengths)) // len(lengths))


def _cut(order: Sequence[int], batch_size: int) -> list[Batch]:
    last = max(1, len(order) - batch_size + 1)
    return [list(order[start : start + batch_size]) for start in range(0, last, batch_size)]


def tokens(batch: Batch, lengths: Lengths) -> int:
    """Tokens of all sequences of a batch."""
    return sum([sum(lengths[i]) for i in batch])


def cells(batch: Batch, lengths: Lengths) -> int:
    """Tokens of the batch when it is padded."""
    sides = zip(*[lengths[i] for i in batch], strict=True)
    return int(len(batch) * sum([max(side) for side in sides]))


@dataclass(frozen=True)
class Sample:
    """Batches of an epoch that stand for it.

    Args:
        epoch:   number of batches in it.
        spread:  batches spread evenly over the epoch: means are over these.
        largest: those with the most tokens, and with the most cells when padded: with `spread` they
            give the peak of the epoch.
    """

    epoch: int
    spread: list[Batch]
    largest: list[Batch]

    @property
    def batches(self) -> list[Batch]:
        return list({tuple(batch): batch for batch in [*self.spread, *self.largest]}.values())


def sample(batches: Sequence[Batch], lengths: Lengths, count: int) -> Sample:
    """At most `count` batches spread evenly over the epoch, and the largest."""
    count = min(count, len(batches))
    spread = [batches[(2 * k + 1) * len(batches) // (2 * count)] for k in range(count)]
    largest = [max(batches, key=lambda b: size(b, lengths)) for size in (cells, tokens)]
    return Sample(len(batches), spread, largest)
