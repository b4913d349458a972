"""What a classifier of texts must beat: the most frequent category, and naive Bayes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.parameter import Array


class NaiveBayes:
    """Multinomial naive Bayes: words count, their order does not. All counts begin at 1.

    Args:
        texts:       ids of each text.
        categories:  number of each text's category.
        num_words:   ids are below it.
    """

    def __init__(self, texts: Sequence[Array], categories: Sequence[int], num_words: int) -> None:
        counts = np.ones((max(categories) + 1, num_words))
        for ids, category in zip(texts, categories, strict=True):
            np.add.at(counts[category], ids, 1)
        texts_of = np.bincount(categories) + 1
        self._prior = np.log(texts_of / texts_of.sum())
        self._words = np.log(counts / counts.sum(axis=1, keepdims=True))

    def classify(self, ids: Array) -> int:
        """The most probable category of a text."""
        return int(np.argmax(self._prior + self._words[:, ids].sum(axis=1)))


def most_frequent(categories: Sequence[int]) -> int:
    """The category that most texts have."""
    return int(np.bincount(categories).argmax())
