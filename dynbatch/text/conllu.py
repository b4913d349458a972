"""Treebanks in CoNLL-U: words with lemmas, tags, and the tree of their heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynbatch.text.lines import bad_line, numbered_lines, some
from dynbatch.text.tagged import TaggedSentence

_RULE = "CoNLL-U: ten columns with one tab between them, a blank line after each sentence"
_BETWEEN = re.compile(r"[0-9]+[-.][0-9]+")
"""The number of a range of words, or of an empty node."""

_MOST_DIGITS = 9
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
            lacks a word or a head, words are not numbered 1, 2, 3, …, or the heads of a sentence
            are no tree: it does not have exactly one root, or a head lies outside of it, or heads
            go in a circle. Names file and line.

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
            rows += _row(where, line, len(rows) + 1)
        elif rows:
            sentences.append(_sentence(where, rows, comments))
            comments, rows = {}, []
    return some("sentence", path, sentences, _RULE)


def _lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Lines with their places, and an empty one at the end."""
    number = 0
    for number, line in numbered_lines(path):
        yield f"{path}:{number}", line
    yield f"{path}:{number + 1}", ""


def _row(where: str, line: str, number: int) -> list[list[str]]:
    """The columns of a sentence's word of that number; nothing for a range of words and for an
    empty node."""
    columns, problem = line.split("\t"), ""
    if len(columns) != _COLUMNS:
        problem = f"{len(columns)} columns, not ten"
    elif _BETWEEN.fullmatch(columns[_NUMBER]):
        return []
    elif columns[_NUMBER] != str(number):
        problem = f"{columns[_NUMBER]!r:.40} is not the number of the next word, {number}"
    elif not columns[_WORD].strip():
        problem = "the word is empty"
    elif not columns[_HEAD].isdecimal() or len(columns[_HEAD]) > _MOST_DIGITS:
        problem = f"{columns[_HEAD]!r:.40} is not the number of a head"
    elif int(columns[_HEAD]) == number:
        problem = f"word {number} is its own head"
    if problem:
        fix = "give such a file; read_tagged reads tags without heads"
        raise bad_line(where, problem, line, _RULE, fix)
    return [columns]


def _sentence(
    where: str, rows: Sequence[Sequence[str]], comments: Mapping[str, str]
) -> ParsedSentence:
    columns = [*zip(*rows, strict=True)]
    heads = tuple(map(int, columns[_HEAD]))
    problem = ""
    if max(heads) > len(rows) or heads.count(0) != 1:
        problem = "does not have exactly one root, or has a head outside of it"
    elif circling := _circling(heads):
        problem = f"has heads in a circle: word {circling} does not lead to the root"
    if problem:
        raise bad_line(
            where, f"the sentence above {problem}", " ".join(columns[_WORD]),
            "one word has head 0, others the number of another word, and all lead to the root",
            "correct the seventh column, HEAD",
        )  # fmt: skip
    return ParsedSentence(
        columns[_WORD], columns[_TAG], heads, columns[_LABEL], columns[_LEMMA], comments
    )


def _circling(heads: Sequence[int]) -> int:
    """The first word from which heads do not lead to the root; 0 if they lead there from all."""
    children: list[list[int]] = [[] for _ in range(len(heads) + 1)]
    for number, head in enumerate(heads, start=1):
        children[head].append(number)
    reached = [0]
    for number in reached:
        reached += children[number]
    return min({*range(len(heads) + 1)} - {*reached}, default=0)
