"""The tokenizer of a translator, for `dynbatch generate`."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.backend import Array
from dynbatch.tasks.translation.pairs import join, tokenize
from dynbatch.text import Vocabulary

MOST_NAMED = 10
"""Unknown tokens of a source that its warning names."""

MOST_WARNINGS = 5
"""Sources whose unknown tokens are named."""


class SourceTokenizer:
    """Ids of sources, and text of targets. What the model never saw is named in a warning, of the
    first sources that have such.

    Args:
        source, target:             the vocabularies.
        source_units, target_units: "words" or "characters".
    """

    def __init__(
        self, source: Vocabulary, target: Vocabulary, source_units: str, target_units: str
    ) -> None:
        self._source, self._target = source, target
        self._source_units, self._target_units = source_units, target_units
        self._warnings = 0

    def encode(self, text: str) -> Array:
        """The ids of a source, (T,) int64."""
        tokens = tokenize(text.strip(), self._source_units)
        if not tokens:
            print("warning: an empty source, which the model never saw", file=sys.stderr)
        unknown = self._source.unknown_in(tokens)
        self._warnings += bool(unknown)
        if unknown and self._warnings > MOST_WARNINGS:
            if self._warnings == MOST_WARNINGS + 1:
                print("warning: more sources have such, which are not named", file=sys.stderr)
        elif unknown:
            first = unknown[:MOST_NAMED]
            named = ", ".join([f"{token!r} ({position})" for position, token in first])
            more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
            kind = self._source_units.removesuffix("s")
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            message = f"{shown!r}: unknown to the model, by {kind}: {named}{more}"
            if "\t" in text.strip() and self._warnings == 1:
                message += "\n  a source<TAB>target? give sources alone: cut -f 1 FILE"
            print(f"warning: {message}", file=sys.stderr)
        return self._source.encode(tokens)

    def decode(self, ids: ArrayLike) -> str:
        return join(self._target.decode(np.asarray(ids)), self._target_units)
