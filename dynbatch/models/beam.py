"""The beam of one sentence: its live and finished hypotheses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynbatch.parameter import Array


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One generated sentence.

    Args:
        tokens:      ids, without marks.
        log_prob:    log-probability in nats, summed over the tokens and the end mark if reached.
        score:       what hypotheses are ranked by: log_prob / length^length_penalty, the length
                     counted with the end mark.
        is_finished: whether the end mark was reached, rather than the longest length allowed.
    """

    tokens: list[int]
    log_prob: float
    score: float
    is_finished: bool


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """The settings of `beam_search`; see there. `end` is the id of the end mark."""

    end: int
    beam_size: int
    max_length: int
    length_penalty: float
    n_best: int


class Beam:
    """Live and finished hypotheses of one sentence. At first one is live, without tokens."""

    def __init__(self, settings: BeamSettings) -> None:
        self._settings = settings
        self._log_probs = np.zeros(1)
        self._tokens: list[list[int]] = [[]]
        self._finished: list[Hypothesis] = []

    def extend(self, log_probs: Array) -> tuple[Array, Array]:
        """Take one step. Return the surviving hypotheses: their parent rows, and their tokens.

        Args:
            log_probs: (live, V) of the next token. Sums are float64.
        """
        size = self._settings.beam_size
        totals = (self._log_probs[:, None] + log_probs).reshape(-1)
        # Each live hypothesis can end in one way only, so these hold `size` that do not end.
        ranked = largest(totals, 2 * size)
        parents, tokens = np.divmod(ranked, log_probs.shape[1])
        ends = tokens == self._settings.end
        for rank in np.flatnonzero(ends[:size]).tolist():
            self._finish(int(parents[rank]), float(totals[ranked[rank]]))
        living = np.flatnonzero(~ends)[:size]
        parents, tokens = parents[living], tokens[living]
        self._log_probs = totals[ranked[living]]
        pairs = zip(parents.tolist(), tokens.tolist(), strict=True)
        self._tokens = [[*self._tokens[parent], token] for parent, token in pairs]
        if self._is_done():
            self._tokens, self._log_probs = [], np.zeros(0)
            return parents[:0], tokens[:0]
        return parents, tokens

    def best(self) -> list[Hypothesis]:
        """The `n_best` hypotheses by score: finished ones, then unfinished ones."""
        cut = [
            Hypothesis(tokens, total, self._score(total, len(tokens)), is_finished=False)
            for tokens, total in zip(self._tokens, self._log_probs.tolist(), strict=True)
        ]
        return [*_by_score(self._finished), *_by_score(cut)][: self._settings.n_best]

    def _finish(self, parent: int, total: float) -> None:
        tokens = self._tokens[parent]
        score = self._score(total, len(tokens) + 1)
        self._finished.append(Hypothesis(tokens, total, score, is_finished=True))

    def _score(self, total: float, length: int) -> float:
        return float(total / max(1, length) ** self._settings.length_penalty)

    def _is_done(self) -> bool:
        if len(self._finished) >= self._settings.beam_size:
            return True
        if len(self._finished) < self._settings.n_best:
            return False
        # A log-probability can only fall, and is divided by the longest length at best.
        highest = float(self._log_probs.max(initial=-np.inf))
        bound = self._score(highest, self._settings.max_length)
        return bound <= _by_score(self._finished)[self._settings.n_best - 1].score


def largest(values: Array, count: int) -> Array:
    """Positions of the `count` largest values, the largest first; ties go to the first.

    Example:
        >>> largest(np.array([1.0, 3.0, 2.0, 3.0]), 3).tolist()
        [1, 3, 2]
    """
    places = np.arange(values.size)
    if values.size > count:
        least = np.partition(values, values.size - count)[values.size - count]
        places = np.flatnonzero(values >= least)
    ranked: Array = places[np.argsort(-values[places], kind="stable")]
    return ranked[:count]


def _by_score(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
