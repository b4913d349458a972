"""Files of sentences with a tag for each word: columns, CoNLL-U, or word/TAG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynbatch.text.lines import bad_line, num_columns, numbered_lines, some

_RULE = "word<TAB>tag on each line and a blank line after each sentence; CoNLL-U; or word/TAG …"
_WORD, _TAG, _COLUMNS = 1, 3, 10
"""Columns of CoNLL-U: FORM and UPOS, of ten."""

Lines = Sequence[tuple[int, str]]
"""Lines with their numbers."""


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence: `words` and `tags` have one entry a word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(path: str | Path) -> list[TaggedSentence]:
    """The sentences of a UTF-8 file with one word and its tag a line and blank lines between them,
    or with one sentence a line, `The/DT cat/NN`.

    Columns stand apart by tabs, or by blanks in lines without a tab. Where there are more than two,
    the first is the word and the last its tag, as in CoNLL-2003. In CoNLL-U, which has ten, the
    tags are UPOS; comments, ranges of words and empty nodes are left out. Lines of -DOCSTART- are
    left out, too.

    Raises:
        DataError: the file cannot be read or holds no sentence, or a line is not UTF-8, has another
            number of columns than the first, or an empty word or tag. Names file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "tagged.tsv")
        ...     _ = path.write_text("The\\tDT\\ncat\\tNN\\n\\nSleep\\tVB\\n")
        ...     [" ".join(sentence.words) for sentence in read_tagged(path)]
        ['The cat', 'Sleep']
    """
    lines = list(numbered_lines(path))
    written = [(number, line) for number, line in lines if line.strip()]
    is_slashed = bool(written) and slashed(written[0][1]) is not None
    sentences = list(_of_slashes(path, written) if is_slashed else _of_columns(path, lines))
    return some("sentence", path, sentences, _RULE)


def slashed(line: str) -> list[tuple[str, str]] | None:
    """Words and tags of a line of `word/TAG`; None where one of its words has no slash and tag.

    Example:
        >>> slashed("1/2/CD cats/NNS"), slashed("cats NNS")
        ([('1/2', 'CD'), ('cats', 'NNS')], None)
    """
    pairs = [token.rpartition("/")[::2] for token in line.split()]
    return pairs if all([word and tag for word, tag in pairs]) else None


def _of_slashes(path: str | Path, lines: Lines) -> Iterator[TaggedSentence]:
    for number, line in lines:
        pairs = slashed(line)
        if pairs is None:
            raise bad_line(
                f"{path}:{number}", "a word without a tag", line, "word/TAG word/TAG …",
                "give every word a tag behind a slash, as the first line has them",
            )  # fmt: skip
        yield from _ended(pairs)


def _of_columns(path: str | Path, lines: Lines) -> Iterator[TaggedSentence]:
    pairs: list[tuple[str, str]] = []
    width = 0
    for number, line in lines:
        if not line.strip() or line.startswith("-DOCSTART-"):
            yield from _ended(pairs)
            pairs = []
        elif not is_comment(line, width):
            columns = split_columns(line)
            width = width or len(columns)
            if len(columns) != width or width == 1:
                raise bad_line(
                    f"{path}:{number}", num_columns(len(columns), width), line, _RULE,
                    "separate word and tag by one tab, and end sentences by an empty line",
                )  # fmt: skip
            if width != _COLUMNS:
                pairs.append((columns[0], columns[-1]))
            elif columns[0].isdecimal():  # others are ranges ("9-10") and empty nodes ("9.1")
                pairs.append((columns[_WORD], columns[_TAG]))
            if pairs and not all(pairs[-1]):
                raise bad_line(
                    f"{path}:{number}", "an empty word or tag", line, _RULE,
                    "give both, or leave the line out",
                )  # fmt: skip
    yield from _ended(pairs)


def split_columns(line: str) -> list[str]:
    """The columns of a line: between tabs, or between blanks where it has no tab."""
    return [column.strip() for column in line.split("\t")] if "\t" in line else line.split()


def is_comment(line: str, width: int = 0) -> bool:
    """Whether a line is a comment of CoNLL-U: `# text = …`, without a tab.

    Args:
        width: columns of the file, 0 where they are not known yet. Only CoNLL-U has comments.
    """
    return line.startswith("# ") and "\t" not in line and width in (0, _COLUMNS)


def is_conllu(columns: Sequence[str]) -> bool:
    return len(columns) == _COLUMNS and columns[0].replace("-", "").replace(".", "").isdecimal()


def _ended(pairs: Sequence[tuple[str, str]]) -> Iterator[TaggedSentence]:
    """The sentence of these words and tags, if there are any."""
    if pairs:
        words, tags = zip(*pairs, strict=True)
        yield TaggedSentence(words, tags)
