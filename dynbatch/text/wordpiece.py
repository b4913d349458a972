"""BERT's tokenizer: words, then the longest pieces of a vocabulary.

Ids are those of Hugging Face's `tokenizers`. That library has the categories of Unicode 8, Python
those of a later version, so that a character which is younger may count otherwise as punctuation.

Source: Wu et al. 2016, arXiv:1609.08144, section 4.1; Devlin et al. 2019, arXiv:1810.04805.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.arguments import refused
from dynbatch.backend import Array
from dynbatch.errors import ArgumentError
from dynbatch.models.pretrained.folder import caused
from dynbatch.text.units import ids_of, text_of
from dynbatch.text.wordpiece_files import read_tokenizer

_CHINESE = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B81F),
    (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_CONTRACTIONS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class WordPiece:
    """Words of lower-case letters without accents, cut into the longest pieces there are.

    A word is what stands between spaces; a mark of punctuation or a Chinese character is one too.
    From left to right the longest piece that a word begins with is cut off, `##` marking pieces
    inside of words. A word of which some rest is not in the vocabulary is unknown as a whole.

    Args:
        pieces:        the vocabulary, piece by piece, or the id of each.
        lowercase:     whether letters are made small.
        strip_accents: whether accents are taken off; as `lowercase` by default.
        chinese:       whether a Chinese character is a word.
        special:       pieces that are found in a text as they stand, such as "[MASK]".
        start, end:    pieces put around each text.
        unknown:       the piece for an unknown word.
        longest:       a word of more characters is unknown.

    Attributes:
        ids: the id of each piece.

    Raises:
        ArgumentError: `start`, `end` or `unknown` is not a piece.

    Example:
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##afford", "##able", "cafe", "!"]
        >>> tokenizer = WordPiece(pieces)
        >>> tokenizer.tokens("Unaffordable café!")
        ['un', '##afford', '##able', 'cafe', '!']
        >>> tokenizer.encode("Unaffordable café!").tolist()
        [2, 4, 5, 6, 7, 8, 3]
        >>> tokenizer.decode([2, 4, 5, 6, 7, 8, 3])
        'unaffordable cafe!'
    """

    def __init__(
        self,
        pieces: Sequence[str] | Mapping[str, int],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese: bool = True,
        special: Sequence[str] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        start: Sequence[str] = ("[CLS]",),
        end: Sequence[str] = ("[SEP]",),
        unknown: str = "[UNK]",
        longest: int = 100,
    ) -> None:
        if not isinstance(pieces, Mapping):
            pieces = {piece: k for k, piece in enumerate(pieces)}
        self.ids = dict(pieces)
        for piece in (unknown, *start, *end):
            if piece not in self.ids:
                raise refused(
                    "WordPiece", f"{piece!r} is not among its {len(self.ids)} pieces",
                    "unknown, start and end are pieces", "name those of the vocabulary",
                )  # fmt: skip
        self._pieces = {number: piece for piece, number in self.ids.items()}
        self._lowercase, self._chinese, self._longest = lowercase, chinese, longest
        self._strips = lowercase if strip_accents is None else strip_accents
        self._unknown, self._start, self._end = unknown, list(start), list(end)
        known = sorted([one for one in special if one in self.ids], key=len, reverse=True)
        self._special = frozenset(known)
        self._parting = re.compile(f"({'|'.join(map(re.escape, known))})") if known else None

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The tokenizer of a checkpoint's folder: tokenizer.json, or vocab.txt.

        How long a text may be is not read: nothing is cut off, nothing is padded.

        Raises:
            CheckpointError: neither is there, or damaged, or not a BERT's.
        """
        arguments = read_tokenizer(Path(folder))
        try:
            return cls(**arguments)
        except (ArgumentError, TypeError) as error:
            fix = "take the tokenizer's files of a BERT"
            raise caused(Path(folder), "WordPiece", error, fix) from error

    def __len__(self) -> int:
        return max(self._pieces) + 1

    @property
    def num_ids(self) -> int:
        """Rows of the table that texts need: special pieces count if they stand around each."""
        around = {*self._start, *self._end}
        texts = [k for one, k in self.ids.items() if one in around or one not in self._special]
        return max(texts, default=-1) + 1

    def tokens(self, text: str) -> list[str]:
        """The pieces of a text, without what is put around it.

        Raises:
            ArgumentError: it is not text.
        """
        parts = self._parting.split(text_of(self, text)) if self._parting else [text]
        pieces: list[str] = []
        for part in parts:
            if part in self._special:
                pieces.append(part)
            else:
                for word in self._words(part):
                    pieces += self._cut(word)
        return pieces

    def encode(self, text: str, special: bool = True) -> Array:
        """The ids of a text's pieces, (T,) int64.

        Args:
            special: whether `start` and `end` stand around them.

        Raises:
            ArgumentError: it is not text.
        """
        tokens = self.tokens(text)
        if special:
            tokens = [*self._start, *tokens, *self._end]
        return np.array([self.ids[token] for token in tokens], np.int64)

    def decode(self, ids: ArrayLike, special: bool = False) -> str:
        """A text of these ids: pieces put together, and no space before a full stop or a comma.

        Args:
            special: whether special pieces are shown.

        Raises:
            VocabularyError: an id is not one of a piece.
        """
        text = ""
        for number in ids_of(self, ids):
            piece = self._pieces.get(number, self._unknown)
            if piece in self._special and not special:
                continue
            if text:
                piece = piece[2:] if piece.startswith("##") else f" {piece}"
            for long, short in _CONTRACTIONS:
                piece = piece.replace(long, short)
            text += piece
        return text

    def _words(self, text: str) -> list[str]:
        """Words, marks of punctuation and Chinese characters, normalised."""
        text = "".join(map(self._cleaned, text))
        if self._strips:
            text = unicodedata.normalize("NFD", text)
            text = "".join([one for one in text if unicodedata.category(one) != "Mn"])
        if self._lowercase:
            text = "".join([one.lower() for one in text])  # Σ has one small form here
        return "".join([f" {one} " if _is_punctuation(one) else one for one in text]).split()

    def _cleaned(self, character: str) -> str:
        """A character, a space for any, or nothing for one that is not seen."""
        if character in "\t\n\r" or unicodedata.category(character) in ("Zs", "Zl", "Zp"):
            return " "
        if character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Co"):
            return ""
        return f" {character} " if self._chinese and _is_chinese(character) else character

    def _cut(self, word: str) -> list[str]:
        if len(word) > self._longest:
            return [self._unknown]
        pieces, start = [], 0
        while start < len(word):
            for stop in range(len(word), start, -1):
                piece = word[start:stop] if start == 0 else f"##{word[start:stop]}"
                if piece in self.ids:
                    break
            else:
                return [self._unknown]
            pieces.append(piece)
            start = stop
        return pieces


def _is_punctuation(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def _is_chinese(character: str) -> bool:
    code = ord(character)
    return code >= 0x3400 and any([first <= code <= last for first, last in _CHINESE])
