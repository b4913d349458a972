"""The settings of a training run, and the command line that sets them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dynbatch.backend import NAMES
from examples.arguments import above_zero, positive, share
from examples.seq2seq.corpus import Units
from examples.seq2seq.data import CORPORA

COMMAND = "python -m examples.seq2seq.train"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the result of a run depends on. A checkpoint keeps it, so that --resume needs none.

    Args:
        limit:      examples to train on, drawn at random; None for all.
        batch_size: sentences in a mini-batch; unused where `max_tokens` is given.
        max_tokens: tokens of both sides in a mini-batch.
        warmup:     updates in which the learning rate rises to `lr`; then it falls as a cosine.
        clip:       largest norm of the gradient.
        patience:   validations without a better one after which training ends.
    """

    data: str = "cmudict"
    source_units: Units = "words"
    target_units: Units = "words"
    limit: int | None = None
    epochs: int = 20
    batch_size: int = 64
    max_tokens: int | None = None
    embed: int = 128
    hidden: int = 256
    layers: int = 1
    attention: str = "additive"
    dropout: float = 0.2
    label_smoothing: float = 0.0
    lr: float = 2e-3
    warmup: int = 200
    clip: float = 2.0
    patience: int | None = None
    seed: int = 0


DEMO: dict[str, Any] = {
    "limit": 80_000,
    "epochs": 2,
    "embed": 64,
    "hidden": 128,
    "dropout": 0.0,
    "lr": 4e-3,
}
"""A small model that learns CMUdict in a few minutes on two cores."""


@dataclass(frozen=True, slots=True)
class Options:
    """A command line: the run's settings, and what its result does not depend on."""

    settings: Settings
    output: Path
    resume: bool
    demo: bool
    threads: int | None
    device: str
    quiet: bool


def parse(argv: Sequence[str] | None = None) -> Options:
    """The options of `train.py`. Prints and exits where argparse does."""
    parser = _parser()
    if parser.parse_known_args(argv)[0].demo:
        parser.set_defaults(**DEMO)
    given: dict[str, Any] = vars(parser.parse_args(argv))
    own = {field.name: given[field.name] for field in fields(Settings)}
    settings = Settings(**own)
    name = "demo" if given["demo"] else Path(settings.data).stem
    return Options(
        settings=settings,
        output=given["output"] or Path("runs", name),
        **{key: given[key] for key in ("resume", "demo", "threads", "device", "quiet")},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Train a sequence-to-sequence model with attention, without padding.",
    )
    parser.set_defaults(**asdict(Settings()))
    run = parser.add_argument_group("run")
    run.add_argument("--demo", action="store_true", help="small model on CMUdict, a few minutes")
    run.add_argument("--output", type=Path, metavar="DIR", help="folder of the run (runs/NAME)")
    run.add_argument("--resume", action="store_true", help="go on with the run in --output")
    run.add_argument("--threads", type=positive, metavar="N", help="threads (one a processor)")
    run.add_argument("--device", choices=NAMES, default="cpu", help="where it runs (%(default)s)")
    run.add_argument("--quiet", action="store_true", help="no progress bar")
    data = parser.add_argument_group("data")
    names = f"{', '.join(CORPORA)}, or a file of source<TAB>target (%(default)s)"
    data.add_argument("--data", metavar="NAME", help=names)
    units = ("words", "characters")
    data.add_argument("--source-units", choices=units, help="tokens of a file (%(default)s)")
    data.add_argument("--target-units", choices=units, help="tokens of a file (%(default)s)")
    data.add_argument("--limit", type=positive, metavar="N", help="train on N examples (all)")
    _add_model(parser.add_argument_group("model"))
    _add_training(parser.add_argument_group("training"))
    return parser


def _add_model(group: argparse._ArgumentGroup) -> None:
    numbers = {
        "embed": "features of the embeddings",
        "hidden": "units of a layer, in each direction of the encoder",
        "layers": "layers of encoder and decoder",
    }
    for name, what in numbers.items():
        group.add_argument(f"--{name}", type=positive, metavar="N", help=f"{what} (%(default)s)")
    kinds = ("additive", "general")
    group.add_argument("--attention", choices=kinds, help="scores (%(default)s)")
    group.add_argument("--dropout", type=share, metavar="P", help="probability (%(default)s)")


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", type=int, metavar="N", help="of all that is drawn (%(default)s)")
    counts = {
        "epochs": "passes over the data (%(default)s)",
        "batch-size": "pairs in a mini-batch (%(default)s)",
        "max-tokens": "tokens of both sides in a mini-batch, instead",
        "warmup": "updates until the learning rate's peak (%(default)s)",
        "patience": "stop after N validations without a better one (never)",
    }
    for name, what in counts.items():
        group.add_argument(f"--{name}", type=positive, metavar="N", help=what)
    group.add_argument("--lr", type=above_zero, metavar="X", help="of Adam, peak (%(default)s)")
    group.add_argument("--clip", type=above_zero, metavar="X", help="gradient norm (%(default)s)")
    what = "part of each target given to all tokens (%(default)s)"
    group.add_argument("--label-smoothing", type=share, metavar="P", help=what)
