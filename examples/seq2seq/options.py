"""The settings of a training run, and the command line that sets them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from dynbatch.backend import NAMES
from dynbatch.errors import CheckpointError
from dynbatch.kernels.runtime.precision import MANTISSA_BITS
from dynbatch.tasks.options import above_zero, not_negative, passes, positive, share
from examples.seq2seq.corpus import Units
from examples.seq2seq.data import CORPORA

COMMAND = "python -m examples.seq2seq.train"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the result of a run depends on. A checkpoint keeps it, so that --resume needs none.

    Args:
        model:      "lstm", with `embed` and kinds of `attention`; or "transformer", with `heads`.
        limit:      examples to train on, drawn at random; None for all.
        batch_size: sentences in a mini-batch; unused where `max_tokens` is given.
        max_tokens: tokens of both sides in a mini-batch.
        warmup:     updates in which the learning rate rises to `lr`; then it falls as a cosine.
        clip:       largest norm of the gradient.
        patience:   validations without a better one after which training ends.
        matmul:     what products' factors are rounded to in training (see `db.Graph`).
    """

    data: str = "cmudict"
    model: str = "lstm"
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
    heads: int = 4
    dropout: float = 0.2
    label_smoothing: float = 0.0
    lr: float = 2e-3
    warmup: int = 200
    clip: float = 2.0
    patience: int | None = None
    matmul: str = "float32"
    seed: int = 0


DEMO: dict[str, Any] = {
    "limit": 36_000,
    "epochs": 2,
    "embed": 64,
    "hidden": 128,
    "dropout": 0.0,
    "lr": 4e-3,
}
"""A small model that learns CMUdict in minutes on two cores: about 11 % of phonemes are wrong."""


TRANSFORMER: dict[str, Any] = {
    "epochs": 12,
    "max_tokens": 2048,
    "layers": 2,
    "dropout": 0.1,
    "label_smoothing": 0.1,
    "lr": 1e-3,
    "warmup": 1000,
    "clip": 1.0,
}
"""What suits a Transformer; the usual settings suit an LSTM."""


@dataclass(frozen=True, slots=True)
class Options:
    """A command line: the run's settings, and what its result does not depend on.

    Args:
        given:        the settings that the command line names.
        data_changed: go on with `resume` though the data is another.
        beam:         hypotheses of each source of the test set; 1 is greedy.
    """

    settings: Settings
    given: dict[str, Any]
    output: Path
    resume: bool
    data_changed: bool
    demo: bool
    threads: int | None
    beam: int
    device: str
    quiet: bool


def parse(argv: Sequence[str] | None = None) -> Options:
    """The options of `train.py`. Prints and exits where argparse does."""
    parser = _parser()
    asked = parser.parse_known_args(argv)[0]
    if asked.demo:
        parser.set_defaults(**DEMO)
    if asked.model == "transformer":
        parser.set_defaults(**TRANSFORMER)
    found: dict[str, Any] = vars(parser.parse_args(argv))
    names = [field.name for field in fields(Settings)]
    settings = Settings(**{name: found[name] for name in names})
    name = "demo" if found["demo"] else Path(settings.data).stem
    if settings.model == "transformer":
        name += "-transformer"
    others = ("resume", "data_changed", "demo", "threads", "beam", "device", "quiet")
    parser.set_defaults(**dict.fromkeys(names, _NOT_GIVEN))
    named = vars(parser.parse_args(argv))
    given = {name: named[name] for name in names if named[name] is not _NOT_GIVEN}
    if settings.model == "transformer" and (found["demo"] or given.keys() & _OF_LSTM):
        unfit = ["demo"] * found["demo"] + [name for name in _OF_LSTM if name in given]
        parser.error(f"--{unfit[0]} is of --model lstm, not of a Transformer")
    return Options(
        settings=settings,
        given=given,
        output=found["output"] or Path("runs", name),
        **{key: found[key] for key in others},
    )


_NOT_GIVEN = object()
_OF_LSTM = ("embed", "attention")


def saved_settings(checkpoint: Path, saved: object) -> Settings:
    """The settings that a checkpoint holds: what the command line would take.

    Raises:
        CheckpointError: there are none, or they are damaged.
    """
    if saved is None:
        raise CheckpointError(
            f"{checkpoint}: a checkpoint, but not of this example.\n"
            "  fix: give the --output of a run that this command began."
        )
    try:
        return _checked(saved)
    except (argparse.ArgumentError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint}: damaged: its settings: {error}; nothing was loaded.\n"
            "  fix: take another copy of it, or begin a run in another --output."
        ) from error


def _checked(saved: object) -> Settings:
    """Settings out of JSON, through the command line, which knows what each may be."""
    if not isinstance(saved, dict):
        raise TypeError(f"{str(saved)[:40]!r} for an object")
    usual = asdict(Settings())
    arguments = []
    for name, value in saved.items():
        if name not in usual:
            raise TypeError(f"unknown: {name[:40]!r}")
        if value is None and usual[name] is None:
            continue
        kind = float if isinstance(usual[name], float) else str if name in _TEXTS else int
        is_right = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not is_right or isinstance(value, bool) or (kind is int and value >= 1 << 63):
            raise TypeError(f"{type(value).__name__!s} for {name!r}")
        arguments.append(f"--{name.replace('_', '-')}={value}")
    found = vars(_parser(_Raising).parse_args(arguments))
    return Settings(**{name: found[name] for name in usual})


_TEXTS = ("data", "model", "source_units", "target_units", "attention", "matmul")


class _Raising(argparse.ArgumentParser):
    """A parser that raises where others print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)


def _parser(
    kind: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    parser = kind(
        prog=COMMAND,
        description="Train a sequence-to-sequence model with attention, without padding.",
    )
    parser.set_defaults(**asdict(Settings()))
    run = parser.add_argument_group("run")
    run.add_argument("--demo", action="store_true", help="small model on CMUdict, a few minutes")
    run.add_argument("--output", type=Path, metavar="DIR", help="folder of the run (runs/NAME)")
    run.add_argument("--resume", action="store_true", help="go on with the run in --output")
    what = "with --resume: the data is another, on purpose; the vocabularies stay"
    run.add_argument("--data-changed", action="store_true", help=what)
    run.add_argument("--threads", type=positive, metavar="N", help="threads (one a processor)")
    what = "hypotheses of each test source (greedy)"
    run.add_argument("--beam", type=positive, default=1, metavar="K", help=what)
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
    what = "LSTMs with attention, or a Transformer, with settings that suit it (%(default)s)"
    group.add_argument("--model", choices=("lstm", "transformer"), help=what)
    numbers = {
        "embed": "features of the embeddings of an LSTM",
        "hidden": "units of an LSTM in each direction, features of a Transformer",
        "layers": "layers of encoder and decoder",
        "heads": "heads of a Transformer's attention",
    }
    for name, what in numbers.items():
        group.add_argument(f"--{name}", type=positive, metavar="N", help=f"{what} (%(default)s)")
    kinds = ("additive", "general")
    group.add_argument("--attention", choices=kinds, help="scores of an LSTM's (%(default)s)")
    group.add_argument("--dropout", type=share, metavar="P", help="probability (%(default)s)")


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--seed", type=not_negative, metavar="N", help="of all that is drawn (%(default)s)"
    )
    counts = {
        "epochs": "passes over the data (%(default)s)",
        "batch-size": "pairs in a mini-batch (%(default)s)",
        "max-tokens": "tokens of both sides in a mini-batch, instead",
        "warmup": "updates until the learning rate's peak (%(default)s)",
        "patience": "stop after N validations without a better one (never)",
    }
    for name, what in counts.items():
        kind = passes if name == "epochs" else positive
        group.add_argument(f"--{name}", type=kind, metavar="N", help=what)
    group.add_argument("--lr", type=above_zero, metavar="X", help="of Adam, peak (%(default)s)")
    group.add_argument("--clip", type=above_zero, metavar="X", help="gradient norm (%(default)s)")
    what = "what products' factors are rounded to (%(default)s)"
    group.add_argument("--matmul", choices=MANTISSA_BITS, help=what)
    what = "part of each target given to all tokens (%(default)s)"
    group.add_argument("--label-smoothing", type=share, metavar="P", help=what)
