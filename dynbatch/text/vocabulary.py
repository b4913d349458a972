"""`Vocabulary`: tokens and their ids, with three marks and, as nothing is padded, no `<pad>`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from dynbatch.atomic import write_text
from dynbatch.backend import Array
from dynbatch.data_set import DataSet, in_order
from dynbatch.errors import DataError, DtypeError, VocabularyError

MARKS = ("<s>", "</s>", "<unk>")


class Vocabulary:
    """A numbering of tokens: `<s>` is 0, `</s>` is 1, `<unk>` is 2, the tokens follow in order.

    The marks stand for themselves only where the code puts them: a token of the data that is
    spelled `</s>` is an unknown token, not an end.

    Args:
        tokens: distinct tokens, none of them a mark.

    Attributes:
        begin, end, unknown: the ids of the marks, for a decoder's first input and last target:
            vocabulary.encode(words, marks=True).

    Raises:
        DataError: a token appears twice or is a mark.

    Example:
        >>> letters = Vocabulary.build(["cab", "ab"])
        >>> letters.encode("abz").tolist(), letters.decode([3, 4, letters.end, 3])
        ([3, 4, 2], ['a', 'b'])
    """

    begin, end, unknown = 0, 1, 2

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = [*MARKS, *tokens]
        self._ids = {token: index for index, token in enumerate(self.tokens) if token not in MARKS}
        self._has_words = any([len(token) > 1 for token in self._ids])
        if len(self._ids) != len(self.tokens) - len(MARKS):
            repeated = [token for token, count in Counter(self.tokens).items() if count > 1]
            raise DataError(
                f"Vocabulary: {repeated[:5]} given twice, or a mark.\n"
                f"  rule: tokens are distinct and none of {', '.join(MARKS)}"
            )

    @classmethod
    def build(
        cls, sequences: Iterable[Iterable[str]] | DataSet[Iterable[str]], min_count: int = 1
    ) -> Vocabulary:
        """The tokens seen at least `min_count` times, most frequent first, ties by spelling.

        Raises:
            ArgumentError: `sequences` has keys, is a text, or no data.
        """
        read = in_order("Vocabulary.build", "sequences", sequences)
        counts = Counter(token for sequence in read for token in sequence)
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(token for token, count in ordered if count >= min_count and token not in MARKS)

    @property
    def entries(self) -> list[str]:
        """The tokens without the marks: `Vocabulary(vocabulary.entries)` is equal to it."""
        return self.tokens[len(MARKS) :]

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens with {', '.join(MARKS)})"

    def encode(self, tokens: Iterable[str], marks: bool = False) -> Array:
        """Ids of the tokens, (T,) int64; `unknown` for those not listed.

        Args:
            marks: puts `begin` before them and `end` behind, (T + 2,): a decoder reads all but the
                last and predicts all but the first.

        Raises:
            DtypeError: `tokens` is a string, whose letters would be tokens, but words are
                listed.
        """
        if isinstance(tokens, str) and self._has_words:
            raise DtypeError.at_caller(
                f"Vocabulary.encode: {tokens[:40]!r} is a string, whose letters would be tokens.\n"
                "  rule: a sentence is a list of tokens, as the vocabulary was built of\n"
                "  fix:  encode(text.split()), or [text] for one token"
            )
        ids = [self._ids.get(token, self.unknown) for token in tokens]
        return np.array([self.begin, *ids, self.end] if marks else ids, np.int64)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Tokens up to the first `</s>`, without `<s>`.

        Raises:
            VocabularyError: an id is below 0 or not below `len(vocabulary)`.
        """
        tokens: list[str] = []
        for position, id_ in enumerate(ids):
            if not 0 <= id_ < len(self.tokens):
                raise VocabularyError(
                    f"Vocabulary: id {id_} at position {position}.\n"
                    f"  rule: 0 <= id < {len(self.tokens)}\n"
                    "  fix:  decode with the vocabulary that the model was trained with"
                )
            if id_ == self.end:
                break
            if id_ != self.begin:
                tokens.append(self.tokens[id_])
        return tokens

    def unknown_in(self, tokens: Iterable[str]) -> list[tuple[int, str]]:
        """The tokens that are not listed, each with its position, counted from 1.

        Example:
            >>> Vocabulary("ab").unknown_in("abc")
            [(3, 'c')]
        """
        return [(k, token) for k, token in enumerate(tokens, start=1) if token not in self._ids]

    def difference(self, other: Vocabulary) -> str:
        """The difference of `other`, in words; "" if there is none.

        Example:
            >>> Vocabulary(["a", "b"]).difference(Vocabulary(["b", "c"]))
            "1 new, 1 gone, 1 with another id; the first: id 3 was 'a', is 'b'"
        """
        if self.tokens == other.tokens:
            return ""
        new = sum([token not in self for token in other.tokens[len(MARKS) :]])
        gone = sum([token not in other for token in self.tokens[len(MARKS) :]])
        moved = sum([other._ids.get(token, id_) != id_ for token, id_ in self._ids.items()])
        pairs = enumerate(zip_longest(self.tokens, other.tokens))
        first, (was, is_) = next((k, pair) for k, pair in pairs if pair[0] != pair[1])
        return (
            f"{new:,} new, {gone:,} gone, {moved:,} with another id; the first: id {first} was "
            f"{_shown(was)}, is {_shown(is_)}"
        )

    def save(self, path: str | Path) -> None:
        """Write `{"tokens": [...]}` as JSON.

        Raises:
            DataError: the file cannot be written; one already there is untouched.
        """
        try:
            write_text(path, json.dumps({"tokens": self.tokens}, ensure_ascii=False))
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}.") from error

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """The vocabulary that `save` wrote.

        Raises:
            DataError: the file cannot be opened, is not JSON, or is not a vocabulary. Names the
                file.
        """
        try:
            content = json.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not a vocabulary: {error}.") from error
        tokens = content.get("tokens") if isinstance(content, dict) else None
        if not _is_token_list(tokens):
            raise DataError(
                f"{path}: not a vocabulary.\n"
                f'  rule: {{"tokens": [{", ".join(MARKS)}, then distinct tokens]}}\n'
                "  fix:  give the file that Vocabulary.save wrote beside the model."
            )
        return cls(tokens[len(MARKS) :])


def _shown(token: str | None) -> str:
    return "nothing" if token is None else repr(token[:40])


def _is_token_list(tokens: Any) -> TypeGuard[list[str]]:
    return (
        isinstance(tokens, list)
        and all(isinstance(token, str) for token in tokens)
        and tuple(tokens[: len(MARKS)]) == MARKS
        and len(set(tokens)) == len(tokens)
    )
