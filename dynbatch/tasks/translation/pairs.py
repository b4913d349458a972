"""Pairs of texts: how they are cut into tokens and numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dynbatch.backend import Array
from dynbatch.text import ParallelText, Vocabulary

Tokens = tuple[str, ...]

UNITS = ("words", "characters")
"""What tokens are: a text is cut at blanks, or each character is one, blanks included."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberedPair:
    """One training example in ids, each side at its own length and without `<s>` or `</s>`.

    Args:
        source: (T_source,) int64.
        target: (T_target,) int64.
    """

    source: Array
    target: Array

    @property
    def num_tokens(self) -> int:
        return self.source.size + self.target.size


def tokenize(text: str, units: str) -> Tokens:
    """The tokens of a line of text: its words, or every character of it."""
    return tuple(text) if units == "characters" else tuple(text.split())


def join(tokens: Iterable[str], units: str) -> str:
    """The text that `tokenize` takes apart again."""
    return ("" if units == "characters" else " ").join(tokens)


def vocabulary_of(texts: Iterable[str], units: str, min_count: int = 1) -> Vocabulary:
    """The tokens of texts that are there `min_count` times or more."""
    return Vocabulary.build([tokenize(text, units) for text in texts], min_count)


def targets_of(texts: Sequence[ParallelText]) -> list[str]:
    return [target for text in texts for target in text.references]


def units_of(texts: Sequence[str], units: str) -> str:
    """The kind of tokens where the settings leave it open ("auto"): words, unless more than a tenth
    of the running words are there only once, so that they can only be spelled.

    Example:
        >>> units_of(["tough", "though", "thought"], "auto")
        'characters'
        >>> units_of(["a fox", "a dog", "the fox", "the dog"], "auto")
        'words'
    """
    if units != "auto":
        return units
    counts = Counter([word for text in texts for word in text.split()])
    once = sum([count == 1 for count in counts.values()])
    return "characters" if once * 10 > counts.total() else "words"
