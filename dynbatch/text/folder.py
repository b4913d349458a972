"""The tokenizer of a checkpoint's folder, by the files that are there."""

from __future__ import annotations

from pathlib import Path

from numpy.typing import ArrayLike

from dynbatch.backend import Array
from dynbatch.models.pretrained.folder import fault, file_of
from dynbatch.text.adapters import HuggingFaceTokenizer, SentencePieceTokenizer
from dynbatch.text.wordpiece import WordPiece

SENTENCEPIECE = ("spiece.model", "tokenizer.model")

TOKENIZER_FILES = (
    "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "source.spm", "target.spm", *SENTENCEPIECE,
)  # fmt: skip
"""All that a tokenizer may consist of."""


class TranslationTokenizer:
    """Marian's two sentencepiece models: one reads sources, the other writes targets."""

    def __init__(self, folder: Path) -> None:
        self._source, self._target = [
            SentencePieceTokenizer(file_of(folder, name), file_of(folder, "vocab.json"))
            for name in ("source.spm", "target.spm")
        ]

    def encode(self, text: str) -> Array:
        """The ids of a source, (T,) int64."""
        return self._source.encode(text)

    def decode(self, ids: ArrayLike) -> str:
        """The text of a target's ids."""
        return self._target.decode(ids)


FolderTokenizer = WordPiece | HuggingFaceTokenizer | SentencePieceTokenizer | TranslationTokenizer


def tokenizer_of(folder: Path) -> FolderTokenizer:
    """The tokenizer of a checkpoint's folder.

    Raises:
        CheckpointError: there is none, or it is damaged.
        ImportError:     it needs a package that is not installed.
    """
    if (folder / "vocab.txt").exists():
        return WordPiece.from_pretrained(folder)
    if (folder / "tokenizer.json").exists():
        return HuggingFaceTokenizer.from_pretrained(folder)
    if (folder / "source.spm").exists():
        return TranslationTokenizer(folder)
    for name in SENTENCEPIECE:
        if (folder / name).exists():
            return SentencePieceTokenizer(file_of(folder, name))
    raise fault(
        folder, "it has no tokenizer: neither vocab.txt nor tokenizer.json, source.spm, "
        f"{' or '.join(SENTENCEPIECE)}", "take the tokenizer's files from where the model is from",
    )  # fmt: skip
