"""The corpora of the seq2seq example, by name or file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.tasks.task import Parts
from dynbatch.text.pairs import joined, read_pairs
from examples.corpora import libreoffice
from examples.seq2seq.corpus import Corpus, split
from examples.seq2seq.pronunciations import load_cmudict
from examples.seq2seq.scan import load_scan


def load_libreoffice() -> Corpus:
    """LibreOffice's messages, English to German, in words and punctuation marks.

    Raises:
        DataError: the package is not here and cannot be fetched (see `corpora.libreoffice`).
    """
    pairs = [(" ".join(english), " ".join(german)) for english, german in libreoffice.load()]
    return split("LibreOffice, English to German", joined(pairs), "word", "message")


CORPORA: dict[str, Callable[[], Corpus]] = {
    "cmudict": load_cmudict,
    "libreoffice": load_libreoffice,
    "cmudict-stress": partial(load_cmudict, stress=True),
    "scan-simple": partial(load_scan, "simple"),
    "scan-length": partial(load_scan, "length"),
    "scan-jump": partial(load_scan, "addprim_jump"),
}


def load_corpus(name: str, source_units: str = "words", target_units: str = "words") -> Corpus:
    """A built-in corpus, or any UTF-8 file of `source<TAB>target` lines.

    A file is divided by its sources into 90 % train, 5 % dev and 5 % test; one so small that
    nothing would be left to train on is trained on whole.

    Args:
        name: one of `CORPORA`, or the path of a file.
        source_units, target_units: what a token of the file is; built-in corpora ignore it.

    Raises:
        DataError: there is neither such a corpus nor such a file, or the file holds a bad line.
    """
    if name in CORPORA:
        return CORPORA[name]()
    if not Path(name).is_file():
        raise DataError(
            f"{name}: neither a file nor a corpus.\n"
            f"  rule: one of {', '.join(CORPORA)}, or a file with source<TAB>target on each line"
        )
    examples = read_pairs(name)
    token = "character" if target_units == "characters" else "word"
    corpus = split(Path(name).stem, examples, token, "sentence", source_units, target_units)
    return corpus if corpus.parts.train else replace(corpus, parts=Parts(examples, [], []))
