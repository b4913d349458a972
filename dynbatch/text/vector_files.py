"""The two forms of files of word vectors: lines of text, and word2vec's binary records."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DataError
from dynbatch.kernels.decimals import fields_of, number_of, read_rows, split_lines
from dynbatch.text.lines import bad_line, printable

FORM_BYTES = 1 << 18
"""The form is told by so much of a file's beginning: more than the first vector takes."""

BLOCK_BYTES = 1 << 24
"""So much is read at a time, or one line."""

_MOST_WORD = 1 << 16
_RULE = "a word and {} numbers on each line, one space or tab between them"


class VectorFileForm(NamedTuple):
    """The form of a file, as its beginning tells it.

    dim: features of a vector, D.
    num_vectors: that there are to be; None if the file does not say.
    is_binary: whether records are binary.
    """

    dim: int
    num_vectors: int | None
    is_binary: bool


class VectorRows:
    """The vectors that are read, in a matrix that grows.

    Args:
        wanted: the words to be read; None for all.
        limit:  lines to be read at most.

    Attributes:
        numbers: the row of each word.
        places:  the line or record of each row.
        matrix:  (R, D) float32, of which the first rows are in use.
    """

    def __init__(self, dim: int, wanted: frozenset[bytes] | None, limit: int | None) -> None:
        self.numbers: dict[bytes, int] = {}
        self.places: list[int] = []
        self.matrix: Array = np.empty((0, dim), np.float32)
        self.limit = limit
        self._wanted = wanted

    def take(self, word: bytes, line: int) -> int:
        """A new row for a word, or -1 if it is not wanted or is there already."""
        row = len(self.numbers)
        if (self._wanted is not None and word not in self._wanted) or word in self.numbers:
            return -1
        self.numbers[word] = row
        self.places.append(line)
        return row

    def reserve(self, expected: float = 0) -> None:
        """Make room for all rows taken, and for as many as are expected.

        What is never written to takes no memory.
        """
        count, have = len(self.numbers), len(self.matrix)
        if count > have:
            most = int(expected) if self._wanted is None else min(int(expected), len(self._wanted))
            grown = np.empty((max(count, most, 2 * have), self.matrix.shape[1]), np.float32)
            grown[:have] = self.matrix
            self.matrix = grown


def form_of(path: str | Path, head: bytes) -> VectorFileForm:
    """The form of a file, by its beginning.

    Raises:
        DataError: it has no vectors.
    """
    line, _, rest = head.removeprefix(codecs.BOM_UTF8).partition(b"\n")
    header = line.split()
    if len(header) == 2 and all([field.isdigit() and len(field) < 20 for field in header]):
        count, dim = [int(field) for field in header]
        if count and dim:
            return VectorFileForm(dim, count, not _is_text(rest, dim))
    dim = len(fields_of(line.rstrip(b" \t\r")))
    if not dim or b"\0" in line:
        raise bad_line(
            f"{path}:1", "not a word and its numbers", printable(line.decode(errors="replace")),
            "a word and its numbers on each line; or first how many vectors and features there "
            "are,\n        two whole numbers, then these lines or word2vec's binary records",
            "give a file of word2vec, of GloVe, or fastText's .vec",
        )  # fmt: skip
    return VectorFileForm(dim, None, False)


def _is_text(rest: bytes, dim: int) -> bool:
    """Whether what follows a first line has numbers in decimals, at least in half of the fields."""
    fields = fields_of(rest.partition(b"\n")[0].rstrip(b" \t\r"))[-dim:]
    return 2 * sum([number_of(field) is not None for field in fields]) > len(fields)


def read_text(path: str | Path, file: BinaryIO, form: VectorFileForm, rows: VectorRows) -> None:
    """Read lines of a word and its numbers.

    Raises:
        DataError: see `read_vectors`.
    """
    size = Path(path).stat().st_size
    line = num_vectors = 0  # of the file before a block; of these, lines with a vector
    for block in _blocks(file):
        spans = split_lines(block, form.dim)
        numbers = np.full(spans.shape[1], -1)
        content = memoryview(block)  # type: ignore[arg-type]
        for k, (begin, end, stop) in enumerate(spans.T.tolist()):
            if line + k == 0:
                if bytes(content[:3]) == codecs.BOM_UTF8:
                    begin += 3
                if form.num_vectors is not None:
                    continue
            if begin == stop:
                continue
            if num_vectors == rows.limit:
                break
            word = bytes(content[begin:end]).strip(b" \t")
            if not word or _ends_in_number(word):
                raise _damaged(path, line + k + 1, bytes(content[begin:stop]), form.dim)
            numbers[k] = rows.take(word, line + k + 1)
            num_vectors += 1
        rows.reserve(1.02 * size / block.size * spans.shape[1])
        for k in read_rows(block, spans, numbers, rows.matrix)[:1].tolist():
            begin, _, stop = spans[:, k].tolist()
            raise _damaged(path, line + k + 1, bytes(content[begin:stop]), form.dim)
        line += spans.shape[1]
        if num_vectors == rows.limit:
            return
    if form.num_vectors not in (None, num_vectors):
        raise _wrong_number(path, form, num_vectors)


def _blocks(file: BinaryIO) -> Iterator[Array]:
    """A file's bytes in blocks of whole lines; each is there until the next is asked for."""
    buffer, end = bytearray(BLOCK_BYTES), 0
    while True:
        with memoryview(buffer) as view:
            while count := file.readinto(view[end:]):  # type: ignore[attr-defined]
                end += count
        last = buffer.rfind(b"\n", 0, end) + 1
        if end < len(buffer):
            last = end
        if last:
            yield np.frombuffer(buffer, np.uint8, last)
        if end < len(buffer):
            return
        if not last:  # a line that is longer
            buffer = buffer + bytearray(end)
        else:
            buffer[: end - last] = buffer[last:]
            end -= last


def _ends_in_number(word: bytes) -> bool:
    """Whether a word of several parts ends in a number, so that a line has too many."""
    fields = fields_of(word) if b" " in word or b"\t" in word else []
    return bool(fields) and number_of(fields[-1]) is not None


def _damaged(path: str | Path, number: int, line: bytes, dim: int) -> DataError:
    """The error of a line that is not a word and its numbers."""
    fields = fields_of(b" " + line)
    count = len(fields) - 1
    wrong = [field for field in fields[-dim:] if number_of(field) is None]
    if count < dim or not wrong:
        problem = f"{count} numbers behind the word, the first line has {dim}"
    else:
        shown = printable(wrong[0].decode(errors="replace"))
        problem = f"{shown[:40]!r} is not a finite number of float32"
    return bad_line(
        f"{path}:{number}", problem, printable(line.decode(errors="replace")), _RULE.format(dim),
        "get the file again, as a part may be lost; a word's parts are joined by _",
    )  # fmt: skip


def read_binary(path: str | Path, file: BinaryIO, form: VectorFileForm, rows: VectorRows) -> None:
    """Read records of a word, a space and its numbers as float32, lowest byte first.

    Raises:
        DataError: see `read_vectors`.
    """
    file.readline()
    dim, count = form.dim, form.num_vectors or 0
    expected = min(count, Path(path).stat().st_size // (4 * dim) + 1)  # a first line may be wrong
    content, at, checked = b"", 0, 0
    for record in range(1, (count if rows.limit is None else min(count, rows.limit)) + 1):
        space = content.find(b" ", at)
        while space < 0 or space + 1 + 4 * dim > len(content):
            more = b"" if space < 0 and len(content) - at > _MOST_WORD else file.read(BLOCK_BYTES)
            if not more:
                raise _wrong_number(path, form, record - 1)
            content, at = content[at:] + more, 0
            space = content.find(b" ")
            checked = _check(path, rows, checked)
        word = content[at:space].lstrip(b"\n")
        if not word:
            raise _bad_record(path, record, "no word", dim)
        row = rows.take(word, record)
        if row >= 0:
            rows.reserve(expected)
            rows.matrix[row] = np.frombuffer(content, "<f4", dim, space + 1)
        at = space + 1 + 4 * dim
    _check(path, rows, checked)


def _check(path: str | Path, rows: VectorRows, first: int) -> int:
    """Raise an error unless rows from `first` on are finite; how many rows there are."""
    last = len(rows.numbers)
    for row in np.flatnonzero(~np.isfinite(rows.matrix[first:last]).all(axis=1))[:1].tolist():
        problem = "a number is not finite"
        raise _bad_record(path, rows.places[first + row], problem, rows.matrix.shape[1])
    return last


def _bad_record(path: str | Path, number: int, problem: str, dim: int) -> DataError:
    return DataError(
        f"{path}, record {number}: {problem}.\n"
        f"  rule: a word, a space, and {dim} finite numbers in float32, lowest byte first\n"
        "  fix:  get the file again, as a part may be lost"
    )


def _wrong_number(path: str | Path, form: VectorFileForm, count: int) -> DataError:
    return DataError(
        f"{path}: its first line says {form.num_vectors:,} vectors of {form.dim} numbers, "
        f"{count:,} are there.\n  rule: the first line says how many follow\n"
        "  fix:  get the file again, as a part may be lost; or correct its first line"
    )
