"""Sentences in ids, with the actions of their trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dynbatch.backend import Array
from dynbatch.text import ParsedSentence, Vocabulary
from examples.parser.transitions import Action, oracle, projective

SUFFIX = 3
"""Letters at the end of a word that are a feature of it: they tell of words never seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """A sentence as the parser reads it.

    Args:
        ids:     of words, suffixes and, where it reads them, tags: (T,) int64 each.
        actions: that give its tree, or what is nearest to it without crossing arcs.
    """

    ids: tuple[Array, ...]
    actions: list[Action]


class Numbering:
    """The vocabularies of a training set: lower-case words, suffixes, tags.

    Args:
        sentences: the training set.
        has_tags:  whether tags are read.
        min_count: how often a word must be there to have a number of its own.
    """

    def __init__(
        self, sentences: Sequence[ParsedSentence], has_tags: bool, min_count: int = 2
    ) -> None:
        self.words = Vocabulary.build([_lower(s.words) for s in sentences], min_count)
        self.suffixes = Vocabulary.build([_suffixes(s.words) for s in sentences], min_count)
        self.tags = Vocabulary.build([s.tags for s in sentences]) if has_tags else None

    def sizes(self) -> tuple[int, int, int]:
        """The numbers of words, suffixes and tags."""
        return len(self.words), len(self.suffixes), len(self.tags) if self.tags else 0

    def number(self, sentence: ParsedSentence) -> Numbered:
        """A sentence in ids, its tree as actions."""
        ids = [self.words.encode(_lower(sentence.words))]
        ids.append(self.suffixes.encode(_suffixes(sentence.words)))
        if self.tags is not None:
            ids.append(self.tags.encode(sentence.tags))
        return Numbered(tuple(ids), actions_of(sentence))


def actions_of(sentence: ParsedSentence) -> list[Action]:
    """The actions that give the sentence's tree, made projective if it is not."""
    actions = oracle(sentence.heads, sentence.labels)
    if actions is None:
        actions = oracle(projective(sentence.heads), sentence.labels)
    assert actions is not None
    return actions


def _lower(words: Iterable[str]) -> list[str]:
    return [word.lower() for word in words]


def _suffixes(words: Iterable[str]) -> list[str]:
    return [word.lower()[-SUFFIX:] for word in words]
