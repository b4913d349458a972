"""What a tagger must beat: each word's most frequent tag."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from examples.corpora.brown import Sentence


class MostFrequentTag:
    """Each word's most frequent tag; of a word never seen, that of all words."""

    def __init__(self, sentences: Iterable[Sentence]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        total: Counter[str] = Counter()
        for sentence in sentences:
            total.update(sentence.tags)
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                counts[word][tag] += 1
        self._best = {word: found.most_common(1)[0][0] for word, found in counts.items()}
        self._usual = total.most_common(1)[0][0]

    def __contains__(self, word: str) -> bool:
        return word in self._best

    def tag(self, words: Sequence[str]) -> list[str]:
        """The tags of a sentence."""
        return [self._best.get(word, self._usual) for word in words]
