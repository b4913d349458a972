"""The settings of a training run, and the command line that sets them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

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


DEMO = {"epochs": 2, "batch_size": 64, "embed": 64, "hidden": 128, "dropout": 0.0, "lr": 4e-3}
"""A small model that learns CMUdict in a few minutes on two cores."""


@dataclass(frozen=True, slots=True)
class Options:
    """A command line: the run's settings, and what its result does not depend on."""

    settings: Settings
    output: Path
    resume: bool
    demo: bool
    threads: int | None
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
        **{key: given[key] for key in ("resume", "demo", "threads", "quiet")},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Train a sequence-to-sequence model with attention, without padding.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(**asdict(Settings()))
    run = parser.add_argument_group("run")
    run.add_argument("--demo", action="store_true", help="small model on CMUdict, a few minutes")
    run.add_argument("--output", type=Path, help="folder of the run (default: runs/NAME)")
    run.add_argument("--resume", action="store_true", help="go on with the run in --output")
    run.add_argument("--threads", type=int, help="threads (default: all processors)")
    run.add_argument("--quiet", action="store_true", help="no progress bar")
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="NAME", help=f"{', '.join(CORPORA)}, or a TSV file")
    units = {"choices": ["words", "characters"], "help": "what a token of the file is"}
    data.add_argument("--source-units", **units)  # type: ignore[arg-type]
    data.add_argument("--target-units", **units)  # type: ignore[arg-type]
    data.add_argument("--limit", type=int, metavar="N", help="train on N examples")
    model = parser.add_argument_group("model")
    for name in ("embed", "hidden", "layers"):
        model.add_argument(f"--{name}", type=int, metavar="N", help=" ")
    model.add_argument("--attention", choices=["additive", "general"], help=" ")
    model.add_argument("--dropout", type=float, metavar="P", help=" ")
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, metavar="N", help="passes over the data")
    training.add_argument("--batch-size", type=int, metavar="N", help="sentences in a mini-batch")
    training.add_argument("--max-tokens", type=int, metavar="N", help="tokens, instead")
    training.add_argument("--lr", type=float, metavar="X", help="peak learning rate of Adam")
    training.add_argument("--warmup", type=int, metavar="N", help="updates until the peak")
    training.add_argument("--clip", type=float, metavar="X", help="largest gradient norm")
    training.add_argument("--label-smoothing", type=float, metavar="X", help=" ")
    training.add_argument("--patience", type=int, metavar="N", help="stop after N bad validations")
    training.add_argument("--seed", type=int, metavar="N", help=" ")
    return parser
