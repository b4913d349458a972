"""The end of a command: its exit status, and the text of errors."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import IO, Any

from dynbatch.errors import DynbatchError
from dynbatch.interrupts import Terminated
from dynbatch.parallel.run_log import is_told_here
from dynbatch.starting import told_of_memory


def exit_status(run: Callable[[], int | None]) -> int:
    """Run a command. The exit status: its own, or 0; 1 after an error, which is printed; 128 + the
    signal's number after Ctrl-C (130), after SIGTERM (143) or SIGHUP (129) while it trains, or
    where nobody reads any more what is printed (141)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            _let_hold_any_text(stream)
    try:
        with _named_output():
            return run() or 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated as end:
        return 128 + end.number
    except BrokenPipeError:  # as `| head` does
        return 128 + 13  # SIGPIPE, which Windows has no name for
    except (DynbatchError, ImportError, OSError) as error:
        if is_told_here(error):
            print(f"error: {said(error)}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(told_of_memory(error), file=sys.stderr)
        return 1


def _let_hold_any_text(stream: io.TextIOWrapper) -> None:
    """Write UTF-8 to files and pipes, whatever the code page; a terminal shows what it can."""
    if stream.isatty():
        stream.reconfigure(errors="backslashreplace")
    else:
        stream.reconfigure(encoding="utf-8")


class _NamedOutput:
    """Standard output, whose errors say that it was: those of a full disk name no file."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._naming():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._naming():
            self._stream.flush()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # Python would complain once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise OSError(error.errno, error.strerror, "standard output") from error


@contextmanager
def _named_output() -> Iterator[None]:
    """Errors of standard output name it inside the block, at whose end all has been written."""
    if sys.stdout is None:  # it was closed
        yield
        return
    output: Any = _NamedOutput(sys.stdout)
    with redirect_stdout(output):
        try:
            yield
        except SystemExit:  # of --help, which has been printed
            output.flush()
            raise
        output.flush()


def show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning as one line; replaces `warnings.showwarning` while a command runs."""
    print(f"warning: {message}", file=sys.stderr)


def said(error: Exception) -> str:
    """An error's message, without its last line where that names the command's own start."""
    text = str(error)
    message, _, path = text.rpartition("\n  made at ")
    program = os.path.abspath(sys.argv[0])  # which may have been called by a relative path
    is_own = path.startswith("<frozen runpy>") or os.path.abspath(path).startswith(program)
    return message if message and is_own else text
