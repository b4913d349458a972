"""Made-up sentences with masked words, all of one length or as long as SQuAD's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.lengths import Array, draw_lengths
from benchmarks.workloads import QUESTIONS, QUESTIONS_SIGMA
from dynbatch.models.pretrained.bert import BertConfig
from dynbatch.padding import IGNORED

PREDICTED = 0.15
"""Share of a sentence's words that are masked and predicted (Devlin et al. 2019, section 3.1)."""
LONGEST = 512

Example = tuple[Array, Array]
"""Ids of a sentence, and the words to predict, `IGNORED` where there is none."""


def full(count: int, length: int) -> list[int]:
    """All lengths alike."""
    return [length] * count


def mixed(count: int, length: int) -> list[int]:
    """Lengths as SQuAD's at 512, and in proportion at other bounds; the first is the longest."""
    rng = np.random.default_rng(1)
    drawn = draw_lengths(rng, count, QUESTIONS_SIGMA, **QUESTIONS)
    scaled = np.maximum(1, np.rint(drawn * (length / LONGEST))).astype(int)
    return [length, *scaled[1:].tolist()]


def examples(lengths: Sequence[int], config: BertConfig) -> list[Example]:
    """Sentences of these lengths, 15 % of whose words are to be predicted, one at least."""
    rng = np.random.default_rng(2)
    made = []
    for length in lengths:
        ids = rng.integers(0, config.vocab_size, length)
        targets = np.full(length, IGNORED)
        chosen = rng.choice(length, max(1, round(PREDICTED * length)), replace=False)
        targets[chosen] = ids[chosen]
        made.append((ids, targets))
    return made
