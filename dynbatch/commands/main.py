"""The command `dynbatch`, of which each tool is a subcommand."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import dynbatch
from dynbatch.commands import convert, explain, generate, launch, memory, nodes, plot, train
from dynbatch.commands.status import exit_status, show_warning
from dynbatch.train.progress import COLUMNS

COMMANDS: dict[str, Any] = {
    "train": train,
    "generate": generate,
    "memory": memory,
    "explain": explain,
    "nodes": nodes,
    "plot": plot,
    "convert": convert,
    "launch": launch,
}
"""A module each: `SUMMARY`, `HELP` and `MORE` of --help, `add_options(parser)`, `run(options)`."""

WHAT = """\
usage: dynbatch COMMAND ...
       dynbatch COMMAND --help
       dynbatch --version

Train models on text and use them, without padding a sentence.

  dynbatch train poems.txt --output runs/poems
  dynbatch generate runs/poems "The moon" --temperature 0.8
  dynbatch plot runs/poems
  dynbatch memory poems.txt

commands:
{commands}

files:
  Text in UTF-8, an example on each line. A run is a folder: model.safetensors,
  at its end; model.best.safetensors, of its best validation; metrics.jsonl. A
  model of Hugging Face is a folder with config.json and model.safetensors.

exit status:
  0; 1 after an error, which says what is wrong and what to do; 2 after a wrong
  command or option; 130 after Ctrl-C.
"""


class Parser(argparse.ArgumentParser):
    """Options of a command, with help of 80 columns; a wrong one is answered by the nearest."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog, description=description, epilog=epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=26, width=COLUMNS
            ),
        )  # fmt: skip

    def shorten_usage(self) -> None:
        """Let "[options]" stand for the options, which are listed below."""
        positional = [action for action in self._actions if not action.option_strings]
        names = [
            f"[{one.metavar} ...]" if one.nargs == "*" else str(one.metavar) for one in positional
        ]
        parts = ["[options]", *names] if self._has_program() else [*names, "[options]"]
        self.usage = " ".join([self.prog, *parts])

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse options anywhere; before the program where the rest belongs to that."""
        if self._has_program():
            return self.parse_args(arguments)
        return self.parse_intermixed_args(arguments)

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse would be silent where it cannot be written."""
        print(self.format_help(), end="", file=file or sys.stdout)

    def _has_program(self) -> bool:
        return any([action.nargs == argparse.REMAINDER for action in self._actions])

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what was meant, in place of all options; the exit status is 2."""
        options = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        known = [one[2:] for one in self._option_string_actions if one.startswith("--")]
        near = [f"--{one}" for word in options for one in nearest(word[2:], known)]
        near = near if "unrecognized" in message else _near_choice(message)
        meant = f"\n  fix:  {', '.join(near)}?" if near else ""
        self.exit(2, f"error: {self.prog}: {message}{meant}\n  help: {self.prog} --help\n")


def _near_choice(message: str) -> list[str]:
    match = re.search(r"invalid choice: (.*) \(choose from (.*)\)", message)
    if match is None:
        return []
    return nearest(match[1].strip("'"), [one.strip("' ") for one in match[2].split(",")])


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """The name that a mistyped word is likest to, if one is like it at all.

    Example:
        >>> nearest("memroy", ["memory", "generate"])
        ['memory']
    """
    return get_close_matches(word, list(known), n=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. The exit status is that of `exit_status`, or 2 after a wrong option."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return exit_status(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    name = words[0] if words else ""
    if name in ("-h", "--help", "help") or not words:
        print(help_of_all(), end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if name == "--version":
        print(f"dynbatch {dynbatch.__version__}")
        return 0
    if name not in COMMANDS:
        return _unknown(name)
    command = COMMANDS[name]
    parser = Parser(f"dynbatch {name}", command.HELP, command.MORE)
    if command is train:  # whose options are those of the file's task
        train.add_options(parser, words[1:])
    else:
        command.add_options(parser)
    parser.shorten_usage()
    options = parser.parse(words[1:])
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        return command.run(options) or 0


def help_of_all() -> str:
    lines = [f"  {name:<10} {command.SUMMARY}" for name, command in COMMANDS.items()]
    return WHAT.format(commands="\n".join(lines))


def _unknown(name: str) -> int:
    """Say which commands there are, the likest one first. Returns the exit status."""
    near = nearest(name, COMMANDS)
    fix = f"did you mean: dynbatch {near[0]}" if near else f"one of {', '.join(COMMANDS)}"
    said = f"error: dynbatch {name}: there is no such command.\n  fix:  {fix}"
    print(f"{said}\n  help: dynbatch --help", file=sys.stderr)
    return 2
