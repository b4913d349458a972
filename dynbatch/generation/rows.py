"""`LogitsRow`: the logits of one sentence's next token, and what is asked of them most often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.kernels.softmax import log_softmax
from dynbatch.parameter import Array


class LogitsRow(NamedTuple):
    """The logits of a next token.

    values:    (V,).
    best:      the first token with the largest.
    log_probs: (V,) log_softmax(values), in nats.
    """

    values: Array
    best: int
    log_probs: Array


def rows_of(logits: Array) -> list[LogitsRow]:
    """Each row of logits (N, V); none depends on the rows beside it."""
    count, vocab = logits.shape
    log_probs = np.empty_like(logits)
    offsets = np.arange(count + 1) * vocab
    log_softmax(logits.reshape(-1, 1), offsets, log_probs.reshape(-1, 1))
    best = logits.argmax(axis=1).tolist()
    return [LogitsRow(*each) for each in zip(logits, best, log_probs, strict=True)]
