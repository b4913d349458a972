"""Text as documents in tokens, none cropped and none padded.

A document is one sentence of the mini-batch, at its own length. One that is longer than the model
looks back is cut into pieces that overlap: a piece begins with the end of the one before, which is
read and not predicted again. So each token of the text is predicted once an epoch, with its
document before it as far as the model looks back, and never less than the overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.backend import Array
from dynbatch.errors import ArgumentError
from dynbatch.text import ByteTokenizer, CharacterTokenizer


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
        return int(self.ids.size) - 1 - self.context


class DocumentTokenizer:
    """The ids of documents: characters or bytes, and one more for the mark around a document.

    Args:
        characters: the alphabet; None for bytes.
    """

    def __init__(self, characters: str | None) -> None:
        self.characters = characters
        self._units = ByteTokenizer() if characters is None else CharacterTokenizer(characters)

    def __len__(self) -> int:
        return len(self._units) + 1

    @property
    def mark(self) -> int:
        """The id around documents: the last."""
        return len(self._units)

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a document: the mark."""
        return (self.mark,)

    def encode(self, text: str) -> Array:
        """The mark and a text's tokens, (T + 1,) int64: the beginning of a document."""
        return np.append([self.mark], self._units.encode(text))

    def whole(self, text: str) -> Array:
        """A document's tokens between two marks, (T + 2,) int64."""
        return np.append(self.encode(text), self.mark)

    def decode(self, ids: ArrayLike) -> str:
        tokens = np.asarray(ids)
        return self._units.decode(tokens[tokens != self.mark])


class PublishedTokenizer:
    """The ids of documents by the tokenizer of a published model, between its marks.

    Args:
        tokenizer: one of `dynbatch.text.folder.load_tokenizer`.
        begin:     the id before a document.
        ends:      ids that end one; the first stands behind a document.
    """

    def __init__(self, tokenizer: Any, begin: int, ends: tuple[int, ...]) -> None:
        self.begin, self.ends = begin, ends
        self._tokenizer = tokenizer

    def encode(self, text: str) -> Array:
        """The first mark and a text's tokens, (T + 1,) int64: the beginning of a document."""
        return np.append([self.begin], self._tokenizer.encode(text, special=False))

    def whole(self, text: str) -> Array:
        """A document's tokens between the marks, (T + 2,) int64."""
        return np.append(self.encode(text), self.ends[0])

    def decode(self, ids: ArrayLike) -> str:
        text: str = self._tokenizer.decode(ids)
        return text


def refuse_whole_overlap(overlap: int, longest: int) -> None:
    """Check that a piece predicts something beside what it shares with the one before.

    Raises:
        ArgumentError: it does not.
    """
    if overlap >= longest:
        raise ArgumentError(
            f"--overlap {overlap} with --longest {longest}: a piece would predict nothing.\n"
            "  rule: --overlap is below --longest, and below the most tokens that the model reads\n"
            f"  fix:  --overlap {longest // 4}"
        )


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
