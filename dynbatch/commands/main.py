"""The command `dynbatch`, of which each tool is a subcommand."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from dynbatch.commands import convert, generate, memory
from dynbatch.commands.status import exit_status, show_warning

COMMANDS = {"generate": generate, "memory": memory, "convert": convert}
"""A module each: `SUMMARY`, `HELP` and `MORE` of --help, `add_options(parser)`, `run(options)`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. The exit status is that of `exit_status`, or 2 after a wrong option."""
    parser = argparse.ArgumentParser(prog="dynbatch", description="Tools of dynbatch.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.SUMMARY, add_help=False)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in COMMANDS:
        parser.parse_args(given)  # prints and exits
    command = COMMANDS[given[0]]
    parser = argparse.ArgumentParser(
        prog=f"dynbatch {given[0]}", description=command.HELP, epilog=command.MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_options(parser)
    options = parser.parse_intermixed_args(given[1:])
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        return exit_status(lambda: command.run(options))
