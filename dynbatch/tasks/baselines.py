"""Baselines that a model must beat: counts of words, and a compressor."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import bincount
from dynbatch.text import TaggedSentence


class MostFrequentTag:
    """Each word's most frequent tag; of a word never seen, that of all words."""

    def __init__(self, sentences: Iterable[TaggedSentence]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        total: Counter[str] = Counter()
        for sentence in sentences:
            total.update(sentence.tags)
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                counts[word][tag] += 1
        self._best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        self._usual = total.most_common(1)[0][0]

    def __contains__(self, word: str) -> bool:
        return word in self._best

    def tag(self, words: Sequence[str]) -> list[str]:
        return [self._best.get(word, self._usual) for word in words]


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
        texts_of = bincount(categories) + 1
        self._prior = np.log(texts_of / texts_of.sum())
        self._words = np.log(counts / counts.sum(axis=1, keepdims=True))

    def classify(self, ids: Array) -> int:
        return int(np.argmax(self._prior + self._words[:, ids].sum(axis=1)))


def compressed_bits(known: Sequence[str], texts: Sequence[str]) -> float | None:
    """The bits that xz (LZMA) needs for a byte of texts, behind the last 2 MB of what it knows.

    It finds what repeats, and adapts as it reads; a byte's bits are the difference of two sizes.

    Returns:
        None where this Python has no `lzma`, or there is nothing to compress.
    """
    try:
        import lzma
    except ImportError:  # a Python that was built without it
        return None
    before, after = ["\0".join(each).encode("utf-8", "replace") for each in (known, texts)]
    if not after:
        return None
    before = before[-LZMA_WINDOW:] + b"\0"
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 6, "dict_size": 2 * LZMA_WINDOW}]
    sizes = [
        len(lzma.compress(content, lzma.FORMAT_RAW, filters=filters))
        for content in (before, before + after)
    ]
    return 8 * (sizes[1] - sizes[0]) / len(after)


LZMA_WINDOW = 1 << 21
"""Bytes that `compressed_bits` knows at most: a second or two of a core."""


def most_frequent(categories: Sequence[int]) -> int:
    return int(bincount(categories).argmax())
