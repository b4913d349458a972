"""`Translator`: a model with its vocabularies, from text to text. One checkpoint holds it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from dynbatch.errors import problem_of
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.generate import generate
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models import TransformerTranslation
from dynbatch.nodes.node import Node
from dynbatch.optim import Adam, Optimizer
from dynbatch.padding import padded_peak
from dynbatch.tasks.task import Batches, Parts, WritingTask, damaged_description
from dynbatch.tasks.translation.coder import SourceTokenizer
from dynbatch.tasks.translation.padded import padded_loss, padded_pair
from dynbatch.tasks.translation.pairs import (
    NumberedPair,
    Tokens,
    join,
    targets_of,
    tokenize,
    units_of,
    vocabulary_of,
)
from dynbatch.tasks.translation.settings import TranslationSettings, fitted
from dynbatch.tasks.translation.sizes import DESCRIPTION, MODELS, SIZES, Model, wrong_description
from dynbatch.text import ParallelText, Vocabulary, read_pairs
from dynbatch.text.metrics import ErrorRates, error_rates, translation_scores
from dynbatch.train import CheckpointInfo, SentenceBatches, TokenBatches


@dataclass(frozen=True, slots=True)
class Translation:
    """One generated target: its tokens, and log_prob / length^length_penalty in nats."""

    tokens: Tokens
    score: float


class Translator(WritingTask):
    """A translator of a source into targets: texts of words, or of characters.

    Where the settings leave open what tokens are, they are words, unless more than a tenth of the
    running words of a side are there only once, so that they could only be unknown: words of a
    dictionary are spelled (87 % of CMUdict's are there once), and so are calls such as
    "alarm(at=07-26T02:50)" (17 %); those of SCAN, of LibreOffice's messages (3 and 5 %) and of
    phonemes are not. Words are six times shorter, and so quicker.

    Args:
        sizes:         the arguments of the model, vocabularies apart: of `models.Seq2Seq` or of
                       `models.TransformerTranslation`.
        source, target: the vocabularies.
        source_units, target_units: how sources are cut into tokens and targets joined: "words" or
                       "characters".
        max_length:    most tokens of a target, `</s>` included.
        seed:          of the model's initial values.
        kind:          of the model: "lstm" or "transformer".
    """

    name = "translation"
    form = "source<TAB>target on each line"
    most_validated = 1000
    Settings = TranslationSettings

    def __init__(
        self, sizes: dict[str, Any], source: Vocabulary, target: Vocabulary, source_units: str,
        target_units: str, max_length: int, seed: int = 0, kind: str = "lstm",
    ) -> None:  # fmt: skip
        self.sizes_of_model, self.kind = sizes, kind
        self.source, self.target = source, target
        self.source_units, self.target_units = source_units, target_units
        self.max_length = max_length
        self.model: Model = MODELS[kind](
            source_vocab=len(source), target_vocab=len(target), begin=Vocabulary.begin,
            end=Vocabulary.end, rng=seed, **sizes,
        )  # fmt: skip

    # From a file to a model -----------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path, settings: TranslationSettings) -> list[ParallelText]:
        return read_pairs(path)

    @classmethod
    def key(cls, text: ParallelText) -> str:
        return "".join(text.source.split())

    @classmethod
    def begin(cls, parts: Parts, settings: TranslationSettings) -> Self:
        """Vocabularies of the training examples, and an untrained model for them."""
        sources, targets = [text.source for text in parts.train], targets_of(parts.train)
        units = (units_of(sources, settings.source_units), units_of(targets, settings.target_units))
        longest = max([len(tokenize(target, units[1])) for target in targets], default=0)
        return cls(
            {name: getattr(settings, name) for name in SIZES[settings.model]},
            vocabulary_of(sources, units[0], settings.min_count),
            vocabulary_of(targets, units[1], settings.min_count),
            *units,
            # Places that a Transformer never saw mean nothing to it, and reading on costs squares.
            max_length=(1 if settings.model == "transformer" else 2) * longest + 10,
            seed=settings.seed,
            kind=settings.model,
        )

    @classmethod
    def fitted(cls, texts: Sequence[ParallelText], settings: TranslationSettings) -> dict[str, Any]:
        """Epochs for six million tokens of both sides, 40 at most; of few pairs smaller batches."""
        return fitted(texts, settings)

    # Training -------------------------------------------------------------------------------------

    def examples(self, texts: Sequence[ParallelText]) -> list[NumberedPair]:
        """Pairs in ids: one for each reference of each example."""
        pairs = []
        for text in texts:
            source = self.source.encode(tokenize(text.source, self.source_units))
            targets = [tokenize(target, self.target_units) for target in text.references]
            pairs += [NumberedPair(source, self.target.encode(target)) for target in targets]
        return pairs

    def loss(self, graph: Graph, model: Model, example: NumberedPair) -> Node:
        """Cross-entropy of one pair, summed over the target and its end."""
        return model.loss(graph, example.source, example.target)

    def num_tokens(self, example: NumberedPair) -> int:
        return example.target.size + 1

    def batches(self, examples: Sequence[NumberedPair], settings: TranslationSettings) -> Batches:
        """Mini-batches of `batch_size` pairs, or of `max_tokens` tokens of both sides."""
        if settings.max_tokens is None:
            return SentenceBatches(examples, settings.batch_size, settings.seed)
        return TokenBatches(
            examples, settings.max_tokens, lambda pair: pair.num_tokens, settings.seed
        )

    def optimizer(self, settings: TranslationSettings) -> Optimizer:
        """Adam, for a Transformer with the β₂ of its paper."""
        return Adam(self.model, settings.lr, (0.9, 0.98 if self.kind == "transformer" else 0.999))

    def padded_bytes(self, precision: str = FULL) -> Callable[[Sequence[NumberedPair]], int]:
        """The bytes that a mini-batch of pairs would take padded."""
        model = self.model
        if isinstance(model, TransformerTranslation):
            loss = partial(padded_loss, model)
            peak = padded_peak(model, model.loss, padded_pair, loss, precision)
        else:
            peak = padded_peak(model, model.loss, precision=precision)
        return lambda pairs: peak([(pair.source, pair.target) for pair in pairs])

    def evaluate(self, texts: Sequence[ParallelText]) -> dict[str, float]:
        """Error rates of targets that are written greedily; see `ErrorRates`."""
        rates = self.rates(texts, self.written(texts))
        return {"token error rate": rates.token, "sequence error rate": rates.sequence}

    def written(self, texts: Sequence[ParallelText], beam_size: int = 1) -> list[Tokens]:
        translations = self.translate([text.source for text in texts], beam_size)
        return [best.tokens for best, *_ in translations]

    def rates(self, texts: Sequence[ParallelText], translations: Sequence[Tokens]) -> ErrorRates:
        return error_rates(
            translations,
            [[tokenize(each, self.target_units) for each in text.references] for text in texts],
        )

    # What people see ------------------------------------------------------------------------------

    @classmethod
    def shown(cls, text: ParallelText) -> str:
        return f"{text.source}  →  {text.references[0]}"

    @classmethod
    def prompt(cls, text: ParallelText) -> str:
        return text.source

    @classmethod
    def sizes(cls, texts: Sequence[ParallelText]) -> str:
        return f"{len(texts):,} sources with {len(targets_of(texts)):,} targets"

    def tokens(self, held_out: Sequence[ParallelText]) -> list[str]:
        """The kind of tokens, and how many held-out targets have some that are never written."""
        source, target = [len(each.entries) for each in (self.source, self.target)]
        lines = [
            f"{source:,} different {self.source_units} in sources, "
            f"{target:,} {self.target_units} in targets"
        ]
        targets = [tokenize(each, self.target_units) for each in targets_of(held_out)]
        lacking = sum([bool(self.target.unknown_in(each)) for each in targets])
        if lacking * 20 > len(targets):
            fix = ": --target-units characters" if self.target_units == "words" else ""
            share = f"{lacking / len(targets):.0%}"
            lines += [f"{share} of the targets held out have others, which it cannot write{fix}"]
        return lines

    def told(self, found: dict[str, float], texts: Sequence[ParallelText]) -> str:
        return f"validation: {self._rates(found, texts)}"

    def report(self, parts: Parts) -> str:
        """The error rates of the test; of words BLEU and chrF too, where sacrebleu is installed."""
        answers = self.written(parts.test)
        told = str(self.rates(parts.test, answers))
        if self.target_units == "words":
            texts = [join(tokens, self.target_units) for tokens in answers]
            scores = translation_scores(texts, [text.references for text in parts.test])
            told += "".join([f", {name} {score:.1f}" for name, score in scores.items()])
        return told

    def _rates(self, measures: dict[str, float], texts: Sequence[ParallelText]) -> ErrorRates:
        return ErrorRates(measures["token error rate"], measures["sequence error rate"], len(texts))

    def samples(
        self, texts: Sequence[ParallelText], settings: TranslationSettings, rng: np.random.Generator
    ) -> list[str]:
        """Sources, their targets as found, and what is right where they are not."""
        lines = []
        for text, tokens in zip(texts, self.written(texts), strict=True):
            translation = join(tokens, self.target_units)
            lines += [text.source, f"  → {translation}"]
            if translation not in text.references:
                lines += [f"  ≠ {text.references[0]}"]
        return lines

    def unknown(self, texts: Sequence[ParallelText]) -> float:
        """The share of tokens, of both sides, that the vocabularies lack."""
        ids = [side for pair in self.examples(texts) for side in (pair.source, pair.target)]
        tokens = np.concatenate([*ids, np.zeros(0, np.int64)])
        return float(np.mean(tokens == Vocabulary.unknown)) if tokens.size else 0.0

    def vocabularies(self) -> dict[str, Vocabulary]:
        return {"source vocabulary": self.source, "target vocabulary": self.target}

    # Checkpoints, and text out of text ------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        """All but the parameters."""
        return {
            "model": self.kind,
            "sizes": self.sizes_of_model,
            "source": self.source.entries,
            "target": self.target.entries,
            "source_units": self.source_units,
            "target_units": self.target_units,
            "max_length": self.max_length,
        }

    @classmethod
    def described(cls, info: CheckpointInfo) -> Self:
        description: Any = info.extra.get("description")
        problem = wrong_description(description, info.shapes)
        if problem is None:
            try:
                vocabularies = {
                    name: Vocabulary(description[name]) for name in ("source", "target")
                }
                settings = {name: description[name] for name in DESCRIPTION}
                kind = settings.pop("model")
                return cls(**{**settings, **vocabularies}, kind=kind)
            except (ValueError, TypeError) as error:  # a kind of attention that there is not, say
                problem = problem_of(error)
        raise damaged_description(info, problem)

    def coder(self) -> SourceTokenizer:
        return SourceTokenizer(self.source, self.target, self.source_units, self.target_units)

    def generation(self) -> GenerationConfig:
        """The way targets are written: greedily, or with beams scored by log-probabilities."""
        return GenerationConfig(
            max_new_tokens=self.max_length, early_stopping=True, length_penalty=0.0
        )

    def translate(
        self, sources: Sequence[str], beam_size: int = 1, length_penalty: float = 0.0,
        n_best: int = 1, batch_size: int = 512,
    ) -> Iterator[list[Translation]]:  # fmt: skip
        """The best targets of each source, in order: greedy, or with a beam.

        Args:
            batch_size: sources that are searched side by side.
        """
        config = replace(
            self.generation(), num_beams=beam_size, num_return_sequences=n_best,
            length_penalty=length_penalty,
        )  # fmt: skip
        tokens = [tokenize(source, self.source_units) for source in sources]
        for first in range(0, len(tokens), batch_size):
            ids = [self.source.encode(each) for each in tokens[first : first + batch_size]]
            for results in generate(self.model, ids, config):
                yield [
                    Translation(tuple(self.target.decode(one.tokens)), one.score) for one in results
                ]
