"""Texts as documents, to train on and to validate: a corpus by name, or any file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.tasks.task import Parts, divided
from dynbatch.text import read_documents
from dynbatch.text.documents import documents
from examples.corpora import fortunes, shakespeare

CORPORA: dict[str, Callable[[], list[str]]] = {
    "fortunes": lambda: [each.text for each in fortunes.load()],
    "shakespeare": lambda: documents(shakespeare.load()),
}
"""Texts by name; Shakespeare's documents are his speeches."""


def load(name: str) -> Parts:
    """The documents of a corpus by name, or of any UTF-8 file; a tenth is held out, by their hash.

    Raises:
        DataError: there is neither such a corpus nor such a file, or it is not UTF-8.
    """
    if name not in CORPORA and not Path(name).exists():
        raise DataError(
            f"{name}: there is no such file.\n  rule: {', '.join(CORPORA)}, or a file of text"
        )
    texts = CORPORA[name]() if name in CORPORA else read_documents(name)
    parts = divided(texts, str)
    return Parts(parts.train, parts.dev + parts.test, [])
