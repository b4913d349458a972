"""Train a dependency parser on PetroGold and measure it on the test set.

python -m examples.parser.train
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dynbatch.tasks.options import option
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import place, sample, train
from dynbatch.text import ParsedSentence
from examples.corpora.petrogold import load
from examples.parser.data import Numbering
from examples.parser.evaluation import PUBLISHED, nearest_projective, neighbour, parse_all, scores
from examples.parser.model import Parser, Sizes
from examples.parser.transitions import SHIFT
from examples.training import command


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The parser's own settings."""

    hidden: int = option(100, "units of each LSTM and of the layer that decides")
    no_tags: bool = option(False, "read words alone, not the treebank's tags")


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Train a stack-LSTM dependency parser on PetroGold."
    return command(Settings, run, argv, "examples.parser.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say, and print what the test set says."""
    sentences, test = sample(load("train"), settings), load("test")
    numbering = Numbering(sentences, has_tags=not settings.no_tags)
    numbered = [numbering.number(sentence) for sentence in sentences]
    actions = sorted({action for one in numbered for action in one.actions} | {SHIFT})
    hidden = settings.hidden
    sizes = Sizes(lstm=hidden, stack=hidden, hidden=hidden)
    parser = Parser(numbering.sizes(), actions, sizes, settings.dropout)
    print(
        f"{len(sentences):,} sentences, {len(test):,} for test; {len(actions)} actions\n"
        f"{parser.num_parameters():,} parameters; {place(settings)}",
        flush=True,
    )
    train(
        parser, lambda graph, parser, sentence: parser.loss(graph, sentence), numbered, settings,
        num_tokens=lambda sentence: len(sentence.actions),
    )  # fmt: skip
    report(parser, numbering, test)


def report(parser: Parser, numbering: Numbering, test: Sequence[ParsedSentence]) -> None:
    """Print the scores on the test set beside those of rules, and what bounds them."""
    found, runs = parse_all(parser, numbering, test)
    words = sum([len(sentence.words) for sentence in test])
    print(
        f"\nTest set, {len(test):,} sentences of {words:,} words, parsed in {runs:,} batched runs"
    )
    rows = {
        "this parser": found,
        "head is the word before": [neighbour(sentence, -1) for sentence in test],
        "head is the next word": [neighbour(sentence, 1) for sentence in test],
        "best without crossing arcs": [nearest_projective(sentence) for sentence in test],
    }
    for name, trees in rows.items():
        print(f"  {name:<27} {scores(trees, test)}")
    print(f"  {'published, earlier split':<27} {PUBLISHED}")


if __name__ == "__main__":
    sys.exit(main())
