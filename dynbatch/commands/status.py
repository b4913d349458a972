"""How a command ends: its exit status, and what it says of errors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from dynbatch.errors import DynbatchError
from dynbatch.parallel.ending import is_told_here
from dynbatch.train.interrupts import Terminated


def exit_status(run: Callable[[], int | None]) -> int:
    """Run a command. The exit status: its own, or 0; 1 after an error, which is printed; 128 + the
    signal's number after Ctrl-C (130), after SIGTERM (143) or SIGHUP (129) while it trains, or
    where nobody reads any more what is printed (141)."""
    try:
        return run() or 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated as end:
        return 128 + end.number
    except BrokenPipeError:  # as `| head` does; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (DynbatchError, ImportError, OSError) as error:
        if is_told_here(error):
            print(f"error: {said(error)}", file=sys.stderr)
        return 1


def show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning as one line; replaces `warnings.showwarning` while a command runs."""
    print(f"warning: {message}", file=sys.stderr)


def said(error: Exception) -> str:
    """An error's message, without its last line where that names the command's own start."""
    text = str(error)
    message, _, place = text.rpartition("\n  made at ")
    own = os.path.abspath(sys.argv[0])  # which may have been called by a relative path
    is_own = place.startswith("<frozen runpy>") or os.path.abspath(place).startswith(own)
    return message if message and is_own else text
