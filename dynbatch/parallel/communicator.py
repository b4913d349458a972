"""`Communicator`: sums, copies and messages between the processes of a run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import numpy as np

from dynbatch.arguments import refused
from dynbatch.backend import Array, device_of
from dynbatch.errors import ParallelError
from dynbatch.kernels import arrays as kernels
from dynbatch.kernels.runtime.stream import flush
from dynbatch.parallel.buckets import flat_buckets
from dynbatch.parallel.guard import RankGuard
from dynbatch.parallel.transport import Transport

DIRECT_BYTES = 1 << 16
"""Up to which every rank sends all others the whole: one round instead of two."""


class Communicator:
    """The processes of a run, each with a rank: 0 to size - 1. `parallel.connect()` makes one.

    All ranks call the same methods in the same order, with arrays of the same shapes and dtypes;
    their numbers may differ. Only `send`, `receive` and `exchange` are of those ranks alone that
    they name. Sums are taken in the order of ranks, (x_0 + x_1) + x_2 + ..., on
    every transport: all ranks have the same bits, and another run with as many ranks has them too.

    Args:
        host:   moves arrays of the CPU; None for one process alone.
        device: moves arrays of a GPU: float32 or float64, C-contiguous. The host does not wait for
            them; what reads an array afterwards comes after its sum.

    Attributes:
        rank: of this process.
        size: number of processes.
        kept: what is given back when it is closed, by callbacks.
        device: as above.

    As a context it is closed at the end. If the block ends with an error, all other ranks are told
    so, and end with a `ParallelError` that names this one; unless the error's `on_all_ranks` says
    that all of them raise it. A process that a rank forks has no part in the run.

    Raises:
        ParallelError: by every method: another rank failed or ended, or does something else.

    Example:
        >>> import numpy as np
        >>> from dynbatch import parallel
        >>> with parallel.connect() as communicator:
        ...     total = np.array([1.0, 2.0])
        ...     communicator.all_reduce(total)
        >>> communicator.size, total
        (1, array([1., 2.]))
    """

    def __init__(self, host: Transport | None = None, device: Transport | None = None) -> None:
        self._host = host
        self.device = device
        self._pid = os.getpid()
        self.guard: RankGuard | None = None
        self.kept = ExitStack()
        self.rank = 0 if host is None else host.rank
        self.size = 1 if host is None else host.size

    # Sums -----------------------------------------------------------------------------------------

    def all_reduce(self, *arrays: Array) -> None:
        """Replace each array by its sum over all ranks, in place.

        Arrays of one dtype travel together. A rank sends and receives 2 (size - 1) / size times
        their bytes; up to 64 KiB it sends all of them to all others, in one round.
        """
        if self.size == 1:
            return
        for flat in flat_buckets(arrays):
            if self.size == 2 or flat.nbytes <= DIRECT_BYTES:
                self._sum([flat] * self.size, flat)
            else:
                bounds = self.bounds(flat.size)
                self.reduce_scatter(flat, bounds)
                self.all_gather(flat, bounds)

    def reduce_scatter(self, array: Array, bounds: Sequence[int]) -> None:
        """Sum over all ranks of the part that is this rank's: array[bounds[rank] : bounds[rank+1]].

        The other parts keep this rank's own numbers.

        Args:
            array:  flat and C-contiguous.
            bounds: size + 1 places, the same on all ranks: where each rank's part begins and ends.
        """
        _require_flat("reduce_scatter", array)
        if self.size > 1:
            parts = _parts(array, bounds)
            self._sum(parts, parts[self.rank])
            flush(array)

    def _sum(self, sent: Sequence[Array], own: Array) -> None:
        """Own numbers and what all others send of them, added in the order of ranks, in place."""
        xp = device_of(own).xp
        ranks = range(self.size)
        parts = [own if r == self.rank else xp.empty(own.shape, own.dtype) for r in ranks]
        self._exchange(own, sent, parts)
        total = parts[0]
        for part in parts[1:]:
            if part is own:  # which takes the sum of those before it: a + b is b + a
                part, total = total, own
            kernels.accumulate(part, total)

    # Copies ---------------------------------------------------------------------------------------

    def all_gather(self, array: Array, bounds: Sequence[int]) -> None:
        """Fill the parts of all ranks from these, as `reduce_scatter` names them."""
        _require_flat("all_gather", array)
        if self.size > 1:
            parts = _parts(array, bounds)
            self._exchange(array, [parts[self.rank]] * self.size, parts)

    def broadcast(self, *arrays: Array, root: int = 0) -> None:
        """Replace each array by that of the rank `root`, in place."""
        if self.size == 1:
            return
        for flat in flat_buckets(arrays):
            bounds = self.bounds(flat.size)
            parts, nothing = _parts(flat, bounds), [None] * self.size
            if self.rank == root:
                self._exchange(flat, parts, nothing)
            else:
                part = parts[self.rank]
                received = [part if r == root else None for r in range(self.size)]
                self._exchange(flat, nothing, received)
            self.all_gather(flat, bounds)

    def bounds(self, length: int) -> list[int]:
        """Places that cut a length into a part for each rank, even ones: size + 1 numbers."""
        return [length * r // self.size for r in range(self.size + 1)]

    # Messages -------------------------------------------------------------------------------------

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on all ranks. Values are pickled."""
        if self.size == 1:
            return [value]
        packed = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = packed.size
        self.all_gather(sizes, range(self.size + 1))
        bounds = [0, *np.cumsum(sizes).tolist()]
        joined = np.empty(bounds[-1], np.uint8)
        joined[bounds[self.rank] : bounds[self.rank + 1]] = packed
        self.all_gather(joined, bounds)
        return [
            value if r == self.rank else pickle.loads(joined[bounds[r] : bounds[r + 1]].data)
            for r in range(self.size)
        ]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """The value of the rank `root`, on all ranks. Others may give None. It is pickled."""
        return self.gather_objects(value if self.rank == root else None)[root]

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.all_reduce(np.zeros(1, np.int8))

    def send(self, array: Array, to: int) -> None:
        """Send a C-contiguous array to a rank, which receives it; other ranks have no part in it.

        It may return before the array was received, or wait until then. Two ranks that both send
        before they receive may wait for each other forever: `exchange` does both at once.
        """
        self.exchange({to: array}, {})

    def receive(self, array: Array, source: int) -> None:
        """Fill a C-contiguous array with what a rank sends, which has as many bytes.

        What one rank sends to another arrives in the order in which it was sent.
        """
        self.exchange({}, {source: array})

    def exchange(
        self, sent: Mapping[int, Array | None], received: Mapping[int, Array | None]
    ) -> None:
        """Send arrays to other ranks, by rank, while arrays are filled with what others send.

        They are C-contiguous and on one device; None is nothing. Whoever is sent something receives
        it, by `receive` or `exchange`; ranks for which there is nothing need not call it.
        """
        moving = [
            (rank, array) for rank, array in (*sent.items(), *received.items()) if array is not None
        ]
        for other, _ in moving:
            if not 0 <= other < self.size or other == self.rank:
                raise refused(
                    "Communicator.exchange",
                    f"rank {other} is given on rank {self.rank} of {self.size}",
                    "another rank of the run", "ranks are counted from 0",
                )  # fmt: skip
        if moving:
            out, into = [[each.get(r) for r in range(self.size)] for each in (sent, received)]
            self._exchange(moving[0][1], out, into, False)

    # The end --------------------------------------------------------------------------------------

    def fail(self, message: str, rank: int | None = None, is_asked: bool = False) -> None:
        """Tell all other ranks that the run failed, and why: they end with a `ParallelError`.

        Args:
            rank:     the one that failed first; this one by default.
            is_asked: it ends by an exit status or Ctrl-C, and so may the others.
        """
        if os.getpid() == self._pid:
            for transport in self._transports():  # others wait for the GPU's without a word
                transport.fail(message, self.rank if rank is None else rank, is_asked)

    def fail_by(self, error: BaseException) -> None:
        """Tell all other ranks of an error that ends this one."""
        if isinstance(error, ParallelError):  # whoever waits for this rank learns what it was
            self.fail(str(error), error.rank)
        elif getattr(error, "on_all_ranks", False):
            pass
        elif isinstance(error, KeyboardInterrupt):
            self.fail(f"rank {self.rank} was interrupted (Ctrl-C).", is_asked=True)
        elif not isinstance(error, SystemExit):
            self.fail(f"rank {self.rank} failed: {type(error).__name__}: {error}")
        elif error.code not in (None, 0):
            is_asked = isinstance(error.code, int) and error.code > 128  # by a signal
            self.fail(f"rank {self.rank} ended with status {error.code}.", is_asked=is_asked)

    def interrupt(self, message: str, rank: int) -> None:
        """End the exchange that runs now, or the next one, by an error; from any thread."""
        for transport in reversed(self._transports()):
            transport.interrupt(message, rank)

    def _transports(self) -> list[Transport]:
        return [each for each in (self._host, self.device) if each is not None]

    def close(self) -> None:
        """End the connections; a second time, and in a forked process, it does nothing."""
        if os.getpid() != self._pid:
            return
        if self.device is not None:  # its GPU may wait, until the guard ends that
            self.device.close()
        if self.guard is not None:
            self.guard.close()
        if self._host is not None:
            self._host.close()
        self.device = self._host = self.guard = None
        self.kept.close()

    @property
    def is_closed(self) -> bool:
        """Whether it joins no other ranks any more."""
        return self.size > 1 and self._host is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if error is not None:
            self.fail_by(error)
        self.close()

    def __repr__(self) -> str:
        engines = [each.name for each in self._transports()]
        by = f" by {' and '.join(engines)}" if engines else ""
        return f"Communicator(rank {self.rank} of {self.size}{by})"

    def _exchange(
        self, like: Array, sent: Sequence[Array | None], received: Sequence[Array | None],
        is_of_all: bool = True,
    ) -> None:  # fmt: skip
        """Exchange arrays by the transport of their device, without own places.

        Args:
            is_of_all: all ranks do, not only those for which there is something.
        """
        if os.getpid() != self._pid:
            raise ParallelError(
                f"a forked process of rank {self.rank} communicates.\n"
                "  rule: ranks are the processes that the run was started with"
            )
        if self.is_closed:
            raise ParallelError(
                f"{self!r} is closed, and moves nothing any more.\n"
                "  rule: a communicator is closed at the end of its `with` block\n"
                "  fix:  exchange inside the block"
            )
        device, host, rank = device_of(like), self._host, self.rank
        transport = self.device if device.is_cuda else host
        if transport is None or host is None:
            raise ParallelError(
                f"{self!r} cannot move arrays of the {device.name}.\n"
                '  fix:  parallel.connect(device="cuda") for arrays of a GPU'
            )
        device.use()
        out = [None if r == rank else each for r, each in enumerate(sent)]
        into = [None if r == rank else each for r, each in enumerate(received)]
        nothing = [None] * self.size
        try:
            if transport is not host and is_of_all:
                host.exchange(nothing, nothing)  # which counts, and sees that ranks differ
            transport.exchange(out, into, is_of_all)
        except ParallelError:
            if self.guard is not None:
                self.guard.taken()
            raise


def _parts(array: Array, bounds: Sequence[int]) -> list[Array]:
    return [array[first:end] for first, end in pairwise(bounds)]


def _require_flat(what: str, array: Array) -> None:
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise refused(
            f"Communicator.{what}", f"an array {array.shape} is given",
            "one dimension, C-contiguous", "array.reshape(-1)",
        )  # fmt: skip
