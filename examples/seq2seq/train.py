"""Train a sequence-to-sequence model on CMUdict, SCAN or a file of pairs, without padding.

python -m examples.seq2seq.train --data scan-simple --hidden 128
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

import dynbatch as db
from dynbatch import Node, backend, optim
from dynbatch.commands.status import exit_status
from dynbatch.errors import CheckpointError
from dynbatch.padding import padded_peak
from dynbatch.train import (
    SentenceBatches,
    TokenBatches,
    Trainer,
    load_checkpoint,
    locked,
    read_metrics,
)
from dynbatch.train.batching import epoch_order
from examples.seq2seq.corpus import Corpus, Tokens
from examples.seq2seq.data import Pair, build_vocabularies, load_corpus, number
from examples.seq2seq.evaluation import bleu, evaluate, memory_saved
from examples.seq2seq.options import COMMAND, Options, Settings, parse
from examples.seq2seq.resume import Earlier, earlier_run, unknown_share
from examples.seq2seq.sizes import SIZES, Model
from examples.seq2seq.transformer import TransformerTranslation, padded_pair
from examples.seq2seq.translator import LOADER, Translator

CHECKPOINT, METRICS = "model.safetensors", "metrics.jsonl"

MOST_VALIDATED = 1000
"""Sentences of the development set that each epoch's validation looks at."""

SAVED_EVERY = 1000
"""Updates between two checkpoints; each epoch's end is saved too."""


@dataclass(frozen=True, slots=True)
class Task:
    """A corpus ready to be trained on."""

    corpus: Corpus
    pairs: list[Pair]
    translator: Translator
    batches: SentenceBatches[Pair] | TokenBatches[Pair]


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status is that of `exit_status`."""
    options = parse(argv)

    def alone() -> None:
        with locked(options.output / CHECKPOINT):
            run(options)

    return exit_status(alone)


def run(options: Options) -> None:
    """Train what the options say, and print what came out."""
    earlier = _earlier(options)
    settings = options.settings if earlier is None else earlier.settings
    if options.threads is not None:
        db.set_num_threads(options.threads)
    db.seed(settings.seed)
    device = backend.device(options.device)
    task = prepare(settings, earlier)
    task.translator.model.to(device)
    print(_introduction(task, settings), flush=True)
    trainer = make_trainer(task, settings, options)
    if earlier is not None:
        _go_on(trainer, task, earlier)
    trainer.fit(settings.epochs)
    if trainer.best_path is not None and trainer.best_path.exists():
        load_checkpoint(trainer.best_path, task.translator.model)
    report(task, options)


def prepare(settings: Settings, earlier: Earlier | None = None) -> Task:
    """Load the data, number it, and make a model for it; or take that of the run that goes on."""
    corpus = load_corpus(settings.data, settings.source_units, settings.target_units)
    train = corpus.train
    if settings.limit is not None:
        order = epoch_order(len(train), settings.seed, epoch=-1)
        train = [train[index] for index in order[: settings.limit].tolist()]
    source, target = build_vocabularies(train)
    if earlier is not None:
        source, target = earlier.vocabularies(source, target)
    pairs = number(train, source, target)
    if earlier is not None:
        translator = earlier.translator
    else:
        longest = max([pair.target.size for pair in pairs], default=0)
        translator = Translator(
            {name: getattr(settings, name) for name in SIZES[settings.model]},
            source,
            target,
            corpus.source_units,
            corpus.target_units,
            # Places that a Transformer never saw mean nothing to it, and reading on costs squares.
            max_length=(1 if settings.model == "transformer" else 2) * longest + 10,
            seed=settings.seed,
            kind=settings.model,
        )
    batches: SentenceBatches[Pair] | TokenBatches[Pair]
    if settings.max_tokens is None:
        batches = SentenceBatches(pairs, settings.batch_size, settings.seed)
    else:
        batches = TokenBatches(
            pairs, settings.max_tokens, lambda pair: pair.num_tokens, settings.seed
        )
    return Task(corpus, pairs, translator, batches)


def make_trainer(task: Task, settings: Settings, options: Options) -> Trainer:
    """Adam under a warm-up and a cosine; validation by greedy decoding where there is a dev set."""
    model = task.translator.model
    betas = (0.9, 0.98 if settings.model == "transformer" else 0.999)
    optimizer = optim.Adam(model, settings.lr, betas)
    updates = sum([task.batches.num_batches(epoch) for epoch in range(settings.epochs)])
    warmup = min(settings.warmup, updates - 1)
    dev = task.corpus.dev[:MOST_VALIDATED]
    checkpoint = options.output / CHECKPOINT
    padded = padded_peak(model, model.loss)
    if isinstance(model, TransformerTranslation):
        padded = padded_peak(model, model.loss, padded_pair, model.padded_loss)

    def sequence_error(model: Any) -> float:
        rates, _ = evaluate(task.translator, dev)
        if not options.quiet:
            tqdm.write(f"  development set: {rates}")  # above the progress bar
        return rates.sequence

    return Trainer(
        model,
        optimizer,
        pair_loss,
        task.batches,
        num_tokens=lambda pair: pair.target.size + 1,
        schedule=optim.Cosine(optimizer, updates, warmup, min_lr=settings.lr / 100),
        clip_norm=settings.clip,
        validate=sequence_error if dev else None,
        patience=settings.patience if dev else None,
        checkpoint_path=checkpoint,
        checkpoint_every=SAVED_EVERY,
        metrics_path=options.output / METRICS,
        padded_bytes=lambda pairs: padded([(pair.source, pair.target) for pair in pairs]),
        extra={
            "settings": asdict(settings),
            "translator": task.translator.description(),
            "loader": LOADER,
        },
        other_data={"digest of the development set": dev},
        make_graph=partial(db.Graph, task.translator.device, matmul=settings.matmul),
        show_progress=not options.quiet,
        resume_hint=f"{COMMAND} --output {options.output} --resume",
    )


def pair_loss(graph: db.Graph, model: Model, pair: Pair) -> Node:
    """Cross-entropy of one pair, summed over the target and its end."""
    return model.loss(graph, pair.source, pair.target)


def report(task: Task, options: Options) -> None:
    """Print error rates on held-out data, ten examples, speed and memory."""
    if task.corpus.test:
        _report_test(task, options.beam)
    else:
        print("\nNothing was held out: the data is too small.")
    records = [r for r in read_metrics(options.output / METRICS) if r.get("sentences_per_second")]
    if records:
        sentences = sum([r["sentences"] for r in records])
        seconds = sum([r["sentences"] / r["sentences_per_second"] for r in records])
        where = _place(task.translator)
        print(f"\nTraining: {sentences / seconds:,.0f} sentences per second, {where}")
    if saved := memory_saved(records):
        print(f"Memory of a training step at its peak: {saved}")
    print(f"Model: {_model_path(options.output)}")


def _report_test(task: Task, beam: int) -> None:
    corpus = task.corpus
    rates, found = evaluate(task.translator, corpus.test, beam)
    decoding = f"beam of {beam}" if beam > 1 else "greedy decoding"
    print(f"\nHeld-out test set, {rates.num_sequences:,} {corpus.sequence}s, {decoding}")
    names = (f"{corpus.token} error rate", f"{corpus.sequence} error rate", "exact match")
    width = max(len(name) for name in names)
    values = (rates.token, rates.sequence, 1 - rates.sequence)
    for name, value in zip(names, values, strict=True):
        print(f"  {name:<{width}}  {value:7.2%}")
    if corpus.token == "word":
        print(f"  {'BLEU':<{width}}  {bleu(found, corpus.test)}")
    lines = _examples(task, found)
    print(f"\n{len(lines)} {corpus.sequence}s that were not in the training data")
    for line in lines:
        print(f"  {line}")


def _examples(task: Task, found: Sequence[Tokens]) -> list[str]:
    """Ten of the test set, evenly spread, with what was right where the model was wrong."""
    examples, translator = task.corpus.test, task.translator
    shown = range(0, len(examples), max(1, len(examples) // 10))[:10]
    sources = [translator.source_text(examples[index].source) for index in shown]
    width = min(40, max(16, *[len(source) for source in sources]))
    lines = []
    for index, source in zip(shown, sources, strict=True):
        line = f"{source:<{width}}  {translator.target_text(found[index])}"
        if found[index] not in examples[index].references:
            right = translator.target_text(examples[index].references[0])
            line += f"   (right: {right})"
        lines.append(line)
    return lines


def _introduction(task: Task, settings: Settings) -> str:
    corpus, model = task.corpus, task.translator.model
    return (
        f"{corpus.name}: {len(task.pairs):,} training pairs, "
        f"{len(corpus.dev):,} {corpus.sequence}s for development, {len(corpus.test):,} for test\n"
        f"model: {model.num_parameters():,} parameters, {settings.layers} layer(s) of "
        f"{settings.hidden}; {_place(task.translator)}"
    )


def _place(translator: Translator) -> str:
    """What a run was computed on."""
    return "on a GPU" if translator.device.is_cuda else f"{db.num_threads()} threads"


def _earlier(options: Options) -> Earlier | None:
    """The run that goes on; None where a new one begins."""
    checkpoint = options.output / CHECKPOINT
    if options.resume:
        return earlier_run(options, checkpoint)
    if options.data_changed:
        raise CheckpointError("--data-changed is for runs that go on.\n  fix: give --resume, too.")
    if checkpoint.exists() and not options.demo:
        raise CheckpointError(
            f"{checkpoint}: there is a run already.\n"
            f"  fix: go on with it by --resume, remove it, or give another --output."
        )
    return None


def _go_on(trainer: Trainer, task: Task, earlier: Earlier) -> None:
    """Load the run, and say what is not as it would be expected."""
    trainer.resume(data_changed=earlier.data_changed)
    if earlier.data_changed:
        share = unknown_share(task.pairs)
        print(f"The data is another: {share:.2%} of it is unknown to the run's vocabularies.")
    if trainer.stopping.is_over:
        print(f"The run ended early by --patience {trainer.patience}; a larger one goes on.")


def _model_path(output: Path) -> Path:
    best = output / f"{Path(CHECKPOINT).stem}.best{Path(CHECKPOINT).suffix}"
    return best if best.exists() else output / CHECKPOINT


if __name__ == "__main__":
    sys.exit(main())
