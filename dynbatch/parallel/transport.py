"""`Transport`: what moves bytes between the processes of a run. There is one for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Buffer = Any
"""A C-contiguous array of a transport's device; its bytes are moved."""


class Transport(Protocol):
    """Moves bytes between ranks. `Communicator` builds all else on it, sums too.

    Attributes:
        name: of the engine, for messages: "tcp", "mpi", "nccl".
        rank: of this process.
        size: number of processes.
    """

    name: str
    rank: int
    size: int

    def exchange(self, sent: Sequence[Buffer | None], received: Sequence[Buffer | None]) -> None:
        """Send `sent[r]` to each rank r while `received[r]` is filled from it; None is nothing.

        What is received is there when it returns, and what was sent may be written to. All ranks
        call it in one order. A rank's own places are None.

        Raises:
            ParallelError: another rank failed or ended, or sent something else than is expected.
        """

    def fail(self, message: str) -> None:
        """Tell all others, as far as they can be reached, that the run failed, and why."""

    def close(self) -> None:
        """End the connections. Nothing is exchanged afterwards."""
