"""The data of the seq2seq example: a corpus by name or file, its vocabularies, numbered pairs.

corpus = load_corpus("cmudict")
source, target = build_vocabularies(corpus.train)
pairs = number(corpus.train, source, target)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.parameter import Array
from dynbatch.text import Vocabulary
from examples.corpora import libreoffice
from examples.seq2seq.corpus import Corpus, Example, Tokens, Units, load_tsv, split
from examples.seq2seq.pronunciations import load_cmudict
from examples.seq2seq.scan import load_scan


def load_libreoffice() -> Corpus:
    """LibreOffice's messages, English to German, in words and punctuation marks.

    Raises:
        DataError: the package is not here and cannot be fetched (see `corpora.libreoffice`).
    """
    references: dict[Tokens, list[Tokens]] = {}
    for english, german in libreoffice.load():
        references.setdefault(english, []).append(german)
    examples = [Example(source, tuple(targets)) for source, targets in references.items()]
    return split("LibreOffice, English to German", examples, "word", "message")


CORPORA: dict[str, Callable[[], Corpus]] = {
    "cmudict": load_cmudict,
    "libreoffice": load_libreoffice,
    "cmudict-stress": partial(load_cmudict, stress=True),
    "scan-simple": partial(load_scan, "simple"),
    "scan-length": partial(load_scan, "length"),
    "scan-jump": partial(load_scan, "addprim_jump"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """One training example in ids, each side at its own length and without `<s>` or `</s>`.

    Args:
        source: (T_source,) int64.
        target: (T_target,) int64.
    """

    source: Array
    target: Array

    @property
    def num_tokens(self) -> int:
        """Tokens of both sides, for a budget by tokens."""
        return self.source.size + self.target.size


def load_corpus(name: str, source_units: Units = "words", target_units: Units = "words") -> Corpus:
    """A built-in corpus, or any UTF-8 file of `source<TAB>target` lines.

    A file is divided by its sources into 90 % train, 5 % dev and 5 % test (`corpus.hold_out`); one
    so small that nothing would be left to train on is trained on whole.

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
    examples = load_tsv(name, source_units, target_units)
    token = "character" if target_units == "characters" else "word"
    corpus = split(Path(name).stem, examples, token, "sentence", source_units, target_units)
    return corpus if corpus.train else replace(corpus, train=examples, dev=[], test=[])


def build_vocabularies(
    examples: Iterable[Example], min_count: int = 1
) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of the sources and of the references."""
    examples = list(examples)
    return (
        Vocabulary.build((example.source for example in examples), min_count),
        Vocabulary.build((target for e in examples for target in e.references), min_count),
    )


def number(examples: Iterable[Example], source: Vocabulary, target: Vocabulary) -> list[Pair]:
    """Training pairs in ids: one for each reference of each example."""
    pairs = []
    for example in examples:
        source_ids = source.encode(example.source)
        pairs += [Pair(source_ids, target.encode(tokens)) for tokens in example.references]
    return pairs
