"""Train a dependency parser on PetroGold and measure it on the test set.

python -m examples.parser.train
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import dynbatch as db
from dynbatch import backend, optim
from dynbatch.errors import DynbatchError
from dynbatch.train import SentenceBatches, Trainer
from examples.arguments import above_zero, positive, share
from examples.corpora.petrogold import Sentence, load
from examples.parser.data import Numbering
from examples.parser.evaluation import nearest_projective, neighbour, parse_all, scores
from examples.parser.model import Parser, Sizes
from examples.parser.transitions import SHIFT

PUBLISHED = "UAS 90.92 %  LAS 89.09 %"
"""Of a parser on PetroGold v2, an earlier split: not exactly comparable."""

MOST_VALIDATED = 300
"""Sentences of the development set that each epoch's validation parses."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    options = _arguments().parse_args(argv)
    try:
        run(options)
    except KeyboardInterrupt:
        return 130
    except DynbatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Load, train, and print what the test set says."""
    if options.threads is not None:
        db.set_num_threads(options.threads)
    db.seed(options.seed)
    device = backend.device(options.device)
    sentences, dev, test = load("train"), load("dev"), load("test")
    numbering = Numbering(sentences[: options.limit], has_tags=not options.no_tags)
    parser, trainer = prepare(options, sentences[: options.limit], dev, numbering)
    parser.to(device)
    trainer.fit(options.epochs)
    report(parser, numbering, test)


def prepare(
    options: argparse.Namespace,
    sentences: Sequence[Sentence],
    dev: Sequence[Sentence],
    numbering: Numbering,
) -> tuple[Parser, Trainer]:
    """A parser that does what the training set's trees need, and what trains it."""
    numbered = [numbering.number(sentence) for sentence in sentences]
    actions = sorted({action for one in numbered for action in one.actions} | {SHIFT})
    sizes = Sizes(lstm=options.hidden, stack=options.hidden, hidden=options.hidden)
    parser = Parser(numbering.sizes(), actions, sizes, options.dropout)
    batches = SentenceBatches(numbered, options.batch_size, options.seed)
    optimizer = optim.Adam(parser, lr=options.lr, betas=(0.9, 0.9))
    updates = sum([batches.num_batches(epoch) for epoch in range(options.epochs)])

    def validate(parser: Parser) -> float:
        found, _ = parse_all(parser, numbering, dev[:MOST_VALIDATED])
        result = scores(found, dev[:MOST_VALIDATED])
        print(f"  development set: {result}", flush=True)
        return result.uas

    print(f"{len(sentences):,} sentences, {len(actions)} actions", flush=True)
    print(f"{parser.num_parameters():,} parameters", flush=True)
    trainer = Trainer(
        parser,
        optimizer,
        lambda graph, parser, sentence: parser.loss(graph, sentence),
        batches,
        num_tokens=lambda sentence: len(sentence.actions),
        schedule=optim.Cosine(optimizer, updates, min(100, updates - 1), options.lr / 100),
        clip_norm=5.0,
        validate=validate,
        higher_is_better=True,
        show_progress=not options.quiet,
    )
    return parser, trainer


def report(parser: Parser, numbering: Numbering, test: Sequence[Sentence]) -> None:
    """Print the scores on the test set beside those of rules, and what bounds them."""
    found, runs = parse_all(parser, numbering, test)
    words = sum([len(sentence.words) for sentence in test])
    print(f"\nTest set, {len(test):,} sentences of {words:,} words, {runs:,} batched runs")
    rows = {
        "this parser": found,
        "head is the word before": [neighbour(sentence, -1) for sentence in test],
        "head is the next word": [neighbour(sentence, 1) for sentence in test],
        "best without crossing arcs": [nearest_projective(sentence) for sentence in test],
    }
    for name, trees in rows.items():
        print(f"  {name:<27} {scores(trees, test)}")
    print(f"  {'published, earlier split':<27} {PUBLISHED}")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.parser.train",
        description="Train a stack-LSTM dependency parser on PetroGold.",
    )
    add = parser.add_argument
    add("--epochs", type=positive, default=2, metavar="N", help="passes (%(default)s)")
    add("--limit", type=positive, metavar="N", help="train on the first N sentences (all)")
    add("--batch-size", type=positive, default=32, metavar="N", help="sentences (%(default)s)")
    add("--hidden", type=positive, default=100, metavar="N", help="units (%(default)s)")
    add("--dropout", type=share, default=0.2, metavar="P", help="probability (%(default)s)")
    add("--lr", type=above_zero, default=2e-3, metavar="X", help="of Adam, peak (%(default)s)")
    add("--no-tags", action="store_true", help="read words alone, not the treebank's tags")
    add("--seed", type=int, default=0, metavar="N", help="of all that is drawn (%(default)s)")
    add("--threads", type=positive, metavar="N", help="threads (one a processor)")
    add("--device", choices=backend.NAMES, default="cpu", help="where it runs (%(default)s)")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


if __name__ == "__main__":
    sys.exit(main())
