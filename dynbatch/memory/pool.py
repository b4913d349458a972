"""Memory that outlives a run: arenas are borrowed here and given back when their graph ends."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from dynbatch import backend
from dynbatch.errors import OutOfMemory
from dynbatch.memory.upstream import DeviceMemory, HostMemory, Upstream
from dynbatch.parameter import Array


class Pool:
    """Keeps freed buffers for the next request of about their size.

    A request is rounded up to a size class, eight to a power of two, so that a new buffer has at
    most 12.5 % to spare. The smallest free buffer of up to twice the size is reused first: training
    on batches of changing sizes settles on few buffers.

    Thread-safe. All sizes in bytes. On a GPU a buffer may be given back while kernels still use
    it: the next to take it launches on the same stream, and so comes after them.

    Args:
        limit_bytes: the most to reserve.
        upstream:    where buffers come from: `HostMemory()`, or another `Upstream`.
    """

    def __init__(self, limit_bytes: int | None = None, upstream: Upstream | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.upstream = upstream or HostMemory()
        self.reserved_bytes = 0
        self.used_bytes = 0
        self.peak_bytes = 0
        self.upstream_allocations = 0
        self._free: dict[int, list[Any]] = {}
        self._lock = threading.Lock()

    def take(self, elements: int, dtype: Any) -> Array:
        """An uninitialised one-dimensional array, 64-byte aligned, of at least `elements`.

        Raises:
            OutOfMemory: the limit, or the upstream, does not allow it even after `release`.
        """
        size = size_class(max(1, elements) * np.dtype(dtype).itemsize)
        with self._lock:
            buffer = self._reuse(size)
            if buffer is None:
                buffer = self._new(size)
            self.used_bytes += self.upstream.size(buffer)
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        array: Array = self.upstream.array(buffer, size, dtype)
        return array

    def give(self, array: Array) -> None:
        """Give back what `take` returned. The caller must hold no other view of it."""
        buffer = self.upstream.buffer(array)
        size = self.upstream.size(buffer)
        with self._lock:
            self.used_bytes -= size
            self._free.setdefault(size, []).append(buffer)

    def _reuse(self, size: int) -> Any:
        """The smallest free buffer that holds `size` bytes and is at most twice as large."""
        fitting = [held for held, free in self._free.items() if free and size <= held <= 2 * size]
        return self._free[min(fitting)].pop() if fitting else None

    def release(self) -> None:
        """Return every unused buffer to the upstream."""
        with self._lock:
            self._release()

    def _release(self) -> None:
        for size, buffers in self._free.items():
            self.reserved_bytes -= size * len(buffers)
        self._free.clear()

    def _new(self, size: int) -> Any:
        if self._over_limit(size):
            self._release()
        if self._over_limit(size):
            raise OutOfMemory(
                f"pool: {size} bytes asked for, {self.used_bytes} in use, limit "
                f"{self.limit_bytes}.\n  fix:  use a smaller mini-batch, or raise the limit"
            )
        try:
            buffer = self.upstream.allocate(size)
        except MemoryError:
            self._release()
            try:
                buffer = self.upstream.allocate(size)
            except MemoryError as error:
                state = self.upstream.state()
                raise OutOfMemory(
                    f"pool: {self.upstream.name} has no {size} bytes left ({self.used_bytes} in "
                    f"use by graphs{'; ' * bool(state)}{state}).\n  fix:  use a smaller mini-batch"
                ) from error
        self.reserved_bytes += size
        self.upstream_allocations += 1
        return buffer

    def _over_limit(self, size: int) -> bool:
        return self.limit_bytes is not None and self.reserved_bytes + size > self.limit_bytes


def size_class(size: int) -> int:
    """`size` in bytes rounded up to one of eight classes between two powers of two."""
    if size <= 1024:
        return 1024
    step = 1 << (size - 1).bit_length() - 4
    return -(-size // step) * step


default_pool = Pool()

_device_pools: dict[tuple[int, int], Pool] = {}


def pool_of(device: backend.Device) -> Pool:
    """The pool that graphs of a device take their arenas from by default."""
    if not device.is_cuda:
        return default_pool
    key = (id(device.xp), device.xp.cuda.runtime.getDevice())
    return _device_pools.setdefault(key, Pool(upstream=DeviceMemory()))
