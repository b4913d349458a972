"""Device and pinned memory of the stand-in, and the raw copies of `cupy.cuda.runtime`.

Fresh memory is poisoned, and freed memory too. Every byte handed out is registered by address, so
that a kernel argument that is an address can be told from a stray number or a host array. What was
freed last is not handed out again at once, so that an address of before belongs to nobody.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
import weakref
from collections import deque
from functools import partial
from typing import Any

import numpy as np

from tests.cuda.fake_cupy.stream import (
    Device,
    Stream,
    any_capturing,
    between_operations,
    current_device,
    get_current_stream,
    settings,
    stream_of,
    synchronize_all,
)

POISON = 0xEE  # a float of these bytes is -3.7e28, an int -286331154
ALIGNMENT = 256

memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3

_live: dict[int, int] = {}  # address of every allocation -> bytes
_device_of: dict[int, int] = {}  # its GPU
_addresses: list[int] = []  # of every allocation, sorted
_books = threading.RLock()  # of both; collecting garbage inside it may free memory
_retired: dict[int, int] = {}  # of them, those whose contents nobody may read: bytes from there
_freed: deque[Any] = deque()
_freed_bytes = [0]
FREED_BYTES = 1 << 24  # so much of it is kept from being handed out again
_peak = [0]  # the most bytes at once
_pooled: weakref.WeakSet[Any] = weakref.WeakSet()  # of them, those that CuPy's pool would hold


class OutOfMemoryError(MemoryError):
    """`cupy.cuda.memory.OutOfMemoryError`."""


class CUDARuntimeError(RuntimeError):
    """`cupy.cuda.runtime.CUDARuntimeError`."""


class Memory:
    """`cupy.cuda.Memory`: one allocation, given back with the object, once the device is idle."""

    def __init__(self, size: int) -> None:
        self.size, self.device_id, self.ptr = size, current_device(), 0
        if size == 0:
            return
        if any_capturing():
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported: memory while capturing")
        if used_bytes() + size > settings.memory_bytes:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
        raw = np.full(size + ALIGNMENT, POISON, np.uint8)
        self.ptr = raw.ctypes.data + -raw.ctypes.data % ALIGNMENT
        with _books:
            _live[self.ptr] = size
            _device_of[self.ptr] = self.device_id
            bisect.insort(_addresses, self.ptr)
            _peak[0] = max(_peak[0], used_bytes())
        weakref.finalize(self, _free, self.ptr, raw)

    @property
    def device(self) -> Device:
        return Device(self.device_id)


class UnownedMemory:
    """`cupy.cuda.UnownedMemory`: memory that `owner` keeps alive."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.device_id, self._owner = ptr, size, max(0, device_id), owner
        require_device(ptr, size)


def _free(ptr: int, raw: Any) -> None:
    between_operations(partial(_free_now, ptr, raw))


def _free_now(ptr: int, raw: Any) -> None:
    synchronize_all()
    with _books:
        del _live[ptr], _device_of[ptr], _addresses[bisect.bisect_left(_addresses, ptr)]
    _retired.pop(ptr, None)
    raw.fill(POISON)
    _freed.append(raw)
    _freed_bytes[0] += raw.nbytes
    while _freed_bytes[0] > FREED_BYTES:
        _freed_bytes[0] -= _freed.popleft().nbytes


def retire(ptr: int, size: int) -> None:
    """Not in CuPy: memory whose contents are over, until `revive`. No launch may be given it.

    What has been started on the current stream still reads it; what comes after reads poison.
    """
    _retired[ptr] = size
    memsetAsync(ptr, POISON, size, get_current_stream().ptr)


def revive(ptr: int) -> None:
    """Count the contents as new."""
    _retired.pop(ptr, None)


def require_current(ptr: int) -> None:
    """Raise ValueError where the contents of this memory are over."""
    for first, size in _retired.items():
        if first <= ptr < first + size:
            raise ValueError(f"{ptr:#x} is in device memory that was given to others")


def used_bytes() -> int:
    return sum(_live.values())


def peak_bytes() -> int:
    """Not in CuPy: the most bytes at once since `forget_peak`."""
    return _peak[0]


def forget_peak() -> None:
    _peak[0] = used_bytes()


def buffers() -> list[tuple[int, int]]:
    """(first, end) of all live device memory."""
    # A copy: making a tuple may collect garbage, and with it device memory.
    return [(ptr, ptr + size) for ptr, size in _live.copy().items()]


def require_device(ptr: int, nbytes: int = 0) -> None:
    """Raise ValueError unless the bytes lie inside one live allocation."""
    if ptr == 0 and nbytes == 0:
        return
    with _books:
        place = bisect.bisect_right(_addresses, ptr)
        low = _addresses[place - 1] if place else 0
        high = low + _live.get(low, 0)
        device = _device_of.get(low, 0)
    if not low <= ptr <= ptr + nbytes <= high:
        raise ValueError(f"{ptr:#x} and the {nbytes} bytes from there are not device memory")
    if device != current_device():
        raise ValueError(f"{ptr:#x} is on GPU {device}, and GPU {current_device()} is current")


class MemoryPointer:
    """`cupy.cuda.MemoryPointer`: an address inside a memory, which it keeps alive."""

    def __init__(self, mem: Memory | UnownedMemory, offset: int) -> None:
        if mem.ptr == 0 and offset:
            raise ValueError("offset into memory of no bytes")
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def copy_from_host_async(self, mem: Any, size: int, stream: Stream | None = None) -> None:
        _copy(self.ptr, _address(mem), size, memcpyHostToDevice, stream)

    def copy_to_host_async(self, mem: Any, size: int, stream: Stream | None = None) -> None:
        _copy(_address(mem), self.ptr, size, memcpyDeviceToHost, stream)

    def copy_from_device_async(
        self, src: MemoryPointer, size: int, stream: Stream | None = None
    ) -> None:
        _copy(self.ptr, src.ptr, size, memcpyDeviceToDevice, stream)

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        memsetAsync(self.ptr, value, size, (stream or get_current_stream()).ptr)


def _address(mem: Any) -> int:
    if isinstance(mem, ctypes.c_void_p):
        return mem.value or 0
    if not isinstance(mem, int):
        raise TypeError(f"a host address is an int or a ctypes.c_void_p, not {type(mem).__name__}")
    return mem


def alloc(size: int) -> MemoryPointer:
    memory = Memory(size)
    _pooled.add(memory)
    return MemoryPointer(memory, 0)


class MemoryPool:
    """`cupy.cuda.MemoryPool`, which keeps nothing that is free."""

    def used_bytes(self) -> int:
        return sum(memory.size for memory in list(_pooled))

    def total_bytes(self) -> int:
        return self.used_bytes()

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        pass


def get_default_memory_pool() -> MemoryPool:
    return _pool


_pool = MemoryPool()


class _Pinned:
    """The members of `cupy.cuda.PinnedMemoryPointer` besides the buffer protocol."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof(self)  # type: ignore[arg-type]

    def size(self) -> int:
        return ctypes.sizeof(self)  # type: ignore[arg-type]


def alloc_pinned_memory(size: int) -> Any:
    """Pinned host memory. As CuPy's pool does, it gives a larger buffer than was asked for."""
    rounded = 512
    while rounded < size:
        rounded *= 2
    kind = type("PinnedMemoryPointer", (ctypes.c_uint8 * rounded, _Pinned), {})
    pinned = kind()
    ctypes.memset(pinned, POISON, rounded)
    return pinned


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    _copy(dst, src, size, kind, stream_of(stream))


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    require_device(ptr, size)
    stream_of(stream).enqueue(lambda: _discard(ctypes.memset(ptr, value, size)))


def memGetInfo() -> tuple[int, int]:
    return settings.memory_bytes - used_bytes(), settings.memory_bytes


def deviceSynchronize() -> None:
    synchronize_all()


def getDeviceCount() -> int:
    return settings.devices


def _copy(dst: int, src: int, size: int, kind: int, stream: Stream | None) -> None:
    if kind not in (memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice):
        raise ValueError(f"cudaErrorInvalidMemcpyDirection: {kind}")
    if kind != memcpyDeviceToHost:
        require_device(dst, size)
    if kind != memcpyHostToDevice:
        require_device(src, size)
    (stream or get_current_stream()).enqueue(lambda: _discard(ctypes.memmove(dst, src, size)))


def _discard(_: Any) -> None:
    pass
