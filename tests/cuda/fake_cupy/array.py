"""Device arrays of the stand-in: no NumPy arrays, so that nothing computes with one unseen."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.cuda.fake_cupy import dlpack
from tests.cuda.fake_cupy.memory import MemoryPointer, UnownedMemory, alloc, require_device
from tests.cuda.fake_cupy.stream import Stream, get_current_stream, stream_of


class ndarray:
    """`cupy.ndarray`, as far as an arena needs it: a shape and strides over device memory."""

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: Any = None,
        order: str = "C",
    ) -> None:
        plan = np.empty(shape, dtype, order=order)  # type: ignore[call-overload]
        self.data = alloc(plan.nbytes) if memptr is None else memptr
        require_device(self.data.ptr, plan.nbytes)
        self._of(self.data.ptr, plan.shape, plan.dtype, strides or plan.strides)

    def _of(self, ptr: int, shape: Any, dtype: Any, strides: Any) -> None:
        span = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True) if n)
        memory = (ctypes.c_uint8 * (span + dtype.itemsize)).from_address(ptr or _NOTHING)
        self._memory = np.ndarray(shape, dtype, memory, 0, strides)

    def _view(self, memory: np.ndarray[Any, Any]) -> ndarray:
        view = ndarray.__new__(ndarray)
        offset = memory.__array_interface__["data"][0] - (self.data.ptr or _NOTHING)
        view.data = self.data + offset if self.data.ptr and memory.size else self.data
        view._memory = memory
        return view

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    strides = property(lambda self: self._memory.strides)
    size = property(lambda self: self._memory.size)
    nbytes = property(lambda self: self._memory.nbytes)
    ndim = property(lambda self: self._memory.ndim)
    itemsize = property(lambda self: self._memory.itemsize)

    @property
    def flags(self) -> SimpleNamespace:
        flags = self._memory.flags
        return SimpleNamespace(c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous)

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, key: Any) -> ndarray:
        memory = self._memory[key]
        if not isinstance(memory, np.ndarray) or not np.shares_memory(memory, self._memory):
            if not isinstance(memory, np.ndarray) or memory.size:
                raise NotImplementedError("the stand-in has slices, no element or fancy indexing")
        return self._view(memory)

    def reshape(self, *shape: Any) -> ndarray:
        memory = self._memory.reshape(*shape)
        if memory.size and not np.shares_memory(memory, self._memory):
            raise NotImplementedError("the stand-in reshapes without a copy only")
        return self._view(memory)

    def view(self, dtype: Any) -> ndarray:
        return self._view(self._memory.view(dtype))

    @property
    def T(self) -> ndarray:
        return self._view(self._memory.T)

    def _require_current(self) -> None:
        if self.size:
            require_device(self.data.ptr, self.itemsize)

    def fill(self, value: Any) -> None:
        self._require_current()
        get_current_stream().enqueue(lambda: self._memory.fill(value))

    def set(self, arr: np.ndarray[Any, Any], stream: Stream | None = None) -> None:
        if arr.dtype != self.dtype or arr.shape != self.shape:
            raise ValueError(f"{arr.dtype} {arr.shape} into {self.dtype} {self.shape}")
        self._require_current()
        snapshot = np.array(arr)
        (stream or get_current_stream()).enqueue(lambda: np.copyto(self._memory, snapshot))

    def get(self, stream: Stream | None = None, out: Any = None) -> np.ndarray[Any, Any]:
        self._require_current()
        (stream or get_current_stream()).synchronize()
        if out is None:
            return self._memory.copy()
        np.copyto(out, self._memory)
        return out  # type: ignore[no-any-return]

    def copy(self, order: str = "C") -> ndarray:
        copied = ndarray(self.shape, self.dtype, order=order)
        get_current_stream().enqueue(lambda: np.copyto(copied._memory, self._memory))
        return copied

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self.data.device_id)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        return dlpack.export(self, stream, max_version, dl_device, copy)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
            "stream": get_current_stream().ptr or dlpack.LEGACY,
        }

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __repr__(self) -> str:
        return f"device array {self.dtype} {self.shape}"


_nothing = np.zeros(64, np.uint8)
_NOTHING = _nothing.ctypes.data  # an address for arrays without elements


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return ndarray(shape, dtype, order=order)


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    array = ndarray(shape, dtype, order=order)
    array.fill(0)
    return array


def asarray(a: Any, dtype: Any = None) -> ndarray:
    """A device array as it is, or a view of another library's; the rest is copied from the host."""
    if isinstance(a, ndarray):
        if dtype is not None and a.dtype != dtype:
            raise NotImplementedError("the stand-in does not convert on the device")
        return a
    if hasattr(a, "__cuda_array_interface__"):
        return _interfaced(a)
    host = np.asarray(a, dtype)
    array = ndarray(host.shape, host.dtype)
    array.set(host)
    return array


def _interfaced(a: Any) -> ndarray:
    """CuPy's array of the interface: it waits for the stream that the interface names."""
    found = a.__cuda_array_interface__
    stream = found.get("stream")
    if stream is not None:
        stream_of(0 if stream == dlpack.LEGACY else stream).synchronize()
    dtype, ptr = np.dtype(found["typestr"]), found["data"][0]
    plan = np.empty(found["shape"], dtype)
    memory = UnownedMemory(ptr, plan.nbytes, a, 0)  # of arrays without gaps
    return ndarray(plan.shape, dtype, MemoryPointer(memory, 0), found.get("strides"))


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    """The array itself where it is C-contiguous, else a copy that is."""
    source = asarray(a, dtype)
    if source.flags.c_contiguous:
        return source
    copied = ndarray(source.shape, source.dtype)
    get_current_stream().enqueue(lambda: np.copyto(copied._memory, source._memory))
    return copied


def asnumpy(a: Any, stream: Stream | None = None) -> np.ndarray[Any, Any]:
    return a.get(stream) if isinstance(a, ndarray) else np.asarray(a)
