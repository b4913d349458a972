"""`Beams`: the sentences of one prompt that are followed side by side, and its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.reasons import END, LENGTH, NO_TOKEN
from dynbatch.indexing import repeat


@dataclass(frozen=True, slots=True)
class Ended:
    """A sentence that has ended.

    Args:
        tokens:    ids, its end mark included.
        log_probs: of each token, in nats.
        score:     what sentences are ranked by, Σ log_probs / length^length_penalty.
        reason:    "end", "length" or "no token".
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float
    reason: str


class Beams:
    """Beam search for one prompt; it begins with one sentence without tokens.

    At each step the extensions of all live sentences are ranked by log-probability. Of the first
    `num_beams`, those that end are results, of which the `num_beams` best by score are kept; the
    first `num_beams` that do not end live on. Of two equal ones the first counts as the better.
    One that no token may follow is given up; it is a result where fewer have ended than are wanted.

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
        self._given_up: list[Ended] = []
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
        ended, given_up = list(self._ended), list(self._given_up)
        for parent in (scores.max(axis=1) == -np.inf).nonzero()[0].tolist():
            total = float(self._totals[parent])
            self._end(given_up, self.tokens[parent], self._log_probs[parent], total, NO_TOKEN)
        parents = repeat(np.arange(len(tokens)), tokens.shape[1])
        tokens, log_probs = tokens.reshape(-1), log_probs.reshape(-1)
        totals = (self._totals[:, None] + scores).reshape(-1)
        ranked = np.lexsort((tokens, parents, -totals))[: self.wanted]
        ranked = ranked[totals[ranked] > -np.inf]
        parents, tokens, totals = parents[ranked], tokens[ranked], totals[ranked]
        best = log_probs[ranked].tolist()
        pairs = list(zip(parents.tolist(), tokens.tolist(), strict=True))
        length = len(self.tokens[0]) + 1
        ends = [token in config.ends for _, token in pairs]
        stops = [is_end or length >= self._limit for is_end in ends]
        for rank in [rank for rank, stop in enumerate(stops[:size]) if stop]:
            parent, token = pairs[rank]
            steps = (*self._log_probs[parent], best[rank])
            reason = END if ends[rank] else LENGTH
            self._end(ended, (*self.tokens[parent], token), steps, float(totals[rank]), reason)
        living = [rank for rank, stop in enumerate(stops) if not stop][:size]
        is_done = not living or self._cannot_improve(float(totals[living[0]]), length, ended)
        chosen = [(*pairs[rank], best[rank]) for rank in living]
        sentences = [(*self.tokens[parent], token) for parent, token, _ in chosen]
        steps_of = [(*self._log_probs[parent], value) for parent, _, value in chosen]
        # All at once, or an interrupt would end the same sentences twice.
        self.tokens, self._log_probs, self._totals, self._ended, self._given_up, self.is_done = (
            sentences, steps_of, totals[living], ended, given_up, is_done
        )  # fmt: skip
        if is_done:
            living = living[:0]
        return parents[living], tokens[living]

    def results(self) -> list[Ended]:
        """The `num_return_sequences` best sentences that have ended, the best first; in places that
        are left, the best that were given up. There is one at least."""
        return [*self._ended, *self._given_up][: self._config.num_return_sequences]

    def _end(
        self, among: list[Ended], tokens: tuple[int, ...], log_probs: tuple[float, ...],
        total: float, reason: str,
    ) -> None:  # fmt: skip
        among.append(Ended(tokens, log_probs, self._score(total, len(tokens)), reason))
        among.sort(key=lambda one: -one.score)
        del among[self._config.num_beams :]

    def _score(self, total: float, length: int) -> float:
        return float(total / max(1, length) ** self._config.length_penalty)

    def _cannot_improve(self, best: float, length: int, ended: list[Ended]) -> bool:
        """Whether sentences of that length, of which the best has that total, stay behind those
        that have ended."""
        config, wanted = self._config, self._config.num_return_sequences
        if self._falls and len(ended) >= wanted:
            longest = self._limit if config.length_penalty > 0 else length
            if self._score(best, longest) <= ended[wanted - 1].score:
                return True  # by any rule: what is to come is not among the results
        if len(ended) < config.num_beams:
            return False
        if config.early_stopping is True:
            return True
        at_most = config.early_stopping == "never" and config.length_penalty > 0
        return self._score(best, self._limit if at_most else length) <= ended[-1].score
