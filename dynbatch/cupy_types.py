"""Types for the parts of CuPy in use: CuPy has none, and need not be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from dynbatch.backend import Array

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class CudaStream(Protocol):
    """A stream; inside a `with` block it is the current one."""

    ptr: int

    def wait_event(self, event: CudaEvent) -> None: ...
    def begin_capture(self) -> None: ...
    def end_capture(self) -> CudaGraph: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


class CudaGraph(Protocol):
    """Work that a stream has captured; it is launched on the current stream."""

    def launch(self) -> None: ...


class CudaEvent(Protocol):
    """A point in the work of a stream."""

    @property
    def done(self) -> bool: ...
    def record(self, stream: CudaStream) -> None: ...
    def synchronize(self) -> None: ...


class MemoryPointer(Protocol):
    """A pointer into device memory, which it keeps alive."""

    ptr: int
    device_id: int

    def __add__(self, offset: int) -> Self: ...
    def copy_from_host_async(self, source: int, size: int, stream: CudaStream) -> None: ...
    def copy_to_host_async(self, target: int, size: int, stream: CudaStream) -> None: ...


class CudaFunction(Protocol):
    """A kernel on a device, by its handle."""

    ptr: int


class CompiledKernel(Protocol):
    """A kernel that was compiled; `kernel` loads it on the current device."""

    max_dynamic_shared_size_bytes: int

    @property
    def shared_size_bytes(self) -> int: ...
    @property
    def kernel(self) -> CudaFunction: ...


class CudaText(Protocol):
    """CUDA source, compiled when one of its kernels is first requested."""

    def get_function(self, name: str) -> CompiledKernel: ...


class CublasLibrary(Protocol):
    """`cupy.cuda.cublas`, whose products are `sgemm`, `dgemm` and `gemmEx`."""

    CUBLAS_GEMM_DEFAULT: int
    CUBLAS_POINTER_MODE_HOST: int
    CUBLAS_DEFAULT_MATH: int

    def create(self) -> int: ...
    def destroy(self, handle: int) -> None: ...
    def setPointerMode(self, handle: int, mode: int) -> None: ...
    def setMathMode(self, handle: int, mode: int) -> None: ...
    def gemmEx(self, *args: int) -> None: ...


class CudaModule(Protocol):
    """`cupy.cuda`."""

    cublas: CublasLibrary
    driver: Any
    Device: Any
    nvrtc: Any
    runtime: Any

    def get_cublas_handle(self) -> int: ...
    def get_current_stream(self) -> CudaStream: ...
    def Stream(self, *, non_blocking: bool) -> CudaStream: ...
    def Event(self, *, disable_timing: bool) -> CudaEvent: ...
    def alloc(self, size: int) -> MemoryPointer: ...
    def alloc_pinned_memory(self, size: int) -> Any: ...


class CupyModule(Protocol):
    """`cupy`, or the tests' stand-in. Its arrays are typed as NumPy's."""

    cuda: CudaModule

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array: ...
    def RawModule(self, *, code: str, options: tuple[str, ...]) -> CudaText: ...


def address_of(array: Array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else device_address(array)


def device_address(array: Array) -> int:
    return array.data.ptr  # type: ignore[attr-defined, no-any-return]
