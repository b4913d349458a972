"""`Transport`: what moves bytes between the processes of a run. There is one for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dynbatch.errors import ParallelError

Buffer = Any
"""A C-contiguous array of a transport's device; its bytes are moved."""


Buffers = Sequence[Buffer | None]
"""A buffer for each rank; None where nothing moves, as at a rank's own place."""

BETWEEN = 0
"""The number of a message between two ranks. Exchanges of all ranks are counted from 1."""


SAME_CALLS = (
    "  rule: all ranks call the same methods in the same order, with arrays of the same shapes;\n"
    "        what one sends to another, that one receives, in the same order\n"
    "  fix:  inside `if communicator.rank == ...` only send, receive and exchange"
)


class Transport:
    """Moves bytes between ranks. `Communicator` builds all else on it, sums too.

    A transport of arrays of the CPU sees that ranks differ: exchanges of all ranks are numbered,
    and a message between two is marked as one, so that whoever gets something else than it waits
    for raises an error. None follows a failure. A subclass moves bytes in `_move`, of exchange
    `number` or of a message `BETWEEN` two ranks. One of GPUs has an `exchange` of its own, which
    sees nothing, and moves what two ranks have without the others.

    Attributes:
        name: of the engine, for messages: "sockets", "mpi", "nccl".
        rank: of this process.
        size: number of processes.
    """

    name = ""

    numbers: ClassVar[int] = 1 << 63
    """Exchanges, after which their numbers begin anew from 1."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._number = 0
        self._failure: ParallelError | None = None

    def exchange(self, sent: Buffers, received: Buffers, is_of_all: bool = True) -> None:
        """Send `sent[r]` to each rank r while `received[r]` is filled from it.

        What is received is there when it returns, and what was sent may be written to.

        Args:
            is_of_all: all ranks call it, in one order. If not, those do for which there is
                something, whatever the others do; what one sends to another is received in the
                same order there.

        Raises:
            ParallelError: another rank failed or ended, or sent something else than is expected.
        """
        if is_of_all:
            self._number = 1 + self._number % self.numbers
        if self._failure is not None:
            raise self._failure
        try:
            self._move(self._number if is_of_all else BETWEEN, sent, received)
        except BaseException as error:  # what was under way may never be whole, or go on
            if self._failure is None:
                self._failure = error if isinstance(error, ParallelError) else ParallelError(
                    f"an exchange of rank {self.rank} was cut off by {type(error).__name__}, so "
                    "that its connections are of no more use.", self.rank
                )  # fmt: skip
            raise

    def _move(self, number: int, sent: Buffers, received: Buffers) -> None:
        raise NotImplementedError(f"{type(self).__name__}._move")

    def interrupt(self, message: str, rank: int | None = None) -> None:
        """End the exchange that runs now, or the next one, by a `ParallelError`; from any thread.

        Args:
            rank: the one that failed.
        """
        self._failure = ParallelError(message, rank)

    def fail(self, message: str, rank: int, is_asked: bool = False) -> None:
        """Let all others end, as far as they can be reached, and tell them why.

        Args:
            rank:     the one that failed first, which need not be this one.
            is_asked: it ends by an exit status or Ctrl-C, and so may the others.
        """
        raise NotImplementedError(f"{type(self).__name__}.fail")

    def close(self) -> None:
        """End the connections. Nothing is exchanged afterwards."""
        raise NotImplementedError(f"{type(self).__name__}.close")


def bytes_of(array: Buffer) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def unexpected(rank: int, length: int, number: int, expected: int, own: int) -> ParallelError:
    """The error for what a rank sent in its exchange `number`, seen in this rank's `own`.

    Args:
        number: of an exchange of all ranks, or `BETWEEN`; so is `own`.
    """
    return ParallelError(
        f"rank {rank} sent {length} bytes in {_shown(number)}, and this rank "
        f"expected {expected} in {_shown(own)}.\n{SAME_CALLS}"
    )


def _shown(number: int) -> str:
    return "a message between the two" if number == BETWEEN else f"its exchange {number}"
