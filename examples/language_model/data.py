"""The text of a language model: documents in tokens, none cropped and none padded.

A document is one sentence of the mini-batch, at its own length. One that is longer than the model
looks back is cut into pieces that overlap: a piece begins with the end of the one before, which is
read and not predicted again. So each token of the text is predicted once an epoch, with its
document before it as far as the model looks back, and never less than the overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynbatch.commands.status import printable
from dynbatch.errors import DataError
from dynbatch.parameter import Array
from dynbatch.text import ByteTokenizer, CharacterTokenizer
from examples.corpora import fortunes, shakespeare
from examples.seq2seq.corpus import hold_out

Tokenizer = ByteTokenizer | CharacterTokenizer
"""Its ids, and one more, of the mark that stands before and after each document."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A document, or a part of a long one.

    Args:
        ids:     (T + 1,): each but the last is read, and the next one is predicted.
        context: of the T predictions so many are not counted, as a piece before has them.
    """

    ids: Array
    context: int

    @property
    def num_predicted(self) -> int:
        """Tokens that are predicted, and counted."""
        return int(self.ids.size) - 1 - self.context


def load(name: str) -> list[str]:
    """The documents of a corpus, "fortunes" or "shakespeare", or of any UTF-8 file.

    In a file, lines of one `%` stand between documents, as in files of fortunes; where there are
    none, blank lines do. Shakespeare's documents are his speeches.

    Raises:
        DataError: there is neither such a corpus nor such a file, or it is not UTF-8.
    """
    if name == "fortunes":
        return [each.text for each in fortunes.load()]
    if name == "shakespeare":
        return documents(shakespeare.load())
    try:
        return documents(Path(name).read_text("utf-8"))
    except OSError as error:
        raise DataError(
            f"{name}: cannot be read: {error.strerror}.\n"
            "  rule: fortunes, shakespeare, or a file of text"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {error.start + 1} is not UTF-8.\n"
            "  fix: convert the file, for example with iconv -f LATIN1 -t UTF-8."
        ) from None


def documents(text: str) -> list[str]:
    r"""The documents of a text; see `load`.

    Example:
        >>> documents("One\ntwo.\n\n\nThree."), documents("One.\n\nTwo.\n%\nThree.\n")
        (['One\ntwo.', 'Three.'], ['One.\n\nTwo.', 'Three.'])
    """
    if re.search(r"^%$", text, re.MULTILINE):
        return fortunes.split(text)
    found = [each.strip("\n") for each in re.split(r"\n[ \t]*\n", text)]
    return [each for each in found if each.strip()]


def split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Train and validation: a tenth of the documents, by their hash, so that equal ones go together
    and added ones move no others (see `seq2seq.corpus.hold_out`).

    Raises:
        DataError: one of the parts would be empty.
    """
    parts: tuple[list[str], list[str]] = ([], [])
    for text in texts:
        parts[hold_out(text) != "train"].append(text)
    if not all(parts):
        raise DataError(
            f"The text has {len(texts)} documents, of which {len(parts[1])} would be held out.\n"
            "  rule: both parts have documents\n"
            "  fix:  give more of them, with blank lines or lines of one % between them"
        )
    return parts


def encode(tokenizer: Tokenizer, text: str) -> Array:
    """A document's tokens between two marks, (T + 2,) int64."""
    mark = [len(tokenizer)]
    return np.concatenate((mark, tokenizer.encode(text), mark))


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as text for a terminal: what is no UTF-8 or cannot be printed is �."""
    return printable(tokenizer.decode(ids).expandtabs())


def pieces(ids: Array, longest: int, overlap: int) -> Iterator[Piece]:
    """A document in pieces of at most `longest` predictions, whose first `overlap` are of the piece
    before.

    Example:
        >>> [(each.ids.tolist(), each.context) for each in pieces(np.arange(7), 4, 2)]
        [([0, 1, 2, 3, 4], 0), ([2, 3, 4, 5, 6], 2)]
    """
    done = 0
    while done < ids.size - 1:
        begin = max(0, done - overlap)
        end = min(begin + longest, ids.size - 1)
        yield Piece(ids[begin : end + 1], done - begin)
        done = end
