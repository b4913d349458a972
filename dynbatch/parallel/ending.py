"""The end of a process in a run: the others learn it, and one of them says what happened."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from weakref import ref

from dynbatch.errors import DynbatchError, ParallelError
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.run_log import is_told_here


def show_without_traceback(error: DynbatchError, joined: Iterable[Communicator]) -> None:
    """Print this error as one message where nothing catches it: no line of Python is its cause.

    Args:
        joined: communicators of this process, whose other ranks are told of it.
    """
    reference = ref(error)

    def show_message(uncaught: BaseException) -> bool:
        is_shown = uncaught is reference()
        if is_shown:
            for each in list(joined):
                each.fail_by(uncaught)
            print(f"error: {uncaught}", file=sys.stderr)
        return is_shown

    _show_first(show_message)


def end_with_process(communicator: Communicator) -> None:
    """Close the communicator when this process ends, and tell the others of an uncaught error.

    An uncaught `ParallelError` about another rank is printed as one line, and by one rank only:
    that other rank prints its own traceback. Ctrl-C, which all ranks of a terminal get, is rank
    0's, and is not shown where a `Trainer` has said what it saved.
    """
    rank, joined = communicator.rank, ref(communicator)

    def show_once(error: BaseException) -> bool:
        if (open_still := joined()) is not None:
            open_still.fail_by(error)
        if isinstance(error, ParallelError) and error.rank not in (None, rank):
            if is_told_here(error, rank):
                print(f"error: {error}", file=sys.stderr)
            return True
        is_told = rank > 0 or hasattr(error, "on_all_ranks")  # which a Trainer has told of
        return isinstance(error, KeyboardInterrupt) and is_told

    _show_first(show_once)
    atexit.register(communicator.close)
    communicator.kept.callback(atexit.unregister, communicator.close)


def _show_first(show_here: Callable[[BaseException], bool]) -> None:
    """Show uncaught errors by a function, and as before where that returns False."""
    show = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not show_here(error):
            show(kind, error, traceback)

    sys.excepthook = hook
