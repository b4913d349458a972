"""Pairs of texts: how they are read from a file, cut into tokens and numbered.

One example is one source with every target that counts as right: a word with two pronunciations
trains as two pairs and is tested as one word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.parameter import Array
from dynbatch.text import Vocabulary
from dynbatch.text.lines import bad_line, read_lines

Tokens = tuple[str, ...]

UNITS = ("words", "characters")
"""What tokens are: a text is cut at blanks, or each character is one, blanks included."""


@dataclass(frozen=True, slots=True)
class ParallelText:
    """One source and its references: every target that is right, the first the most usual."""

    source: str
    references: tuple[str, ...]


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
        """Tokens of both sides, for a budget by tokens."""
        return self.source.size + self.target.size


def read_pairs(path: str | Path) -> list[ParallelText]:
    """The examples of a UTF-8 file with one `source<TAB>target` on each line.

    Lines with the same source become one example with several references. Blank lines are skipped.

    Raises:
        DataError: the file cannot be opened or holds no pair, or a line is not UTF-8, has not
            exactly one tab, or has nothing on one side of it. Names file and line.
    """
    lines = [(number, line) for number, line in read_lines(path) if line.strip()]
    if not lines:
        raise DataError(f"{path}: no pairs. Each line holds source<TAB>target.")
    return joined([_pair(f"{path}:{number}", line) for number, line in lines])


def joined(pairs: Iterable[tuple[str, str]]) -> list[ParallelText]:
    """One example for each source, with all its targets."""
    references: dict[str, list[str]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(target)
    return [ParallelText(source, tuple(targets)) for source, targets in references.items()]


def _pair(where: str, line: str) -> tuple[str, str]:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != 2 or not all(fields):
        counts = {1: "no tab", 2: "nothing on one side of the tab"}
        found = counts.get(len(fields), f"{len(fields) - 1} tabs")
        raise bad_line(
            where, f"expected source<TAB>target, found {found}", line,
            "one tab on each line, with text before and after it",
            "put a tab between source and target, and leave out lines that lack one of them",
        )  # fmt: skip
    return fields[0], fields[1]


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
    """All references of all examples."""
    return [target for text in texts for target in text.references]


def units_of(texts: Sequence[str], units: str) -> str:
    """What tokens are where the settings leave it open ("auto"): words, unless more than a tenth
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
