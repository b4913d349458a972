"""`DryCupy`: a CuPy whose arrays have shapes and addresses and no memory, for plans.

Kernels are called as ever and queue their launches, with all tables; the queue packs and counts
these, and starts nothing. So what a run takes beside its arena is known from the very code that
takes it, on a machine without CuPy and without a GPU.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array, Device
from dynbatch.kernels.cuda.runtime.queue import Queue, queue_is

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

FIRST_ADDRESS = 1 << 44
ALIGNMENT = 256
"""Of all that CUDA's allocators give."""

INDEX_TYPES = slice, int, types.EllipsisType, types.NoneType


class Books:
    """Bytes of the device that is not there.

    Attributes:
        live, most: of what a run allocates, now and at once.
        standing:   of what stays from run to run.
    """

    def __init__(self) -> None:
        self.live = self.most = self.standing = 0
        self._end = FIRST_ADDRESS

    @property
    def bytes(self) -> int:
        return self.standing + self.most

    def take(self, size: int, stands: bool) -> int:
        address, self._end = self._end, self._end + -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        if stands:
            self.standing += size
        else:
            self.live += size
            self.most = max(self.most, self.live)
        return address

    def give(self, size: int, stands: bool) -> None:
        if stands:
            self.standing -= size
        else:
            self.live -= size


class DryMemory:
    """`cupy.cuda.Memory`, without a byte."""

    __slots__ = ("_books", "_stands", "device_id", "ptr", "size")

    def __init__(self, books: Books, index: int, size: int, stands: bool = False) -> None:
        self.size, self.device_id = size, index
        self._books, self._stands = books, stands
        self.ptr = books.take(size, stands)

    def __del__(self) -> None:
        self._books.give(self.size, self._stands)


class DryPointer:
    """`cupy.cuda.MemoryPointer`, which copies nothing."""

    __slots__ = ("device_id", "mem", "ptr")

    def __init__(self, mem: DryMemory, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id

    def __add__(self, offset: int) -> DryPointer:
        return DryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def copy_from_host_async(self, source: int, size: int, stream: object) -> None:
        """Do nothing."""


class DryArray:
    """`cupy.ndarray`, as far as dynbatch uses it: a shape and strides over addresses.

    `_shape` is an array of NumPy at these addresses. Nobody may read its numbers, since there is
    no memory: so it is never given away, and indexed by slices alone.
    """

    __slots__ = ("__weakref__", "_shape", "data")

    def __init__(self, shape: int | tuple[int, ...], dtype: DTypeLike, memptr: DryPointer) -> None:
        shape = shape if isinstance(shape, tuple) else (shape,)
        interface = {
            "version": 3, "shape": tuple(map(int, shape)), "typestr": np.dtype(dtype).str,
            "data": (memptr.ptr, False),
        }  # fmt: skip
        self._shape = np.asarray(SimpleNamespace(__array_interface__=interface))
        self.data = memptr

    def _view(self, shape: Array) -> DryArray:
        view = DryArray.__new__(DryArray)
        view._shape = shape
        view.data = DryPointer(self.data.mem, _address(shape) - self.data.mem.ptr)
        return view

    shape = property(lambda self: self._shape.shape)
    dtype = property(lambda self: self._shape.dtype)
    strides = property(lambda self: self._shape.strides)
    flags = property(lambda self: self._shape.flags)
    size = property(lambda self: self._shape.size)
    nbytes = property(lambda self: self._shape.nbytes)
    ndim = property(lambda self: self._shape.ndim)
    itemsize = property(lambda self: self._shape.itemsize)
    T = property(lambda self: self._view(self._shape.T))

    def __len__(self) -> int:
        return len(self._shape)

    def __getitem__(self, key: Any) -> DryArray:
        keys = key if isinstance(key, tuple) else (key,)
        if not all([isinstance(each, INDEX_TYPES) for each in keys]):
            raise NotImplementedError("an array without memory has slices alone")
        if Ellipsis not in keys:
            keys = (*keys, ...)  # an element is a view, too
        return self._view(self._shape[keys])

    def reshape(self, *shape: Any) -> DryArray:
        if not self._shape.flags.c_contiguous:
            raise NotImplementedError("an array without memory is not copied")
        return self._view(self._shape.reshape(*shape))

    def view(self, dtype: DTypeLike) -> DryArray:
        return self._view(self._shape.view(dtype))

    def get(self) -> Array:
        return np.zeros(self.shape, self.dtype)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class _Anything:
    """A library whose names are there, and are not called."""

    def __getattr__(self, name: str) -> int:
        return 0


class _Stream:
    ptr = 0


class _Event:
    done = True

    def __init__(self, disable_timing: bool) -> None:
        pass

    def record(self, stream: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class DryCupy:
    """`cupy`, as far as the queueing of a run uses it, for a GPU that need not be there.

    Args:
        index: its number.

    Attributes:
        books:      what is allocated.
        parameters: those that the run has read, on this GPU, by their `uid`.
    """

    ndarray = DryArray

    def __init__(self, index: int) -> None:
        self.books = Books()
        self.parameters: dict[int, Any] = {}
        self._index = index
        self.cuda = SimpleNamespace(
            Event=_Event,
            Memory=self._memory,
            MemoryPointer=DryPointer,
            alloc=lambda size: DryPointer(self._memory(size, stands=True), 0),
            alloc_pinned_memory=bytearray,
            cublas=_Anything(),
            driver=SimpleNamespace(launchKernel=None),
            get_current_stream=_Stream,
            runtime=SimpleNamespace(getDevice=lambda: index, getDeviceCount=lambda: index + 1),
        )

    @property
    def device(self) -> Device:
        """The GPU."""
        return Device(self, True, self._index)

    def _memory(self, size: int, stands: bool = False) -> DryMemory:
        return DryMemory(self.books, self._index, size, stands)

    def empty(
        self, shape: int | tuple[int, ...], dtype: DTypeLike = float, stands: bool = False
    ) -> DryArray:
        """An array.

        Args:
            stands: it is there from run to run.
        """
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return DryArray(shape, dtype, DryPointer(self._memory(size, stands), 0))

    def asarray(self, array: Array) -> DryArray:
        """An array of that shape, which stays."""
        return self.empty(array.shape, array.dtype, stands=True)


class _Everything(dict[str, Any]):
    def __contains__(self, name: object) -> bool:
        return True


class DryQueue(Queue):
    """A queue that packs and counts all tables, and starts no work."""

    def __init__(self, cupy: Any) -> None:
        super().__init__(cupy)
        for kernels in self._kernels.values():
            kernels.known = _Everything()  # so that none is compiled

    def hook(self, names_kernels: bool) -> Any:
        """Leave what a type computes with CuPy by itself where it wants what is not there."""
        return super().hook(names_kernels) if names_kernels else self._hook_without_memory()

    @contextmanager
    def _hook_without_memory(self) -> Iterator[None]:
        with self.at_once(), suppress(Exception):
            yield

    def _start(self, *_: object) -> None:
        """Do nothing."""


@contextmanager
def dry_run(cupy: DryCupy) -> Iterator[None]:
    """Have this thread's kernels queue their work for a GPU that is not there."""
    with backend.stand_in_here(cupy), queue_is(DryQueue(cupy)):
        yield
