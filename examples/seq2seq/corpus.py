"""Pairs of token sequences before they are numbered, and how they are held out or read from a file.

One example is one source with every target that counts as right: a word with two pronunciations
trains as two pairs and is tested as one word.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynbatch.errors import DataError

Tokens = tuple[str, ...]
Units = Literal["words", "characters"]


@dataclass(frozen=True, slots=True)
class Example:
    """One source and its references: every target that is right, the first the most usual."""

    source: Tokens
    references: tuple[Tokens, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The examples of a task in three parts; `dev` is empty where a benchmark defines none.

    `token` and `sequence` are what one target token and one target are called in reports; the units
    say what a token is when a source is typed in or a target printed.
    """

    name: str
    train: list[Example]
    dev: list[Example]
    test: list[Example]
    token: str = "token"
    sequence: str = "sentence"
    source_units: Units = "words"
    target_units: Units = "words"


def hold_out(key: str) -> Literal["train", "dev", "test"]:
    """The part an example belongs to, from its source alone: 90 % train, 5 % dev, 5 % test.

    sha256(key) mod 20 is 0 for test and 1 for dev, so that no file lists the split, it is the same
    everywhere, and adding examples moves none of the others.

    Example:
        >>> hold_out("padding"), hold_out("hello")
        ('dev', 'test')
    """
    remainder = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 20
    return "test" if remainder == 0 else "dev" if remainder == 1 else "train"


def split(
    name: str,
    examples: Iterable[Example],
    token: str,
    sequence: str,
    source_units: Units = "words",
    target_units: Units = "words",
) -> Corpus:
    """A corpus divided by `hold_out` over the joined source tokens."""
    corpus = Corpus(name, [], [], [], token, sequence, source_units, target_units)
    parts = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    for example in examples:
        parts[hold_out("".join(example.source))].append(example)
    return corpus


def load_tsv(
    path: str | Path, source_units: Units = "words", target_units: Units = "words"
) -> list[Example]:
    """The examples of a UTF-8 file with one `source<TAB>target` on each line.

    Words are separated by spaces; with `"characters"` each character is a token, spaces included.
    Lines with the same source become one example with several references. Blank lines are skipped.

    Raises:
        DataError: the file cannot be opened or holds no pair, or a line is not UTF-8, has not
            exactly one tab, or has nothing on one side of it. Names file and line.
    """
    references: dict[Tokens, list[Tokens]] = {}
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    source, target = _read_pair(f"{path}:{number}", line)
                    targets = references.setdefault(tokenize(source, source_units), [])
                    targets.append(tokenize(target, target_units))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    if not references:
        raise DataError(f"{path}: no pairs. Each line holds source<TAB>target.")
    return [Example(source, tuple(targets)) for source, targets in references.items()]


def decode_line(where: str, line: bytes) -> str:
    """One line of a UTF-8 file as text, without its line end or the byte order mark.

    Raises:
        DataError: the line is not UTF-8. Begins with `where`, "file:line".
    """
    try:
        return line.removeprefix(codecs.BOM_UTF8).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {error.start + 1}, 0x{line[error.start]:02x}, is not UTF-8.\n"
            "  fix: convert the file, for example with iconv -f LATIN1 -t UTF-8."
        ) from None


def _read_pair(where: str, line: bytes) -> tuple[str, str]:
    text = decode_line(where, line)
    fields = [field.strip() for field in text.split("\t")]
    if len(fields) != 2 or not all(fields):
        found = f"{len(fields)} fields" if len(fields) != 2 else "nothing on one side of the tab"
        raise DataError(
            f"{where}: expected source<TAB>target, found {found}.\n"
            f"  line: {text[:80]!r}\n"
            "  fix:  one tab on each line, with text before and after it."
        )
    return fields[0], fields[1]


def tokenize(text: str, units: Units) -> Tokens:
    """The tokens of a line of text: its words, or every character of it."""
    return tuple(text) if units == "characters" else tuple(text.split())


def join(tokens: Iterable[str], units: Units) -> str:
    """The text that `tokenize` takes apart again."""
    return ("" if units == "characters" else " ").join(tokens)
