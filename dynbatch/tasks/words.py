"""Words as vectors: common ones from a table, rare ones read letter by letter.

Grains mix: a sentence of five common words is one look-up, and one with a rare word runs an LSTM
over that word's letters, too. Rare words of all sentences run together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dynbatch import models
from dynbatch import nodes as F
from dynbatch.arguments import is_number
from dynbatch.backend import Array
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node
from dynbatch.text import Vocabulary
from dynbatch.text.vocabulary import MARKS


@dataclass(frozen=True, slots=True, eq=False)
class WordIds:
    """One sentence of T words in ids.

    Args:
        common: ids of the words that have a vector, (C,).
        rare:   ids of the letters of each of the others, T - C arrays.
        order:  (T,) where each word is among the common ones followed by the rare ones.
    """

    common: Array
    rare: list[Array]
    order: Array


class Lexicon:
    """The words that have a vector of their own, and the characters by which others are spelled."""

    def __init__(self, words: Vocabulary, characters: Vocabulary) -> None:
        self.words, self.characters = words, characters
        self._spell = cache(characters.encode)

    @classmethod
    def build(cls, sentences: Sequence[Sequence[str]], min_count: int) -> Lexicon:
        """The words that sentences have `min_count` times or more, and all their characters."""
        characters = Vocabulary.build(word for words in sentences for word in words)
        return cls(Vocabulary.build(sentences, min_count), characters)

    def encode(self, words: Sequence[str]) -> WordIds:
        is_rare = np.array([word not in self.words for word in words], bool)
        order = np.empty(len(words), np.int64)
        order[np.argsort(is_rare, kind="stable")] = np.arange(len(words))
        return WordIds(
            common=self.words.encode([word for word in words if word in self.words]),
            rare=[self._spell(word) for word in words if word not in self.words],
            order=order,
        )


class WordVectors(models.Module):
    """A sentence's words as vectors, (T, features).

    Args:
        lexicon:  the words and characters.
        features: of a word's vector, an even number: each direction of the LSTM gives half.
        letters:  features of a character.

    Source: Ling et al. 2015, arXiv:1508.02096, for rare words only, as in Neubig, Goldberg & Dyer
        2017, arXiv:1705.07860, section 4.
    """

    def __init__(self, lexicon: Lexicon, features: int, letters: int) -> None:
        self.words = models.Embedding(len(lexicon.words), features, scale=0.1)
        self.letters = models.Embedding(len(lexicon.characters), letters, scale=0.1)
        self.spelling = models.LSTM(letters, features // 2, bidirectional=True)

    def spell(self, graph: Graph, letters: Array) -> Node:
        """The vector of a rare word: the last states of both directions."""
        _, ((forward, _), (backward, _)) = self.spelling(
            self.letters(graph, letters), return_state=True
        )
        return F.concat([forward, backward])

    def __call__(self, graph: Graph, ids: WordIds) -> Node:
        rows = [self.words(graph, ids.common)]
        rows += [F.unsqueeze(self.spell(graph, word), 0) for word in ids.rare]
        return F.gather_rows(F.concat(rows, dim=0), ids.order)


def words_of_text(text: str, is_characters: bool = False) -> list[str]:
    """The words of a text in small letters and its punctuation marks; or its characters.

    Example:
        >>> words_of_text("It isn't 3.5 °C!")
        ['it', "isn't", '3.5', '°', 'c', '!']
    """
    return list(text) if is_characters else _WORD.findall(text.lower())


_WORD = re.compile(r"\w+(?:['’.-]\w+)*|[^\w\s]")


def spelled_share(sentences: Sequence[WordIds]) -> float:
    words = sum([ids.order.size for ids in sentences])
    return sum([len(ids.rare) for ids in sentences]) / max(1, words)


def is_tokens(value: object) -> bool:
    return (
        isinstance(value, list)
        and all([isinstance(token, str) and token not in MARKS for token in value])
        and len(set(value)) == len(value)
    )


def is_share(value: object) -> bool:
    """Whether a value out of JSON is a number from 0 to below 1."""
    return is_number(value) and 0 <= float(value) < 1  # type: ignore[arg-type]
