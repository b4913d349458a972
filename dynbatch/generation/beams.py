"""`Beams`: the sentences of one prompt that are followed side by side, and its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array
from dynbatch.generation.config import GenerationConfig


@dataclass(frozen=True, slots=True)
class Ended:
    """A sentence that has ended.

    Args:
        tokens:      ids, its end mark included.
        log_probs:   of each token, in nats.
        score:       what sentences are ranked by, Σ log_probs / length^length_penalty.
        is_finished: whether an end mark ended it, rather than the greatest length.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float
    is_finished: bool


class Beams:
    """Beam search for one prompt; it begins with one sentence without tokens.

    At each step the extensions of all live sentences are ranked by log-probability. Of the first
    `num_beams`, those that end are results, of which the `num_beams` best by score are kept; the
    first `num_beams` that do not end live on. Of two equal ones the first counts as the better.

    It is done when no live sentence can come among the results any more, by the rule of
    `early_stopping`; from then on nothing changes.

    Args:
        config:   the settings.
        limit:    most tokens of a result.
        has_hook: whether a hook changes scores, which may rise then.

    Attributes:
        tokens:    of each live sentence, as tuples.
        is_done:   whether the results stand.

    Source: the rules of `generate` in transformers 5; the lengths that bound a score are those of
        its `early_stopping`.
    """

    def __init__(self, config: GenerationConfig, limit: int, *, has_hook: bool = False) -> None:
        self._config = config
        self._limit = limit
        self._falls = not has_hook and min(config.presence_penalty, config.frequency_penalty) >= 0
        self.tokens: list[tuple[int, ...]] = [()]
        self._log_probs: list[tuple[float, ...]] = [()]
        self._totals = np.zeros(1)
        self._ended: list[Ended] = []
        self.is_done = False

    @property
    def wanted(self) -> int:
        """Extensions among which there are enough that live on."""
        # Each sentence can end with each end mark once.
        return max(2, 1 + len(self._config.ends)) * self._config.num_beams

    def extend(self, tokens: Array, scores: Array, log_probs: Array) -> tuple[Array, Array]:
        """Take one step. Return of each live sentence its parent, and its new token.

        Args:
            tokens:    (live, K): of each sentence its `wanted` best next tokens, or all.
            scores:    (live, K), by which they are ranked: log-probabilities after all penalties.
            log_probs: (live, K), what results report.
        """
        config, size = self._config, self._config.num_beams
        parents = np.repeat(np.arange(len(tokens)), tokens.shape[1])
        tokens, log_probs = tokens.reshape(-1), log_probs.reshape(-1)
        totals = (self._totals[:, None] + scores).reshape(-1)
        ranked = np.lexsort((tokens, parents, -totals))[: self.wanted]
        ranked = ranked[totals[ranked] > -np.inf]
        parents, tokens, totals = parents[ranked], tokens[ranked], totals[ranked]
        given = log_probs[ranked].tolist()
        pairs = list(zip(parents.tolist(), tokens.tolist(), strict=True))
        length = len(self.tokens[0]) + 1
        ends = [token in config.ends for _, token in pairs]
        stops = [is_end or length >= self._limit for is_end in ends]
        for rank in [rank for rank, stop in enumerate(stops[:size]) if stop]:
            parent, token = pairs[rank]
            steps = (*self._log_probs[parent], given[rank])
            self._end((*self.tokens[parent], token), steps, float(totals[rank]), ends[rank])
        living = [rank for rank, stop in enumerate(stops) if not stop][:size]
        chosen = [(*pairs[rank], given[rank]) for rank in living]
        self.tokens, self._log_probs = (
            [(*self.tokens[parent], token) for parent, token, _ in chosen],
            [(*self._log_probs[parent], value) for parent, _, value in chosen],
        )
        self._totals = totals[living]
        self.is_done = not chosen or self._cannot_improve(length)
        if self.is_done:
            living = living[:0]
        return parents[living], tokens[living]

    def results(self) -> list[Ended]:
        """The `num_return_sequences` best sentences that have ended, the best first."""
        return self._ended[: self._config.num_return_sequences]

    def _end(
        self, tokens: tuple[int, ...], log_probs: tuple[float, ...], total: float, is_finished: bool
    ) -> None:
        ended = Ended(tokens, log_probs, self._score(total, len(tokens)), is_finished)
        kept = sorted([*self._ended, ended], key=lambda one: -one.score)
        self._ended = kept[: self._config.num_beams]

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self._config.length_penalty)

    def _cannot_improve(self, length: int) -> bool:
        config = self._config
        best = float(self._totals[0])
        wanted = config.num_return_sequences
        if self._falls and len(self._ended) >= wanted:
            longest = self._limit if config.length_penalty > 0 else length
            if self._score(best, longest) <= self._ended[wanted - 1].score:
                return True  # by any rule: what is to come is not among the results
        if len(self._ended) < config.num_beams:
            return False
        if config.early_stopping is True:
            return True
        at_most = config.early_stopping == "never" and config.length_penalty > 0
        return self._score(best, self._limit if at_most else length) <= self._ended[-1].score
