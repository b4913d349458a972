"""Write documents with a trained model, or write on for their beginnings.

python -m examples.language_model.generate runs/language-model "Once" -n 3
dynbatch generate runs/language-model "Once" -n 3      # the same
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

import dynbatch as db
from dynbatch.commands.main import main as command
from dynbatch.errors import CheckpointError
from dynbatch.parameter import Array
from dynbatch.text import ByteTokenizer, CharacterTokenizer
from dynbatch.train import load_checkpoint, read_checkpoint
from examples.language_model.data import Tokenizer
from examples.language_model.model import LanguageModel

LOADER = "examples.language_model.generate:load"
"""The function that makes a checkpoint's model, by the name under which checkpoints have it."""


class DocumentTokenizer:
    """Text as the beginning of a document: its tokens stand behind the mark."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> Array:
        """The mark and the text's tokens, (T + 1,) int64."""
        return np.append([len(self._tokenizer)], self._tokenizer.encode(text))

    def decode(self, ids: ArrayLike) -> str:
        """The text of tokens."""
        return self._tokenizer.decode(ids)


def load(path: Path) -> tuple[LanguageModel, DocumentTokenizer, db.GenerationConfig]:
    """The model of a checkpoint, its tokenizer, and how it makes documents up: by drawing.

    Raises:
        CheckpointError: it is damaged, or not of this example.
    """
    info = read_checkpoint(path)
    try:
        tables = [info.shapes[f"model/{name}.weight"] for name in ("tokens", "places")]
        (num_tokens, width), (longest, _) = tables
        layers, heads = [info.extra["settings"][name] for name in ("layers", "heads")]
        alphabet = info.extra["characters"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{path}: a checkpoint, but not of this example, or of a version without generate.py."
            "\n  fix: give a file that examples/language_model/train.py wrote."
        ) from None
    model = LanguageModel(num_tokens, longest, width, layers, heads)
    load_checkpoint(path, model)
    tokenizer = ByteTokenizer() if alphabet is None else CharacterTokenizer(alphabet)
    config = db.GenerationConfig(
        max_new_tokens=longest, eos_token_id=(model.mark,), do_sample=True
    )  # fmt: skip
    return model, DocumentTokenizer(tokenizer), config


def main(argv: Sequence[str] | None = None) -> int:
    """`dynbatch generate`. Returns its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return command(["generate", "--loader", LOADER, *arguments])


if __name__ == "__main__":
    sys.exit(main())
