"""`Translator`: a model with its vocabularies, from text to text. One checkpoint holds it all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dynbatch as db
from dynbatch.backend import Device
from dynbatch.errors import CheckpointError
from dynbatch.text.vocabulary import MARKS, Vocabulary
from dynbatch.train import CheckpointInfo, load_checkpoint, read_checkpoint
from examples.seq2seq.corpus import Tokens, Units, join, tokenize
from examples.seq2seq.sizes import DESCRIPTION, MODELS, wrong_description

LOADER = "examples.seq2seq.generate:load"
"""The function that makes a checkpoint's model, by the name under which checkpoints have it."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One generated target: its tokens, and log_prob / length^length_penalty in nats."""

    tokens: Tokens
    score: float


@dataclass
class Translator:
    """What turns a source into targets.

    Args:
        sizes:         the arguments of the model, vocabularies apart: of `models.Seq2Seq` or of
                       `TransformerTranslation`.
        source, target: the vocabularies.
        source_units, target_units: how sources are cut into tokens and targets joined.
        max_length:    most tokens of a target, `</s>` included.
        seed:          of the model's initial values.
        kind:          of the model: "lstm" or "transformer".
    """

    sizes: dict[str, Any]
    source: Vocabulary
    target: Vocabulary
    source_units: Units
    target_units: Units
    max_length: int
    seed: int = 0
    kind: str = "lstm"

    def __post_init__(self) -> None:
        self.model = MODELS[self.kind](
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
            "model": self.kind,
            "sizes": self.sizes,
            "source": self.source.tokens[len(MARKS) :],
            "target": self.target.tokens[len(MARKS) :],
            "source_units": self.source_units,
            "target_units": self.target_units,
            "max_length": self.max_length,
        }

    @classmethod
    def described(cls, info: CheckpointInfo) -> Translator:
        """An untrained translator as a checkpoint describes it.

        Raises:
            CheckpointError: it describes none, or one that does not fit the checkpoint's tensors.
        """
        description = info.extra.get("translator")
        if description is None:
            raise CheckpointError(
                f"{info.path}: a checkpoint, but not of this example.\n"
                "  fix: give a file that examples/seq2seq/train.py wrote."
            )
        if isinstance(description, dict):  # an older one has no kind
            description = {"model": "lstm", **description}
        problem = wrong_description(description, info.shapes)
        if problem is None:
            try:
                vocabularies = {
                    name: Vocabulary(description[name]) for name in ("source", "target")
                }
                given = {name: description[name] for name in DESCRIPTION}
                kind = given.pop("model")
                return cls(**{**given, **vocabularies}, kind=kind)
            except (ValueError, TypeError) as error:  # a kind of attention that there is not, say
                problem = str(error)
        raise CheckpointError(
            f"{info.path}: damaged: its description of the model has {problem}; nothing was loaded."
            "\n  fix: take another copy, or an earlier checkpoint of the run."
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Translator:
        """The translator of a checkpoint.

        Raises:
            CheckpointError: the file is missing, damaged, or not of this example.
        """
        translator = cls.described(read_checkpoint(path))
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

    def generation(self) -> db.GenerationConfig:
        """How targets are written: greedily, or with beams whose scores are log-probabilities."""
        return db.GenerationConfig(
            max_new_tokens=self.max_length, eos_token_id=(self.model.end,), early_stopping=True,
            length_penalty=0.0,
        )  # fmt: skip

    def translate(
        self,
        sources: Sequence[Tokens],
        beam_size: int = 1,
        length_penalty: float = 0.0,
        n_best: int = 1,
        batch_size: int = 512,
    ) -> Iterator[list[Translation]]:
        """For each source, in order, its best targets: greedy, or with a beam.

        Args:
            batch_size: sources that are searched side by side.
        """
        config = replace(
            self.generation(), num_beams=beam_size, num_return_sequences=n_best,
            length_penalty=length_penalty,
        )  # fmt: skip
        for first in range(0, len(sources), batch_size):
            ids = [self.source.encode(tokens) for tokens in sources[first : first + batch_size]]
            for results in db.generate(self.model, ids, config):
                yield [
                    Translation(tuple(self.target.decode(one.tokens)), one.score) for one in results
                ]
