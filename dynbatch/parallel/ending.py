"""The end of a process in a run: the others learn it, and one of them says what happened."""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from weakref import ref

from dynbatch.errors import DynbatchError, ParallelError
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.environment import place_in_run
from dynbatch.parallel.guard import REPORT
from dynbatch.parallel.guard_process import LAUNCHER


def end_with_process(communicator: Communicator) -> None:
    """Close the communicator when this process ends, and tell the others of an uncaught error.

    An uncaught `ParallelError` about another rank is printed as one line, and by one rank only:
    that other rank prints its own traceback. Ctrl-C, which all ranks of a terminal get, is rank
    0's, and is not shown where a `Trainer` has said what it saved.
    """
    rank, show, joined = communicator.rank, sys.excepthook, ref(communicator)

    def show_once(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if (open_still := joined()) is not None:
            open_still.fail_by(error)
        if isinstance(error, ParallelError) and error.rank not in (None, rank):
            if is_told_here(error, rank):
                print(f"error: {error}", file=sys.stderr)
        elif not isinstance(error, KeyboardInterrupt) or (
            rank == 0 and not hasattr(error, "on_all_ranks")  # which a Trainer has told of
        ):
            show(kind, error, traceback)

    sys.excepthook = show_once
    atexit.register(communicator.close)
    communicator.kept.callback(atexit.unregister, communicator.close)


def without_traceback(error: DynbatchError) -> None:
    """Let an error that a process has before it is joined to others be printed as its message, if
    nobody catches it: where it was raised says nothing about why."""
    show, raised = sys.excepthook, ref(error)

    def show_message(
        kind: type[BaseException], other: BaseException, traceback: TracebackType | None
    ) -> None:
        if other is raised():
            print(f"error: {other}", file=sys.stderr)
        else:
            show(kind, other, traceback)

    sys.excepthook = show_message


def is_told_here(error: BaseException, rank: int | None = None) -> bool:
    """Whether this rank prints an error. One of another rank is printed by the lowest of the
    others, and by nobody under `dynbatch launch`, which says it itself; that it was killed, rank 0
    prints.

    Args:
        rank: of this process; by default what the environment says.

    Example:
        >>> from dynbatch.errors import ParallelError
        >>> error = ParallelError("rank 0 was killed.", rank=0)
        >>> [is_told_here(error, rank) for rank in (0, 1, 2)]
        [True, True, False]
    """
    if not isinstance(error, ParallelError) or error.rank is None:
        return True
    rank = place_in_run().rank if rank is None else rank
    if error.rank == LAUNCHER:
        return rank == 0
    if error.rank == rank:
        return True
    return REPORT not in os.environ and rank == (1 if error.rank == 0 else 0)
