"""`Pool`: lends arenas to graphs and keeps their memory for later graphs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple
from weakref import ref

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array
from dynbatch.cupy_types import address_of
from dynbatch.errors import OutOfMemory
from dynbatch.memory.arena import Arena
from dynbatch.memory.resource import (
    GRAIN_BYTES,
    Buffer,
    Limit,
    MemoryStatistics,
    Resource,
    Retry,
    Statistics,
    statistics_of,
)
from dynbatch.memory.sizes import parse_bytes
from dynbatch.memory.stream_order import StreamOrder
from dynbatch.memory.upstream import DeviceBuffer, DeviceMemory, HostMemory
from dynbatch.recent import free_at_fork

NAMED = 5
"""The number of labels in an error, those with the most bytes first."""


class Lent(ref[Array]):
    """A weak reference to an array on loan, and where its memory lies."""

    address = -1  # until it is known


class Loan(NamedTuple):
    """An array on loan: its memory, its purpose, and a reference that does not keep it alive."""

    buffer: Buffer
    label: str
    lent: Lent


class Pool:
    """Lends arrays from an allocator that keeps returned memory for later requests.

    It is composed of small resources: counters above and below the allocator, a limit on upstream
                                       memory, and a retry after unused memory was returned:

        Statistics(Retry(allocator(Limit(Statistics(upstream)))))

    Thread-safe. All sizes in bytes. On a GPU an array may be given back while kernels still use
    it: the next to take it comes after them, on whatever stream (`stream_order.py`). What an
    interrupt left half done, and arrays that are gone without `give`, the next call sets right.

    Args:
        limit_bytes: the most to reserve: a number, or text such as "2GiB"; None is no limit.
        upstream:    where memory comes from: `HostMemory()`, `DeviceMemory()`, or `GivenMemory`
                     of any other allocator.
        allocator:   makes the allocator, of an upstream; `benchmarks.memory.allocators` compares
                     them.

    Raises:
        ValueError: `limit_bytes` is not a number of bytes above 0.

    Example:
        >>> from dynbatch.memory import Buddy, Pool
        >>> pool = Pool(limit_bytes=1 << 20, allocator=Buddy)
        >>> array = pool.take(1000, "float32", label="a table")
        >>> pool.used_bytes, pool.statistics().internal_bytes
        (4096, 96)
        >>> pool.give(array)
    """

    def __init__(
        self,
        limit_bytes: int | str | None = None,
        upstream: Resource | None = None,
        allocator: Callable[[Resource], Resource] = Arena,
    ) -> None:
        self._below = Statistics(upstream or HostMemory())
        self._limit = Limit(self._below, _limit_of(limit_bytes))
        self._above = Statistics(Retry(allocator(self._limit)))
        self._live: dict[int, Loan] = {}
        self._lost: deque[Lent] = deque()  # arrays that are gone
        self._is_whole = True  # not within a change, or after one that was broken off
        self._order = StreamOrder()
        self._lock = threading.Lock()

    def take(self, elements: int, dtype: np.typing.DTypeLike, label: str = "") -> Array:
        """An uninitialised one-dimensional array, 64-byte aligned, of at least `elements`.

        Args:
            label: its purpose; errors of later requests name the labels that hold most.

        Raises:
            OutOfMemory: the limit, or the upstream, does not allow it even after `release`. The
                pool is as it was, but for what it held unused.
        """
        size = max(1, elements) * np.dtype(dtype).itemsize
        with self._lock:
            if self._lost or not self._is_whole:
                self._mend()
            self._is_whole = False
            try:
                buffer = self._above.allocate(size)
            except MemoryError as error:
                raise OutOfMemory(self._refusal(size, label)) from error
            if isinstance(buffer, DeviceBuffer):
                buffer.use()
                self._order.take(buffer)
            array = buffer.array(dtype)
            # In C: the interpreter drops an interrupt that comes inside a callback of Python.
            lent = Lent(array, self._lost.append)
            lent.address = buffer.address
            self._live[buffer.address] = Loan(buffer, label, lent)
            self._is_whole = True
        return array

    def give(self, array: Array) -> None:
        """Give back an array from `take`. The caller must not hold another view of it.

        Raises:
            ValueError: the array is not on loan from this pool.
        """
        with self._lock:
            if self._lost or not self._is_whole:
                self._mend()
            loan = self._live.get(address_of(array))
            if loan is None:
                raise ValueError("pool.give: the array is not on loan; give it back once.")
            self._take_back(loan)

    def has_lent(self, array: Array) -> bool:
        """Whether an array is on loan from this pool."""
        loan = self._live.get(address_of(array))
        return loan is not None and loan.lent() is array

    def release(self) -> None:
        """Return unused memory to the upstream."""
        with self._lock:
            self._mend()
            self._is_whole = False
            self._above.release()
            self._is_whole = True

    def _take_back(self, loan: Loan) -> None:
        buffer = loan.buffer
        self._is_whole = False
        if isinstance(buffer, DeviceBuffer):
            buffer.use()
            self._order.give(buffer)
        del self._live[buffer.address]
        self._above.free(buffer)
        self._is_whole = True

    def _mend(self) -> None:
        """Finish what was broken off by an interrupt, and take back arrays that nobody has."""
        if not self._is_whole:
            self._above.restore([loan.buffer for loan in self._live.values()])
            self._is_whole = True
        while self._lost:
            loan = self._live.get(self._lost[0].address)
            if loan is not None and loan.lent is self._lost[0]:
                self._take_back(loan)
            self._lost.popleft()

    # What it holds --------------------------------------------------------------------------------

    def statistics(self) -> MemoryStatistics:
        """Bytes asked for, in use, reserved and wasted, now and at most; counts of calls."""
        with self._lock:
            self._mend()
            return statistics_of(self._above, self._below)

    @property
    def limit_bytes(self) -> int | None:
        """The most bytes to reserve; a new limit holds for later allocations."""
        return self._limit.limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int | str | None) -> None:
        self._limit.limit_bytes = _limit_of(limit_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes on loan, as allocated."""
        return self.statistics().rounded_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were on loan at once."""
        return self.statistics().peak_rounded_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the upstream, on loan or not."""
        return self.statistics().reserved_bytes

    @property
    def room_bytes(self) -> int | None:
        """Bytes left to take once unused memory is returned; None without a known limit."""
        with self._lock:
            self._mend()
            room = self._limit.room()
            if room is None:
                return None
            unused = self._below.rounded_bytes - self._above.rounded_bytes
            return (room + unused) // GRAIN_BYTES * GRAIN_BYTES

    @property
    def upstream_allocations(self) -> int:
        """The number of allocations from the upstream."""
        return self.statistics().upstream_allocations

    def on_loan(self) -> dict[str, list[int]]:
        """label -> sizes of the arrays on loan under it, largest first; most bytes first."""
        with self._lock:
            self._mend()
            return _by_label(self._live.values())

    # Errors ---------------------------------------------------------------------------------------

    def _refusal(self, size: int, label: str) -> str:
        limit = self._limit.limit_bytes
        # Without what is unused, would the limit have let it pass? Then the upstream refused.
        over = limit is not None and self._below.rounded_bytes + size > limit
        who = f"the limit of {limit:,} bytes" if over else self._below.name
        state = self._below.state()
        held = f"{self._above.rounded_bytes:,} bytes, of {self._below.rounded_bytes:,} reserved"
        if limit is not None:
            held += f", limit {limit:,}"
        lines = [
            f"pool: {who} has no {size:,} bytes left{f' for {label}' * bool(label)}.",
            f"  in use: {held}{f'; {state}' * bool(state)}",
            *[f"          {line}" for line in _consumers(_by_label(self._live.values()))],
            f"  fix:  use a smaller mini-batch{', or raise the limit' * over}",
        ]
        return "\n".join(lines)


def _by_label(live: Iterable[Loan]) -> dict[str, list[int]]:
    sizes_of: dict[str, list[int]] = {}
    for loan in live:
        sizes_of.setdefault(loan.label, []).append(loan.buffer.size)
    for sizes in sizes_of.values():
        sizes.sort(reverse=True)
    return dict(sorted(sizes_of.items(), key=lambda item: (-sum(item[1]), item[0])))


def _consumers(sizes: dict[str, list[int]]) -> list[str]:
    """A line for each of the largest labels, and one for the others."""
    lines = []
    for label, its in list(sizes.items())[:NAMED]:
        times = f" in {len(its)} arrays, the largest {its[0]:,}" if len(its) > 1 else ""
        lines.append(f"{label or 'without a label'}: {sum(its):,}{times}")
    rest = [size for its in list(sizes.values())[NAMED:] for size in its]
    if rest:
        lines.append(f"others: {sum(rest):,} in {len(rest)} arrays")
    return lines


def _limit_of(limit_bytes: int | str | None) -> int | None:
    return None if limit_bytes is None else parse_bytes("limit_bytes", limit_bytes)


default_pool = Pool()
free_at_fork(default_pool._lock)

_device_pools = threading.local()  # as queues of launches are: a stream seldom waits for another


def pool_of(device: backend.Device) -> Pool:
    """The default pool of graphs; on a GPU there is one for each thread."""
    if not device.is_cuda:
        return default_pool
    pools: dict[tuple[int, int], Pool] = _device_pools.__dict__.setdefault("pools", {})
    key = (id(device.xp), device.index)
    if key not in pools:
        pools[key] = Pool(upstream=DeviceMemory(device))
    return pools[key]
