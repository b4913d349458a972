"""Command lines of the examples: what their numbers may be, and settings as a dataclass."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

from dynbatch.commands import status
from dynbatch.commands.arguments import positive
from dynbatch.train.interrupts import Terminated

Settings = TypeVar("Settings")


def exit_status(run: Callable[[], None]) -> int:
    """Run an example. The exit status is that of a command of dynbatch, or 128 + the signal's
    number after SIGTERM (143) and SIGHUP (129)."""
    try:
        return status.exit_status(run)
    except Terminated as end:
        return 128 + end.number


MOST_EPOCHS = 1_000_000


def passes(text: str) -> int:
    """A number of epochs from the command line; as all of them are planned, not any number."""
    value = positive(text)
    if value > MOST_EPOCHS:
        raise argparse.ArgumentTypeError(f"{text} is above {MOST_EPOCHS:,}")
    return value


def not_negative(text: str) -> int:
    """A whole number of at least 0, from the command line."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def above_zero(text: str) -> float:
    """A number above 0, from the command line."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def share(text: str) -> float:
    """A number from 0 to below 1, from the command line."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def option(
    default: Any, what: str, kind: Callable[[str], Any] = positive, is_first: bool = False
) -> Any:
    """A field of a settings dataclass that is an option of the command line, too.

    Args:
        default:  its value where it is not given. One that is False makes a switch.
        what:     its line in `--help`.
        kind:     makes the value of the text, or refuses it.
        is_first: it is given by its place, without a `--name`, as a file to read.
    """
    return field(default=default, metadata={"help": what, "type": kind, "first": is_first})


def parse(settings: type[Settings], argv: Sequence[str] | None, prog: str, what: str) -> Settings:
    """Settings from a command line: `--batch-size` for `batch_size`. Exits where argparse does.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Sizes:
        ...     hidden_size: int = option(3, "units of a layer")
        ...     crf: bool = option(False, "score transitions")
        >>> parse(Sizes, ["--hidden-size", "7"], "train", "Train.")
        Sizes(hidden_size=7, crf=False)
    """
    parser = argparse.ArgumentParser(prog=prog, description=what)
    for each in fields(settings):  # type: ignore[arg-type]  # a dataclass
        flag, said = f"--{each.name.replace('_', '-')}", each.metadata["help"]
        kind = each.metadata["type"]
        shown = said if each.default is None else f"{said} (%(default)s)"
        if each.metadata["first"]:
            place: dict[str, Any] = {"nargs": "?", "metavar": each.name.upper()}
            parser.add_argument(each.name, type=kind, default=each.default, help=shown, **place)
        elif each.default is False:
            parser.add_argument(flag, action="store_true", help=said)
        else:
            parser.add_argument(flag, type=kind, default=each.default, metavar="X", help=shown)
    return settings(**vars(parser.parse_args(argv)))
