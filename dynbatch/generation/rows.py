"""`LogitsRow`: the logits of one sentence's next token, and what is asked of them most often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.parameter import Array


class LogitsRow(NamedTuple):
    """The logits of a next token.

    values:  (V,).
    best:    the first token with the largest.
    log_sum: log Σ exp(values), float64, in nats.
    """

    values: Array
    best: int
    log_sum: float

    def log_prob(self, token: int) -> float:
        """The log-probability of a token, in nats."""
        return float(self.values[token]) - self.log_sum

    def log_probs(self) -> Array:
        """The log-probabilities (V,), float64."""
        result: Array = self.values.astype(np.float64) - self.log_sum
        return result


def rows_of(logits: Array) -> list[LogitsRow]:
    """Each row of logits (N, V); none depends on the rows beside it."""
    best = logits.argmax(axis=1)
    peaks = logits[np.arange(len(logits)), best].astype(np.float64)
    sums = [float(np.exp(row - peak).sum()) for row, peak in zip(logits, peaks, strict=True)]
    log_sums = peaks + np.log(sums)
    return [LogitsRow(*each) for each in zip(logits, best.tolist(), log_sums.tolist(), strict=True)]
