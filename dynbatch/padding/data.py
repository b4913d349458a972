"""Text files as examples of ids, for `dynbatch memory`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynbatch.backend import Array
from dynbatch.text.lines import bad_line, num_columns, numbered_lines, some

MARKS = 3
"""Ids that are no word: 0 begins a sentence, 1 ends it, 2 stands for words not listed."""

UNKNOWN = 2

_RULE = (
    "source<TAB>target on each line, or one sentence on each line; words are separated by spaces"
)


@dataclass(frozen=True)
class Text:
    """The sentences of a file.

    Args:
        examples:     a tuple of one array of ids for each column.
        vocabularies: number of ids of each column.
        blank_lines:  how many were left out.
    """

    examples: list[tuple[Array, ...]]
    vocabularies: tuple[int, ...]
    blank_lines: int

    @property
    def is_parallel(self) -> bool:
        """Whether each line has a source and a target."""
        return len(self.vocabularies) == 2


def read(path: str | Path, characters: bool = False, vocabulary: int = 8_000) -> Text:
    """Read a file of `source<TAB>target` lines, or of one sentence a line.

    Args:
        characters: tokens are characters, not words.
        vocabulary: the most ids of a column; rarer words are one id.

    Raises:
        DataError: it cannot be read, is not UTF-8, holds no sentence, or a line has another number
            of columns than the first, or an empty one. Names file and line.
    """
    rows: list[list[list[str]]] = []
    blank = 0
    for number, line in numbered_lines(path):
        if not line.strip():
            blank += 1
            continue
        rows.append(_columns(f"{path}:{number}", line, characters))
        if len(rows[-1]) != len(rows[0]):
            raise bad_line(
                f"{path}:{number}", num_columns(len(rows[-1]), len(rows[0])), line, _RULE,
                "give all lines one tab, or none",
            )  # fmt: skip
    some(f"sentence in {blank} lines", path, rows, _RULE)
    return numbered(list(zip(*rows, strict=True)), vocabulary, blank)


def numbered(
    columns: Sequence[Sequence[Sequence[str]]], vocabulary: int, blank_lines: int = 0
) -> Text:
    """Columns of sentences, each a list of words, as ids: at most `vocabulary` of a column."""
    numbers = [_numbered(side, vocabulary) for side in columns]
    examples = list(zip(*[ids for ids, _ in numbers], strict=True))
    return Text(examples, tuple([size for _, size in numbers]), blank_lines)


def _columns(where: str, line: str, characters: bool) -> list[list[str]]:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) > 2:
        fix = "take two columns, for example with cut -f 1,2"
        raise bad_line(where, f"{len(fields)} columns", line, _RULE, fix)
    if not all(fields):
        fix = "leave such lines out, for example with grep -P '\\S.*\\t.*\\S'"
        raise bad_line(where, "nothing on one side of the tab", line, _RULE, fix)
    return [list(field) if characters else field.split() for field in fields]


def _numbered(sentences: Sequence[Sequence[str]], most: int) -> tuple[list[Array], int]:
    """Sentences as ids by falling frequency, and how many ids there are."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: max(0, most - MARKS)]
    known: dict[str, int] = {word: MARKS + rank for rank, word in enumerate(ranked)}
    ids = [
        np.array([known.get(word, UNKNOWN) for word in sentence], np.int64)
        for sentence in sentences
    ]
    return ids, MARKS + len(known)
