"""Treebanks in CoNLL-U: words with lemmas, tags, and the tree of their heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text.lines import bad_line, numbered_lines
from dynbatch.text.tagged import TaggedSentence

_RULE = "CoNLL-U: ten columns with one tab between them, a blank line after each sentence"
_NUMBER, _WORD, _LEMMA, _TAG, _HEAD, _LABEL, _COLUMNS = 0, 1, 2, 3, 6, 7, 10


@dataclass(frozen=True, slots=True)
class ParsedSentence(TaggedSentence):
    """A sentence and its dependency tree. `words` and the tuples have one entry a word.

    Args:
        words:    the syntactic words; a contraction is given by its parts (na: em, a).
        tags:     universal parts of speech, UPOS: NOUN, VERB, …
        heads:    number of the word's head, counted from 1; 0 for the root, of which there is one.
        labels:   relation to the head, DEPREL: nsubj, flat:name, …
        lemmas:   the words as a dictionary has them.
        comments: what stands above the sentence as `# name = value`, such as sent_id and text.
    """

    heads: tuple[int, ...]
    labels: tuple[str, ...]
    lemmas: tuple[str, ...] = ()
    comments: Mapping[str, str] = field(default_factory=dict, compare=False)


def read_conllu(path: str | Path) -> list[ParsedSentence]:
    """The sentences of a UTF-8 file in CoNLL-U, each with its tree.

    Ranges of words (9-10) and empty nodes (9.1) are left out. `read_tagged` reads files whose words
    have no heads.

    Raises:
        DataError: the file cannot be read or holds no sentence, a line does not have ten columns or
            lacks a head, or a sentence does not have exactly one root or has a head outside of it.
            Names file and line.

    Source: Universal Dependencies, https://universaldependencies.org/format.html

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> rows = ["1 The the DET _ _ 2 det _ _", "2 fox fox NOUN _ _ 0 root _ _"]
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "fox.conllu")
        ...     _ = path.write_text("\\n".join(rows).replace(" ", "\\t"))
        ...     (sentence,) = read_conllu(path)
        >>> sentence.words, sentence.heads, sentence.labels
        (('The', 'fox'), (2, 0), ('det', 'root'))
    """
    sentences: list[ParsedSentence] = []
    comments: dict[str, str] = {}
    rows: list[list[str]] = []
    where = str(path)
    for where, line in _lines(path):
        if line.startswith("#"):
            name, _, value = line[1:].partition("=")
            comments[name.strip()] = value.strip()
        elif line.strip():
            rows += _row(where, line)
        elif rows:
            sentences.append(_sentence(where, rows, comments))
            comments, rows = {}, []
    if not sentences:
        raise DataError(f"{path}: no sentence.\n  rule: {_RULE}")
    return sentences


def _lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Lines with their places, and an empty one at the end."""
    number = 0
    for number, line in numbered_lines(path):
        yield f"{path}:{number}", line
    yield f"{path}:{number + 1}", ""


def _row(where: str, line: str) -> list[list[str]]:
    """The columns of a word; nothing for a range of words and for an empty node."""
    columns, problem = line.split("\t"), ""
    if len(columns) != _COLUMNS:
        problem = f"{len(columns)} columns, not ten"
    elif not columns[_NUMBER].isdecimal():
        return []
    elif not columns[_HEAD].isdecimal():
        problem = f"{columns[_HEAD]!r} is not the number of a head"
    if problem:
        fix = "give such a file; read_tagged reads tags without heads"
        raise bad_line(where, problem, line, _RULE, fix)
    return [columns]


def _sentence(
    where: str, rows: Sequence[Sequence[str]], comments: Mapping[str, str]
) -> ParsedSentence:
    columns = [*zip(*rows, strict=True)]
    heads = tuple(map(int, columns[_HEAD]))
    if max(heads) > len(rows) or heads.count(0) != 1:
        raise bad_line(
            where, "the sentence above does not have exactly one root, or has a head outside of it",
            " ".join(columns[_WORD]), "one word has head 0, others the number of another word",
            "correct the seventh column, HEAD",
        )  # fmt: skip
    return ParsedSentence(
        columns[_WORD], columns[_TAG], heads, columns[_LABEL], columns[_LEMMA], comments
    )
