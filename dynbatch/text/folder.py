"""The tokenizer of a checkpoint's folder, by the files that are there."""

from __future__ import annotations

import shutil
from pathlib import Path

from numpy.typing import ArrayLike

from dynbatch.atomic import replacing
from dynbatch.backend import Array
from dynbatch.errors import CheckpointError
from dynbatch.models.pretrained.folder import CONFIG, fault, file_of, read_json
from dynbatch.text.adapters import HuggingFaceTokenizer, SentencePieceTokenizer
from dynbatch.text.wordpiece import WordPiece

SENTENCEPIECE = ("spiece.model", "tokenizer.model")

TOKENIZER_FILES = (
    "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "vocab.json", "merges.txt", "source.spm",
    "target.spm", *SENTENCEPIECE, "generation_config.json",
)  # fmt: skip
"""All that a tokenizer may consist of, and how tokens are chosen."""


class TranslationTokenizer:
    """Marian's two sentencepiece models: one reads sources, the other writes targets."""

    def __init__(self, folder: Path) -> None:
        self._source, self._target = [
            SentencePieceTokenizer(file_of(folder, name), file_of(folder, "vocab.json"))
            for name in ("source.spm", "target.spm")
        ]

    @property
    def num_ids(self) -> int:
        """Rows of the table that texts need."""
        return max(self._source.num_ids, self._target.num_ids)

    def encode(self, text: str) -> Array:
        """The ids of a source, (T,) int64."""
        return self._source.encode(text)

    def decode(self, ids: ArrayLike) -> str:
        return self._target.decode(ids)


FolderTokenizer = WordPiece | HuggingFaceTokenizer | SentencePieceTokenizer | TranslationTokenizer


def load_tokenizer(folder: str | Path) -> FolderTokenizer:
    """The tokenizer of a checkpoint's folder, of the kind whose files are there.

    vocab.txt is read by `WordPiece`, tokenizer.json by `HuggingFaceTokenizer`, and sentencepiece's
    files by `SentencePieceTokenizer`. Its ids are compared with the model's config.json, if that is
    there. Special tokens may be beyond where no text has them: Gemma 3's for images are.

    Raises:
        CheckpointError: there is none, or it is damaged, or has more ids than the model's table.
        ImportError:     it needs a package that is not installed.
    """
    return tokenizer_for(folder, None)


def tokenizer_for(folder: str | Path, rows: object) -> FolderTokenizer:
    """The tokenizer of a folder, as `load_tokenizer` reads it, for a model that may lie elsewhere.

    Args:
        rows: of the model's table, vocab_size of its config.json; not compared if it is no number.

    Raises:
        CheckpointError: see `load_tokenizer`; or the tokenizer has more ids than so many.
        ImportError:     it needs a package that is not installed.
    """
    folder = Path(folder)
    tokenizer, known = _tokenizer_of(folder), [rows]
    if (folder / CONFIG).exists():
        known.append(read_json(file_of(folder, CONFIG)).get("vocab_size"))
    least = min([each for each in known if isinstance(each, int)], default=None)
    if least is not None and (num_ids := tokenizer.num_ids) > least:
        raise CheckpointError.at_caller(
            f"{folder}: its tokenizer has ids up to {num_ids - 1}, and the model's table "
            f"has {least} rows (vocab_size); nothing was loaded.\n"
            "  rule: each id of a text is the number of a row\n"
            "  fix:  take both from one copy of the model; after words were added to the tokenizer "
            "add rows in transformers: model.resize_token_embeddings(len(tokenizer))"
        )
    return tokenizer


def _tokenizer_of(folder: Path) -> FolderTokenizer:
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


def copy_tokenizer(source: str | Path, target: str | Path) -> list[str]:
    """Copy the files of a tokenizer, and generation_config.json, from one folder to another.

    Each file is replaced whole or not at all.

    Args:
        target: made if it is not there.

    Returns:
        The names of the files; none if there is no tokenizer.

    Raises:
        CheckpointError: one is a link that leads out of the folder, or the target is a file.
        OSError:         it cannot be written.
    """
    if Path(target).is_file():
        raise CheckpointError.at_caller(
            f"{target}: a file; no tokenizer was copied.\n"
            f"  fix:  give a folder, such as that of the file: {str(Path(target).parent)!r}"
        )
    names = [name for name in TOKENIZER_FILES if (Path(source) / name).exists()]
    for name in names:
        with replacing(Path(target) / name) as temporary:
            shutil.copyfile(file_of(Path(source), name), temporary)
    return names
