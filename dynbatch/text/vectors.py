"""Word vectors that others have trained: those of a file, and a table of them for a vocabulary."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dynbatch.arguments import number, refused, size
from dynbatch.backend import Array
from dynbatch.errors import DataError
from dynbatch.models.initial import Rng, generator
from dynbatch.text.lines import GZIP, HEAD_BYTES, printable, refuse_compressed
from dynbatch.text.vector_files import FORM_BYTES, VectorRows, form_of, read_binary, read_text
from dynbatch.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class PretrainedVectors:
    """Words, and a vector for each.

    Args:
        words:  N distinct words, in the order of the file.
        matrix: (N, D) float32, their vectors.
    """

    words: list[str]
    matrix: Array

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"PretrainedVectors({len(self):,} words, {self.matrix.shape[1]} features)"

    def found(self, vocabulary: Vocabulary) -> Array:
        """The ids of the tokens that have a vector here, (F,) int64, increasing.

        They are the rows of `table` that are vectors of the file, for `models.Embedding.of(table,
        frozen_rows=...)`.
        """
        return np.sort(vocabulary.encode([word for word in self.words if word in vocabulary]))

    def table(
        self, vocabulary: Vocabulary, *, scale: float | None = None, rng: Rng = None
    ) -> Array:
        """A table for `models.Embedding.of`: the row of each token that is here is its vector.

        The other rows, those of the three marks among them, are drawn from a normal distribution of
        mean 0.

        Args:
            scale: its standard deviation; by default the root mean square of `matrix`.
            rng:   generator or seed; by default the values follow from `dynbatch.seed`.

        Returns:
            (V, D) float32, a row for each token of the vocabulary.

        Raises:
            ArgumentError: there is no vector to take the deviation from.
        """
        if scale is None and not self.words:
            raise refused(
                "PretrainedVectors.table", "there are no vectors to take a deviation from",
                "the vocabulary shares a word with the file, or scale is given",
                "spell tokens as the file does; many have lower-case words only",
            )  # fmt: skip
        if scale is None:
            scale = float(np.sqrt(np.mean(np.square(self.matrix), dtype=np.float64)))
        scale = number("PretrainedVectors.table", "scale", scale, "[0, inf)")
        shape = (len(vocabulary), self.matrix.shape[1])
        table = generator(rng).standard_normal(shape, np.float32)
        table *= np.float32(scale)
        known = [k for k, word in enumerate(self.words) if word in vocabulary]
        table[vocabulary.encode([self.words[k] for k in known])] = self.matrix[known]
        return table


def read_vectors(
    path: str | Path, vocabulary: Vocabulary | None = None, *, limit: int | None = None
) -> PretrainedVectors:
    """The word vectors of a file of word2vec, GloVe or fastText.

    In a file of text each line is a word and D numbers, one space or tab between them. A first line
    of two whole numbers says how many lines there are, and D; otherwise the first line says D. All
    that stands before the last D fields is the word, which may have spaces. word2vec's binary form
    is told by its content: the same first line, then of each word its UTF-8, a space and D float32.
    Either may be compressed by gzip. If a word is there again, its first vector counts.

    Args:
        vocabulary: its tokens alone are read; by default all words are. Numbers of other words are
            not looked at.
        limit:      so many lines are read at most. Most files have frequent words first.

    Raises:
        DataError: the file cannot be read or has no vectors, or not as many as it says; a line has
            another number of fields, or one that is not a finite number; or a word is not UTF-8.
            Names file and line, or the number of the record.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "vectors.txt")
        ...     _ = path.write_text("the 0.5 -0.25\\nfox 1 2e-1\\nden 0 0.75\\n")
        ...     vectors = read_vectors(path, Vocabulary(["fox", "hen", "den"]))
        >>> vectors.words, vectors.matrix.tolist()
        (['fox', 'den'], [[1.0, 0.20000000298023224], [0.0, 0.75]])
    """
    if limit is not None:
        limit = size("read_vectors", "limit", limit)
    wanted = None
    if vocabulary is not None:
        wanted = frozenset([token.encode() for token in vocabulary.entries])
    with _opened(path) as file:
        form = form_of(path, file.read(FORM_BYTES))
        file.seek(0)
        rows = VectorRows(form.dim, wanted, limit)
        (read_binary if form.is_binary else read_text)(path, file, form, rows)
    return PretrainedVectors(_decoded(path, rows), rows.matrix[: len(rows.numbers)])


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            if head.startswith(GZIP):
                with gzip.open(file) as content:
                    yield content  # type: ignore[misc]
            else:
                refuse_compressed(path, head)
                yield file
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _decoded(path: str | Path, rows: VectorRows) -> list[str]:
    words = []
    for word, row in rows.numbers.items():
        try:
            words.append(word.decode())
        except UnicodeDecodeError:
            shown = printable(word.decode("utf-8", "replace"))
            raise DataError(
                f"{path}:{rows.places[row]}: the word {shown[:40]!r} is not UTF-8.\n"
                "  rule: words are UTF-8; in the binary form D float32 follow each\n"
                "  fix:  give a vocabulary, then only its words are read; or convert the words"
            ) from None
    return words
