"""The settings of a translation, and those that suit a Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dynbatch.errors import ArgumentError
from dynbatch.tasks.options import above_zero, not_negative, one_of, option, passes, share
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.translation.pairs import UNITS, targets_of, tokenize, units_of
from dynbatch.text import ParallelText


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(TaskSettings):
    """The settings of a translation; `Translator` says how the usual ones were chosen."""

    model: str = option(
        "lstm", "lstm with attention, or transformer, with settings that suit it",
        one_of("lstm", "transformer"),
    )  # fmt: skip
    source_units: str = option("auto", "tokens: words, characters", one_of("auto", *UNITS))
    target_units: str = option("auto", "tokens: words, characters", one_of("auto", *UNITS))
    min_count: int = option(1, "tokens seen less often are unknown")
    epochs: int = option(20, "passes over the data (by its size, 2 to 40)", passes)
    batch_size: int = option(64, "pairs in a mini-batch")
    max_tokens: int | None = option(None, "tokens of both sides in a mini-batch, instead")
    embed: int = option(128, "features of the embeddings of an LSTM")
    hidden: int = option(128, "units of an LSTM in each direction, features of a Transformer")
    layers: int = option(1, "layers of encoder and decoder")
    attention: str = option(
        "additive", "scores of an LSTM's: or general", one_of("additive", "general")
    )
    heads: int = option(4, "heads of a Transformer's attention")
    dropout: float = option(0.2, "probability that a feature is dropped while training", share)
    label_smoothing: float = option(0.0, "part of each target given to all tokens", share)
    lr: float = option(2e-3, "peak of Adam's learning rate", above_zero)
    clip: float = option(2.0, "largest norm of the gradient", above_zero)
    samples: int = option(3, "held-out sources translated after each epoch", not_negative)

    transformer: ClassVar[Mapping[str, Any]] = {
        "epochs": 12,
        "hidden": 256,
        "max_tokens": 2048,
        "layers": 2,
        "dropout": 0.1,
        "label_smoothing": 0.1,
        "lr": 1e-3,
        "warmup": 1000,
        "clip": 1.0,
    }
    """What suits a Transformer; the usual settings suit an LSTM."""

    @classmethod
    def usual(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The usual settings that others decide: those of a Transformer.

        Raises:
            ArgumentError: one of an LSTM alone is given for a Transformer.
        """
        if given.get("model") != "transformer":
            return {}
        for name in ("embed", "attention"):
            if name in given:
                raise ArgumentError(
                    f"--{name} is of --model lstm, not of a Transformer.\n  fix:  leave it out"
                )
        return dict(cls.transformer)


def fitted(texts: Sequence[ParallelText], settings: TranslationSettings) -> dict[str, Any]:
    """See `Task.fitted`: a Transformer's mini-batches stay as they are."""
    sources, targets = [text.source for text in texts], targets_of(texts)
    num_tokens = 0
    for side, asked in ((sources, settings.source_units), (targets, settings.target_units)):
        units = units_of(side, asked)
        num_tokens += sum([len(tokenize(text, units)) for text in side])
    epochs = min(40, max(2, round(6e6 / max(1, num_tokens))))
    if settings.model == "transformer":
        return {"epochs": epochs}
    batch_size = min(settings.batch_size, max(8, len(targets) // 50))
    warmup = max(1, min(settings.warmup, epochs * len(targets) // batch_size // 5))
    return {"epochs": epochs, "batch_size": batch_size, "warmup": warmup}
