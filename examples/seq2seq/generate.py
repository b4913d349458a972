"""Generate targets with a trained model: from arguments, a file, or standard input.

python -m examples.seq2seq.generate runs/demo padding dynamic --num-beams 5
dynbatch generate runs/demo padding dynamic --num-beams 5      # the same
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

import dynbatch as db
from dynbatch.commands.main import main as command
from dynbatch.parameter import Array
from examples.seq2seq.corpus import Tokens
from examples.seq2seq.sizes import Model
from examples.seq2seq.translator import LOADER, Translator

MOST_NAMED = 10
"""Unknown tokens of a source that its warning names."""


class SourceTokenizer:
    """Ids of sources, and text of targets. What the model never saw is named in a warning."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator

    def encode(self, text: str) -> Array:
        """The ids of a source, (T,) int64."""
        tokens = self._translator.tokenize(text.strip())
        self._warn_of_unknown(text, tokens)
        return self._translator.source.encode(tokens)

    def decode(self, ids: ArrayLike) -> str:
        """The text of a target's ids."""
        return self._translator.target_text(tuple(self._translator.target.decode(np.asarray(ids))))

    def _warn_of_unknown(self, source: str, tokens: Tokens) -> None:
        unknown = self._translator.source.unknown_in(tokens)
        if unknown:
            first = unknown[:MOST_NAMED]
            named = ", ".join([f"{token!r} ({position})" for position, token in first])
            more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
            kind = "character" if self._translator.source_units == "characters" else "word"
            shown = source if len(source) <= 40 else f"{source[:40]}…"
            message = f"{shown!r}: unknown to the model, by {kind}: {named}{more}"
            print(f"warning: {message}", file=sys.stderr)


def load(path: Path) -> tuple[Model, SourceTokenizer, db.GenerationConfig]:
    """The model of a checkpoint, its vocabularies, and how it chooses tokens: the most probable.

    Raises:
        CheckpointError: it is missing, damaged, or not of this example.
    """
    translator = Translator.load(path)
    return translator.model, SourceTokenizer(translator), translator.generation()


def main(argv: Sequence[str] | None = None) -> int:
    """`dynbatch generate`. Returns its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return command(["generate", "--loader", LOADER, *arguments])


if __name__ == "__main__":
    sys.exit(main())
