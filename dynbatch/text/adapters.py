"""Tokenizers of other libraries, the extra `text`: `tokenizers` and `sentencepiece`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.backend import Array
from dynbatch.models.pretrained.folder import damaged, fault, file_of, read_json, shorten
from dynbatch.text.units import ids_of, text_of


class HuggingFaceTokenizer:
    """The tokenizer of a tokenizer.json: GPT-2's, Llama's and most others.

    Args:
        path: of the file.

    Attributes:
        tokenizer: the `tokenizers.Tokenizer`, with all that it can do besides.

    Raises:
        ImportError:     `tokenizers` is not installed.
        CheckpointError: the file is absent, or the library refuses it.
    """

    def __init__(self, path: str | Path) -> None:
        library = _library("tokenizers")
        _require_file(Path(path))
        try:
            self.tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no other type
            raise damaged(Path(path), f"not a tokenizer's ({shorten(str(error))})") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The tokenizer of a checkpoint's folder. Nothing is cut off, nothing is padded."""
        return cls(file_of(Path(folder), "tokenizer.json"))

    def __len__(self) -> int:
        size: int = self.tokenizer.get_vocab_size()
        return size

    @property
    def num_ids(self) -> int:
        """Rows of the table that texts need: special tokens count if they stand around each."""
        added = self.tokenizer.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        texts = {*self.tokenizer.get_vocab().values()} - special
        return max([*texts, *self.encode("").tolist()], default=-1) + 1

    def encode(self, text: str, special: bool = True) -> Array:
        """The ids of a text, (T,) int64; with `special`, between those put around it."""
        encoded = self.tokenizer.encode(text_of(self, text), add_special_tokens=special)
        return np.array(encoded.ids, np.int64)

    def decode(self, ids: ArrayLike, special: bool = False) -> str:
        """The text of ids; with `special`, special tokens are shown.

        Raises:
            VocabularyError: an id is not one of its own.
        """
        text: str = self.tokenizer.decode(ids_of(self, ids), skip_special_tokens=not special)
        return text


class SentencePieceTokenizer:
    """The pieces of a sentencepiece model, with `</s>` at the end: T5's and Marian's.

    Args:
        path:       of the model, such as spiece.model.
        vocabulary: the ids of pieces, a JSON file, where they are not the model's own: Marian's
                    vocab.json beside source.spm and target.spm.
        end:        the piece after each text; None for none.

    Attributes:
        processor: the `sentencepiece.SentencePieceProcessor`.

    Raises:
        ImportError:     `sentencepiece` is not installed.
        CheckpointError: a file is absent or damaged, or has no `end` or no unknown piece.
    """

    def __init__(
        self, path: str | Path, vocabulary: str | Path | None = None, *, end: str | None = "</s>"
    ) -> None:
        library, path = _library("sentencepiece"), Path(path)
        _require_file(path)
        try:
            self.processor: Any = library.SentencePieceProcessor(model_proto=path.read_bytes())
        except Exception as error:  # a RuntimeError of the library, or an OSError
            raise damaged(path, f"not a sentencepiece model ({shorten(str(error))})") from error
        unknown = self.processor.id_to_piece(self.processor.unk_id())
        if vocabulary is None:
            count = self.processor.get_piece_size()
            self._ids = {self.processor.id_to_piece(k): k for k in range(count)}
        else:
            path = Path(vocabulary)
            self._ids = read_json(path, 1 << 26)
        needed = [unknown] if end is None else [unknown, end]
        if not all([type(self._ids.get(piece)) is int for piece in needed]):
            raise damaged(path, f"it does not give ids to {' and '.join(needed)}")
        self._unknown, self._end = self._ids[unknown], None if end is None else self._ids[end]
        self._pieces = {number: piece for piece, number in self._ids.items()}

    def __len__(self) -> int:
        return max(self._pieces) + 1

    @property
    def num_ids(self) -> int:
        """Rows of the table that texts need: `len`."""
        return len(self)

    def encode(self, text: str, special: bool = True) -> Array:
        """The ids of a text's pieces, (T,) int64; with `special`, the end follows."""
        pieces = self.processor.encode(text_of(self, text), out_type=str)
        ids = [self._ids.get(piece, self._unknown) for piece in pieces]
        if special and self._end is not None:
            ids.append(self._end)
        return np.array(ids, np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids; what only controls, such as the end, is not shown.

        Raises:
            VocabularyError: an id is not below `len` of the tokenizer.
        """
        pieces = [self._pieces.get(k) for k in ids_of(self, ids) if k != self._end]
        text: str = self.processor.decode_pieces([piece for piece in pieces if piece is not None])
        return text


def _require_file(path: Path) -> None:
    """Raise an error unless a file is there: the libraries would say that it is damaged."""
    if not path.is_file():
        raise fault(path, "there is no such file", "check the path")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} is not installed ({error}).\n  fix: pip install 'dynbatch[text]', which has it"
        ) from error
