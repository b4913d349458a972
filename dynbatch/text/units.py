"""Text as characters or as bytes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.arguments import refused, shown
from dynbatch.backend import Array
from dynbatch.errors import DataError, VocabularyError


class CharacterTokenizer:
    """A number for each character of an alphabet.

    Args:
        characters: the alphabet, or any text of it: each counts once, in the order of Unicode.

    Attributes:
        characters: the alphabet as text, by which to make the tokenizer again.

    Example:
        >>> tokenizer = CharacterTokenizer("hello world")
        >>> ids = tokenizer.encode("low")
        >>> ids.tolist(), tokenizer.decode(ids), len(tokenizer)
        ([4, 5, 7], 'low', 8)
    """

    def __init__(self, characters: str | Iterable[str]) -> None:
        self.characters = "".join(sorted(set("".join(characters))))
        self._ids = {character: k for k, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Array:
        """The ids of a text's characters, (T,) int64.

        Raises:
            DataError: a character is not in the alphabet.
        """
        try:
            return np.array([self._ids[one] for one in text_of(self, text)], np.int64)
        except KeyError as error:
            raise DataError(
                f"CharacterTokenizer: {error.args[0]!r} is not among its {len(self)} characters.\n"
                "  fix: make it from all texts: CharacterTokenizer(texts)"
            ) from None

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids.

        Raises:
            VocabularyError: an id is not one of a character.
        """
        return "".join([self.characters[k] for k in ids_of(self, ids)])


class ByteTokenizer:
    """A number for each byte of UTF-8, 0 to 255: every text has one, and nothing is unknown.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("né").tolist(), tokenizer.decode([110, 195, 169])
        ([110, 195, 169], 'né')
    """

    def __len__(self) -> int:
        return 256

    def encode(self, text: str) -> Array:
        """The bytes of a text, (T,) int64. A surrogate without its other half becomes "?"."""
        return np.frombuffer(text_of(self, text).encode("utf-8", "replace"), np.uint8).astype(
            np.int64
        )

    def decode(self, ids: ArrayLike) -> str:
        """The text of bytes; those that are not UTF-8 become U+FFFD.

        Raises:
            VocabularyError: an id is below 0 or above 255.
        """
        return bytes(ids_of(self, ids)).decode("utf-8", "replace")


def text_of(owner: object, text: object) -> str:
    """The argument of an `encode`.

    Raises:
        ArgumentError: it is not text.
    """
    if isinstance(text, str):
        return text
    raise refused(
        type(owner).__name__, f"{shown(text)} to encode", "one text", "encode each text by itself"
    )


def ids_of(owner: object, ids: ArrayLike) -> list[int]:
    """The argument of a `decode`, for an owner with `len(owner)` ids.

    Raises:
        ArgumentError:   it is not a vector of integers.
        VocabularyError: an id is not one of the owner's.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise refused(
            type(owner).__name__, f"{array.dtype} {array.shape} to decode", "ids, a vector (T,)",
            "decode each sentence by itself",
        )  # fmt: skip
    size = len(owner)  # type: ignore[arg-type]
    for one in array.tolist():
        if not 0 <= one < size:
            raise VocabularyError.at_caller(
                f"{type(owner).__name__}: id {one} of {size}.\n  rule: 0 <= id < {size}\n"
                "  fix:  decode with the tokenizer that encoded"
            )
    return [int(one) for one in array]
