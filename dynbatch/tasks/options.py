"""Settings as a dataclass whose fields are the options of a command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS, SHORT

Settings = TypeVar("Settings")

MOST_EPOCHS = 1_000_000


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def passes(text: str) -> int:
    """A number of epochs; as all of them are planned, not any number."""
    value = positive(text)
    if value > MOST_EPOCHS:
        raise argparse.ArgumentTypeError(f"{text} is above {MOST_EPOCHS:,}")
    return value


def not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def share(text: str) -> float:
    """A number from 0 to below 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    def chosen(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return chosen


precision_name = one_of(*MANTISSA_BITS)
"""The kind of an option that says what factors of products are rounded to."""

precision_of_values = one_of(FULL, SHORT)
"""The kind of an option that says what values are rounded to."""

ROUNDING = {
    "precision": "what values are rounded to, kept in half the memory: bfloat16",
    "matmul": "what products' factors are rounded to: tf32, bfloat16 (as --precision)",
}
"""Lines of `--help`."""


def device_name(text: str) -> str:
    """The name of a device. Whether there is one, `backend.device` says when it is used."""
    kind, colon, number = text.partition(":")
    if text == "cpu" or (kind == "cuda" and bool(colon) is number.isdecimal()):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is not one of cpu, cuda, cuda:N; GPUs are counted from 0"
    )


def option(
    default: Any, what: str, kind: Callable[[str], Any] = positive, *, is_first: bool = False,
    is_kept: bool = True,
) -> Any:  # fmt: skip
    """A field of a settings dataclass that is an option of the command line, too.

    Args:
        default:  its value where it is not given. One that is False makes a switch.
        what:     its line in `--help`, with the default behind it unless it ends in parentheses; ""
                  for a setting that checkpoints hold and nobody gives.
        kind:     makes the value of the text, or refuses it.
        is_first: it is given by its place, without a `--name`, as a file to read.
        is_kept:  it belongs to the run, which goes on with it, so that checkpoints hold it.
    """
    metadata = {"help": what, "type": kind, "first": is_first, "kept": is_kept}
    return field(default=default, metadata=metadata)


def flag_of(name: str) -> str:
    """The option of a setting: `--batch-size` for `batch_size`, `--from` for `from_`."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    settings: type[Any],
    names: Container[str] | None = None,
    varying: Container[str] = (),
) -> None:
    """Add an option for each field of a settings dataclass: `--batch-size` for `batch_size`.

    What the command line does not name is not in the parser's result.

    Args:
        names:   of the fields to add; by default all.
        varying: names of fields whose default the task decides.
    """
    for each in [one for one in fields(settings) if names is None or one.name in names]:
        flag, said = flag_of(each.name), each.metadata["help"]
        kind = each.metadata["type"]
        if not said:
            continue
        shown = said
        if each.name in varying:
            shown = f"{said} (by the task)"
        elif each.default not in (None, MISSING) and not said.endswith(")"):
            shown = f"{said} ({each.default})"
        shown = shown.replace("%", "%%")
        usual: dict[str, Any] = {"default": argparse.SUPPRESS, "help": shown}
        if each.metadata["first"]:
            parser.add_argument(each.name, type=kind, nargs="?", metavar=each.name.upper(), **usual)
        elif each.default is False:
            usual["help"] = said
            parser.add_argument(flag, dest=each.name, action="store_true", **usual)
        else:
            parser.add_argument(flag, dest=each.name, type=kind, metavar="X", **usual)


def given(settings: type[Any], argv: Sequence[str] | None, prog: str, what: str) -> dict[str, Any]:
    """The settings that a command line names, by name. Exits where argparse does.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Sizes:
        ...     hidden_size: int = option(3, "units of a layer")
        ...     crf: bool = option(False, "score transitions")
        >>> given(Sizes, ["--hidden-size", "7"], "train", "Train.")
        {'hidden_size': 7}
    """
    parser = argparse.ArgumentParser(prog=prog, description=what)
    add_options(parser, settings)
    return vars(parser.parse_args(argv))


def from_json(settings: type[Settings], saved: object) -> Settings:
    """Settings out of a checkpoint's JSON, each checked as the command line would check it.

    Raises:
        ValueError: there is an unknown one, or one has a value that it cannot have; says which.
    """
    if not isinstance(saved, Mapping):
        raise ValueError(f"{str(saved)[:40]!r} for an object")
    hints = get_type_hints(settings)
    kinds = {each.name: each.metadata["type"] for each in fields(settings)}  # type: ignore[arg-type]
    for name, value in saved.items():
        if name not in kinds:
            raise ValueError(f"unknown: {str(name)[:40]!r}")
        if not _is_of(value, hints[name]):
            raise ValueError(f"{type(value).__name__} for {name!r}")
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            try:
                kinds[name](str(value))
            except (argparse.ArgumentTypeError, ValueError) as error:
                raise ValueError(f"argument {flag_of(name)}: {error}") from None
    return settings(**saved)


def _is_of(value: object, hint: Any) -> bool:
    """Whether a JSON value has a field's type: any number is one of a field of floats."""
    if get_origin(hint) is not None:
        return any([_is_of(value, one) for one in get_args(hint)])
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if isinstance(value, (int, float)):
        return hint in (type(value), float) and abs(value) < 1 << 63
    return isinstance(value, hint)
