"""Mini-batches of made-up sentences whose lengths spread as those of real text do.

A length is lognormal, rounded and clipped: `clip(rint(exp(μ + σ z)), 3, 80)`, μ = ln 22 - σ²/2, so
that its mean is 22 before clipping (21.9 after). σ = 0.59 is the spread at which a random batch of
64, padded, holds 3.18 times as many cells as tokens (68 % of them padding): the figure of the Brown
corpus, English of many kinds, in shuffled batches of 64. σ = 0.4 gives 2.4 times (57 %).

Two other kinds of lengths bound that case: all alike, where there is no padding to save, and one
sentence in 64 of 1,000 words, where padding is nearly all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.networks import END_SYMBOL

Array = np.ndarray[Any, np.dtype[Any]]

MEAN_LENGTH = 22.0
SHORTEST, LONGEST = 3, 80
REAL_TEXT_SIGMA = 0.59
KINDS = ("lognormal", "equal", "one-long")
ONE_LONG = 1_000  # words of every 64th sentence of the kind "one-long"
_POOL_STRIPS = 32  # a bucketing pool is cut into this many strips, and each strip into as many


@dataclass(frozen=True)
class Batch:
    """One mini-batch. Both lists have one int64 array of ids per sentence.

    Args:
        sources: the words read.
        targets: the tags, as long as the words, or the sentence to be written.
    """

    sources: list[Array]
    targets: list[Array]

    def sentences(self) -> Iterator[tuple[Any, ...]]:
        """The inputs of a model of one sentence, sentence by sentence."""
        return zip(self.sources, self.targets, strict=True)

    @property
    def num_sentences(self) -> int:
        return len(self.sources)

    @property
    def num_tokens(self) -> int:
        """Tokens of both sides."""
        return sum(map(len, self.sources)) + sum(map(len, self.targets))

    def shuffled(self, rng: np.random.Generator) -> Batch:
        """The batch's sentences in another order."""
        order = rng.permutation(self.num_sentences)
        return Batch([self.sources[i] for i in order], [self.targets[i] for i in order])

    @property
    def padding_ratio(self) -> float:
        """Cells of the padded batch over its tokens, both sides together; 1.0 is no waste."""
        cells = sum(len(side) * max(map(len, side)) for side in (self.sources, self.targets))
        return cells / self.num_tokens


@dataclass(frozen=True)
class Corpus:
    """The distribution that batches are drawn from.

    Args:
        source_vocabulary: number of word ids; ids are uniform.
        target_vocabulary: number of target ids.
        is_aligned: every target is as long as its source (tags); otherwise its length is a draw
            of its own from the same distribution, and its last word ends it.
        sigma: spread of the lengths.
        mean: of the lengths before they are clipped.
        bounds: the shortest and the longest; `SHORTEST` and `LONGEST` by default.
        kind: "lognormal"; "equal" for the mean's length always; "one-long" for lognormal lengths,
            of which every 64th is `ONE_LONG` instead.
    """

    source_vocabulary: int
    target_vocabulary: int
    is_aligned: bool
    sigma: float = REAL_TEXT_SIGMA
    mean: float = MEAN_LENGTH
    bounds: tuple[int, int] | None = None
    kind: str = KINDS[0]

    def lengths(self, rng: np.random.Generator, count: int) -> Array:
        """(count, 2) lengths of sources and targets."""
        columns = 1 if self.is_aligned else 2
        drawn = draw_lengths(rng, count * columns, self.sigma, self.mean, self.bounds)
        drawn = drawn.reshape(count, columns)
        if self.kind == "equal":
            drawn[:] = round(self.mean)
        elif self.kind == "one-long":
            drawn[63::64] = ONE_LONG
        return np.repeat(drawn, 2, axis=1) if self.is_aligned else drawn

    def fill(self, rng: np.random.Generator, lengths: Array) -> Batch:
        """A batch with sentences of these (count, 2) lengths."""
        sources = [rng.integers(0, self.source_vocabulary, n) for n in lengths[:, 0]]
        targets = [rng.integers(0, self.target_vocabulary, n) for n in lengths[:, 1]]
        if not self.is_aligned:
            for target in targets:
                target[-1] = END_SYMBOL
        return Batch(sources, targets)

    def random_batches(
        self, rng: np.random.Generator, count: int, num_sentences: int
    ) -> list[Batch]:
        """Batches as a shuffled corpus gives them: lengths mixed."""
        return [self.fill(rng, self.lengths(rng, num_sentences)) for _ in range(count)]

    def describe(self, batches: Sequence[Batch]) -> str:
        """The average contents of one of these batches."""
        tokens = np.mean([batch.num_tokens for batch in batches])
        return f"{tokens:.0f} tokens, {mean_padding_ratio(batches):.2f} cells a token when padded"

    def bucketed_batches(
        self, rng: np.random.Generator, count: int, num_tokens: int, num_sentences: int
    ) -> list[Batch]:
        """Batches as perfect bucketing gives them: each of sentences of almost one length.

        A pool of 1,024 batches is sorted by target length, cut into 32 strips of equally many
        tokens, each strip sorted by source length and cut into 32 batches: both sides of a batch
        are near-uniform, as no real corpus of this size would allow. `count` of them are taken,
        spread evenly over the strips, so that short and long sentences have their share.

        Args:
            num_tokens: tokens of a batch, both sides; what the random batches hold on average.
            num_sentences: sentences of a random batch; sets the size of the pool.
        """
        pool = self.lengths(rng, num_sentences * _POOL_STRIPS**2)
        pool = pool[np.lexsort((pool[:, 0], pool[:, 1]))]
        strips = _cut(pool, num_tokens * _POOL_STRIPS)
        chosen = []
        quantiles = (np.arange(count) + 0.5) / count
        for target_quantile, source_quantile in zip(
            quantiles, rng.permutation(quantiles), strict=True
        ):
            strip = strips[int(target_quantile * len(strips))]
            batches = _cut(strip[np.argsort(strip[:, 0], kind="stable")], num_tokens)
            chosen.append(self.fill(rng, batches[int(source_quantile * len(batches))]))
        return chosen


class ClassCorpus(Corpus):
    """Sentences with one target each, a class, whatever their length."""

    def lengths(self, rng: np.random.Generator, count: int) -> Array:
        drawn = super().lengths(rng, count)
        drawn[:, 1] = 1
        return drawn

    def fill(self, rng: np.random.Generator, lengths: Array) -> Batch:
        words = np.asarray(lengths)[:, 0]
        return super().fill(rng, np.stack([words, np.ones_like(words)], axis=1))


def draw_lengths(
    rng: np.random.Generator,
    count: int,
    sigma: float = REAL_TEXT_SIGMA,
    mean: float = MEAN_LENGTH,
    bounds: tuple[int, int] | None = None,
) -> Array:
    """(count,) int64 sentence lengths; see the module's text."""
    mu = np.log(mean) - sigma**2 / 2
    low, high = bounds or (SHORTEST, LONGEST)
    return np.clip(np.rint(rng.lognormal(mu, sigma, count)), low, high).astype(np.int64)


def mean_padding_ratio(batches: Sequence[Batch]) -> float:
    """Mean of the batches' padding ratios."""
    return float(np.mean([batch.padding_ratio for batch in batches]))


def _cut(lengths: Array, num_tokens: int) -> list[Array]:
    """Cut (count, 2) lengths, in their order, into pieces of about `num_tokens` tokens each."""
    piece = (np.cumsum(lengths.sum(axis=1)) - 1) // num_tokens
    pieces = np.split(lengths, np.flatnonzero(np.diff(piece)) + 1)
    return pieces if len(pieces) == 1 else pieces[:-1]  # the last holds what was left over
