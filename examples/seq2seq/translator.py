"""`Translator`: a model with its vocabularies, from text to text. One checkpoint holds it all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dynbatch.backend import Device
from dynbatch.errors import CheckpointError
from dynbatch.models import Seq2Seq, beam_search, greedy_search
from dynbatch.train import load_checkpoint, read_checkpoint
from examples.seq2seq.corpus import Tokens, Units, join, tokenize
from examples.seq2seq.vocabulary import MARKS, Vocabulary


@dataclass(frozen=True, slots=True)
class Translation:
    """One generated target: its tokens, and log_prob / length^length_penalty in nats."""

    tokens: Tokens
    score: float


@dataclass
class Translator:
    """What turns a source into targets.

    Args:
        sizes:         the arguments of `Seq2Seq`, vocabularies apart.
        source, target: the vocabularies.
        source_units, target_units: how sources are cut into tokens and targets joined.
        max_length:    most tokens of a target, `</s>` included.
        seed:          of the model's initial values.
    """

    sizes: dict[str, Any]
    source: Vocabulary
    target: Vocabulary
    source_units: Units
    target_units: Units
    max_length: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.model = Seq2Seq(
            source_vocab=len(self.source),
            target_vocab=len(self.target),
            begin=Vocabulary.begin,
            end=Vocabulary.end,
            rng=self.seed,
            **self.sizes,
        )

    @property
    def device(self) -> Device:
        """Where the model is, and so where it trains and searches."""
        return self.model.parameters()[0].device

    def description(self) -> dict[str, Any]:
        """All but the parameters, for the `extra` of a checkpoint."""
        return {
            "sizes": self.sizes,
            "source": self.source.tokens[len(MARKS) :],
            "target": self.target.tokens[len(MARKS) :],
            "source_units": self.source_units,
            "target_units": self.target_units,
            "max_length": self.max_length,
        }

    @classmethod
    def described(cls, description: dict[str, Any]) -> Translator:
        """An untrained translator of that `description`."""
        vocabularies = {name: Vocabulary(description[name]) for name in ("source", "target")}
        return cls(**{**description, **vocabularies})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Translator:
        """The translator of a checkpoint.

        Raises:
            CheckpointError: the file is missing, damaged, or not of this example.
        """
        description = read_checkpoint(path).extra.get("translator")
        if description is None:
            raise CheckpointError(
                f"{path}: a checkpoint, but not of this example.\n"
                "  fix: give a file that examples/seq2seq/train.py wrote."
            )
        translator = cls.described(description)
        load_checkpoint(path, translator.model)
        return translator

    def tokenize(self, text: str) -> Tokens:
        """A source as tokens."""
        return tokenize(text, self.source_units)

    def source_text(self, tokens: Tokens) -> str:
        """A source as text."""
        return join(tokens, self.source_units)

    def target_text(self, tokens: Tokens) -> str:
        """A target as text."""
        return join(tokens, self.target_units)

    def translate(
        self,
        sources: Sequence[Tokens],
        beam_size: int = 1,
        length_penalty: float = 0.0,
        n_best: int = 1,
        batch_size: int = 256,
    ) -> Iterator[list[Translation]]:
        """For each source, in order, its best targets: greedy, or with a beam.

        Args:
            batch_size: sources that are searched side by side.
        """
        for first in range(0, len(sources), batch_size):
            ids = [self.source.encode(tokens) for tokens in sources[first : first + batch_size]]
            if beam_size == 1:
                found = [[one] for one in greedy_search(self.model, ids, self.max_length)]
            else:
                found = beam_search(
                    self.model, ids, beam_size, self.max_length, length_penalty, n_best
                )
            for hypotheses in found:
                yield [
                    Translation(tuple(self.target.decode(one.tokens)), one.score)
                    for one in hypotheses
                ]
