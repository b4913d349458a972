"""The end of the command `dynbatch` while it is being imported: in a line, as it is later.

Importing this lets Ctrl-C, a lack of memory and a missing package be told so, in place of the line
that an import had come to, where the process is that command.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def _is_command() -> bool:
    """Whether it was started as `dynbatch …` or `python -m dynbatch …`."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # until its package is imported
        position = sys.orig_argv.index("-m") + 1 if "-m" in sys.orig_argv else 0
        return sys.orig_argv[position : position + 1] == ["dynbatch"]
    return os.path.splitext(os.path.basename(name))[0] == "dynbatch"


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    elif isinstance(error, MemoryError):
        print(told_of_memory(error), file=sys.stderr)
    elif isinstance(error, ImportError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def told_of_memory(error: MemoryError) -> str:
    """The command's output where memory is short."""
    return (
        f"error: there is not enough memory{f': {error}' if str(error) else ''}.\n"
        "  fix:  give smaller mini-batches or a smaller model; or more memory, where `ulimit -v` "
        "limits it"
    )


if _is_command():
    sys.excepthook = _tell
