"""A corpus of the seq2seq example, and how it is divided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dynbatch.tasks.task import Parts, divided
from dynbatch.tasks.translation.translator import Translator
from dynbatch.text import ParallelText


@dataclass(frozen=True, slots=True)
class Corpus:
    """The examples of a task in three parts; `dev` is empty where a benchmark defines none.

    `token` and `sequence` are what one target token and one target are called in reports; the units
    are those of sources and targets.
    """

    name: str
    parts: Parts
    token: str = "token"
    sequence: str = "sentence"
    source_units: str = "words"
    target_units: str = "words"


def split(
    name: str, examples: Iterable[ParallelText], token: str, sequence: str,
    source_units: str = "words", target_units: str = "words",
) -> Corpus:  # fmt: skip
    """A corpus divided by its sources into 90 % train, 5 % dev and 5 % test."""
    parts = divided(examples, Translator.key)
    return Corpus(name, parts, token, sequence, source_units, target_units)
