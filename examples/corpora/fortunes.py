"""Fortunes: 13,600 short texts, jokes and quotations, of very uneven lengths.

Their bytes: mean 169, median 99, the longest 2,145; a padded batch of 64 would have about six cells
for each byte. BSD collection; nothing of it is kept here.

Source: Debian's package `fortunes`, which is fetched, once, and unpacked into a cache folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text import read_documents
from examples.corpora.fetching import from_debian

PACKAGE = from_debian("fortunes")
LEFT_OUT = ("ethnic", "men-women")
"""Files that are not read, as many of their jokes are at the expense of others."""


@dataclass(frozen=True, slots=True)
class Fortune:
    """One text, and the file it stands in, such as "computers", "law" or "startrek"."""

    text: str
    topic: str


def load(folder: str | Path | None = None) -> list[Fortune]:
    """All of them but those of `LEFT_OUT`, by topic in alphabetical order.

    Args:
        folder: what the package unpacks to; by default it is fetched.

    Raises:
        DataError: it cannot be fetched, or there are no fortunes in the folder.
    """
    folder = PACKAGE.fetch() if folder is None else Path(folder)
    files = sorted((folder / "usr/share/games/fortunes").glob("*"))
    found = [
        Fortune(text, path.name)
        for path in files
        if not path.suffix and path.name not in LEFT_OUT  # beside each file an index and a link
        for text in read_documents(path)
    ]
    if not found:
        raise DataError(f"{folder}: no fortunes below it.\n  fix:  {PACKAGE.by_hand}")
    return found
