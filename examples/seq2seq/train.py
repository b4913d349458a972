"""Train a sequence-to-sequence model on CMUdict, SCAN or a file of pairs, without padding.

python -m examples.seq2seq.train --data scan-simple --hidden 128
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynbatch.errors import ArgumentError
from dynbatch.tasks.learning import begun, learn
from dynbatch.tasks.options import not_negative, one_of, option
from dynbatch.tasks.summary import memory_saved, speed
from dynbatch.tasks.training import place, sample
from dynbatch.tasks.translation.metrics import translation_scores
from dynbatch.tasks.translation.pairs import UNITS, join, targets_of
from dynbatch.tasks.translation.settings import TranslationSettings
from dynbatch.tasks.translation.translator import Translator
from dynbatch.train import load_checkpoint, read_checkpoint, read_metrics
from dynbatch.train.run_folder import BEST, CHECKPOINT, METRICS, model_file
from examples.seq2seq.corpus import Corpus
from examples.seq2seq.data import CORPORA, load_corpus
from examples.training import command

COMMAND = "examples.seq2seq.train"
INSTALL = "pip install 'dynbatch[translation]'"

DEMO: dict[str, Any] = {
    "limit": 36_000, "epochs": 2, "embed": 64, "hidden": 128, "dropout": 0.0, "lr": 4e-3
}  # fmt: skip
"""A small model that learns CMUdict in minutes on two cores: about 11 % of phonemes are wrong."""


@dataclass(frozen=True, kw_only=True)
class Settings(TranslationSettings):
    """The settings of a translation, and those of the demo."""

    data: str = option("cmudict", f"{', '.join(CORPORA)}, or a file of source<TAB>target", str)
    source_units: str = option("words", "tokens of a file", one_of(*UNITS))
    target_units: str = option("words", "tokens of a file", one_of(*UNITS))
    hidden: int = option(256, "units of an LSTM in each direction, features of a Transformer")
    samples: int = option(0, "held-out sources translated after each epoch", not_negative)
    output: str | None = option(None, "folder of the run (runs/NAME)", str, is_kept=False)
    beam: int = option(1, "hypotheses of each test source", is_kept=False)
    demo: bool = option(False, "small model on CMUdict, a few minutes", is_kept=False)

    @classmethod
    def usual(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The demo's settings, those of a Transformer, and a folder by the name of the data."""
        name, found = Path(given.get("data", "cmudict")).stem, super().usual(given)
        if given.get("demo"):
            if found:
                raise ArgumentError("--demo is of --model lstm, not of a Transformer.")
            name, found = "demo", DEMO
        elif found:
            name += "-transformer"
        return {**found, "output": str(Path("runs", name))}


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status is that of `exit_status`."""
    what = "Train a sequence-to-sequence model with attention, without padding."
    return command(Settings, run, argv, COMMAND, what)


def run(settings: Settings) -> None:
    """Train what the settings say, and print what came out."""
    output = Path(str(settings.output))
    if settings.resume:
        read_checkpoint(output / CHECKPOINT)
    elif settings.demo:
        for name in (CHECKPOINT, BEST):
            (output / name).unlink(missing_ok=True)
    corpus = load_corpus(settings.data, settings.source_units, settings.target_units)
    settings = replace(settings, source_units=corpus.source_units, target_units=corpus.target_units)
    parts = replace(corpus.parts, train=sample(corpus.parts.train, settings))
    translator = begun(Translator, parts, settings)
    print(
        f"{corpus.name}: {len(targets_of(parts.train)):,} training pairs, "
        f"{len(parts.dev):,} {corpus.sequence}s for development, {len(parts.test):,} for test\n"
        f"model: {translator.model.num_parameters():,} parameters, {settings.layers} layer(s) of "
        f"{settings.hidden}; {place(settings)}",
        flush=True,
    )
    hint = f"python -m {COMMAND} --output {output} --resume"
    learn(translator, parts, settings, metric="sequence error rate", hint=hint)
    best = model_file(output)
    load_checkpoint(best, translator.model)
    if parts.test:
        report(corpus, translator, settings.beam)
    else:
        print("\nNothing was held out: the data is too small.")
    records = read_metrics(output / METRICS)
    if found := speed(records):
        print(f"\nTraining: {found}, {place(settings)}")
    if saved := memory_saved(records):
        print(f"Memory of a training step at its peak: {saved}")
    print(f"Model: {best}")


def report(corpus: Corpus, translator: Translator, beam: int) -> None:
    """Print error rates on the test set, and ten examples."""
    test = corpus.parts.test
    found = translator.written(test, beam)
    rates = translator.rates(test, found)
    decoding = f"beam of {beam}" if beam > 1 else "greedy decoding"
    print(f"\nHeld-out test set, {rates.num_sequences:,} {corpus.sequence}s, {decoding}")
    names = (f"{corpus.token} error rate", f"{corpus.sequence} error rate", "exact match")
    width = max(len(name) for name in names)
    values = (rates.token, rates.sequence, 1 - rates.sequence)
    for name, value in zip(names, values, strict=True):
        print(f"  {name:<{width}}  {value:7.2%}")
    if corpus.token == "word":
        texts = [" ".join(tokens) for tokens in found]
        right = [[" ".join(each.split()) for each in text.references] for text in test]
        scores = translation_scores(texts, right, tokenize="none")  # the corpus's own tokens
        for name in ("BLEU", "chrF"):
            shown = f"{scores[name]:.1f}" if scores else f"not measured: {INSTALL}"
            print(f"  {name:<{width}}  {shown}")
    lines = _examples(corpus, [join(tokens, corpus.target_units) for tokens in found])
    print(f"\n{len(lines)} {corpus.sequence}s that were not in the training data")
    for line in lines:
        print(f"  {line}")


def _examples(corpus: Corpus, found: Sequence[str]) -> list[str]:
    """Ten of the test set, evenly spread, with what was right where the model was wrong."""
    examples = corpus.parts.test
    shown = range(0, len(examples), max(1, len(examples) // 10))[:10]
    width = min(40, max(16, *[len(examples[index].source) for index in shown]))
    lines = []
    for index in shown:
        line = f"{examples[index].source:<{width}}  {found[index]}"
        if found[index] not in examples[index].references:
            line += f"   (right: {examples[index].references[0]})"
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main())
