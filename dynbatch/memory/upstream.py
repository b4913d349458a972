"""Sources of memory: the host through NumPy, a GPU through CuPy, or a given allocator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array
from dynbatch.cupy_types import MemoryPointer
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.memory.resource import ALIGNMENT_BYTES, Buffer, Resource


class HostBuffer(Buffer):
    """Bytes of the host: a NumPy array of uint8."""

    __slots__ = ("_bytes",)

    def __init__(self, memory: Array, address: int) -> None:
        self._bytes, self.address, self.size = memory, address, memory.size

    def part(self, offset: int, size: int) -> HostBuffer:
        return HostBuffer(self._bytes[offset : offset + size], self.address + offset)

    def array(self, dtype: np.typing.DTypeLike) -> Array:
        # Of a memoryview: views of the array then keep it alive, and not what it is a view of.
        return np.frombuffer(self._bytes.data, dtype, self.size // np.dtype(dtype).itemsize)


class DeviceBuffer(Buffer):
    """Bytes of a GPU: a `cupy.cuda.MemoryPointer` and a size."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: MemoryPointer, size: int) -> None:
        self._pointer, self.address, self.size = pointer, int(pointer.ptr), size

    def part(self, offset: int, size: int) -> DeviceBuffer:
        return DeviceBuffer(self._pointer + offset, size)

    def use(self) -> None:
        """Make its GPU CuPy's current one, for which streams and events are."""
        backend.gpu(self._pointer.device_id).use()

    def array(self, dtype: np.typing.DTypeLike) -> Array:
        elements = self.size // np.dtype(dtype).itemsize
        array: Array = backend.cupy().ndarray((elements,), dtype, self._pointer)
        return array


class HostMemory(Resource):
    """Host memory from NumPy; dropping the buffer frees it."""

    name = "the system"

    def allocate(self, size: int) -> Buffer:
        """An array large enough to align its start."""
        return _aligned(np.empty(size + ALIGNMENT_BYTES, np.uint8), size)

    def free(self, buffer: Buffer) -> None:
        """Do nothing: dropping the last view frees the memory."""


class DeviceMemory(Resource):
    """Memory of a GPU from the driver; dropping the buffer frees it.

    The driver waits for the GPU to give memory back, which is why a pool above should keep it.

    Args:
        device: the GPU; None for CuPy's current one whenever memory is taken.
    """

    name = "the GPU"

    def __init__(self, device: backend.Device | None = None) -> None:
        self._device = device

    def _use(self) -> None:
        if self._device is not None:
            self._device.use()

    def allocate(self, size: int) -> Buffer:
        """A `cupy.cuda.Memory`, which the driver aligns to 256 bytes."""
        self._use()
        cuda = backend.cupy().cuda
        try:
            memory = backend.with_memory_of_cupy(partial(cuda.Memory, size))
        except Exception as error:
            if not backend.is_out_of_memory(error):
                raise
            raise MemoryError(str(error)) from error
        return DeviceBuffer(cuda.MemoryPointer(memory, 0), size)

    def free(self, buffer: Buffer) -> None:
        """Do nothing: dropping the last pointer frees the memory."""

    def room(self) -> int:
        """The free bytes that the driver reports."""
        self._use()
        free, _ = backend.cupy().cuda.runtime.memGetInfo()
        return int(free)

    def state(self) -> str:
        """Free and total bytes, and the bytes in CuPy's pool and cuBLAS, as text."""
        self._use()
        cupy = backend.cupy()
        free, total = cupy.cuda.runtime.memGetInfo()
        held = cupy.get_default_memory_pool().used_bytes()
        return (
            f"{free:,} of its {total:,} bytes are free; arrays of CuPy hold {held:,} "
            "(parameters, gradients, optimizer state), cuBLAS about "
            f"{stream_of(backend.device('cuda')).workspace_bytes:,} for this thread's products"
        )


class GivenMemory(Resource):
    """Memory of any allocator, as two functions.

    Args:
        allocate:   bytes -> memory, one of
                    an object with a buffer (a NumPy array, `mmap.mmap`): memory of the host;
                    a `cupy.cuda.MemoryPointer`, as CuPy's allocators and RMM's for CuPy return;
                    the address of memory of CuPy's current GPU, an int.
                    Where it has none it raises MemoryError, or an error named OutOfMemory….
        deallocate: (what `allocate` returned, bytes) -> None; left out where forgetting frees it.
        name:       in errors.

    Example:
        >>> import mmap
        >>> from dynbatch.memory import GivenMemory, Pool
        >>> pool = Pool(upstream=GivenMemory(lambda size: mmap.mmap(-1, size)))
        >>> pool.take(1000, "float32").size >= 1000
        True

        RMM, PyTorch and CUDA's stream-ordered pool:

            GivenMemory(resource.allocate, resource.deallocate)      # a resource of rmm.mr
            GivenMemory(torch.cuda.caching_allocator_alloc,
                        lambda address, size: torch.cuda.caching_allocator_delete(address))
            GivenMemory(cupy.cuda.MemoryAsyncPool().malloc)
    """

    def __init__(
        self,
        allocate: Callable[[int], object],
        deallocate: Callable[[Any, int], object] | None = None,
        name: str = "the allocator given",
    ) -> None:
        self.name = name
        self._allocate = allocate
        self._deallocate = deallocate
        self._buffers: dict[int, tuple[object, int]] = {}  # by a number that each has
        self._number_at: dict[int, int] = {}
        self._count = 0

    def allocate(self, size: int) -> Buffer:
        """Memory of the allocator, large enough to align its start.

        Raises:
            MemoryError: the allocator has none.
            TypeError:   it did not return memory.
        """
        given_size = size + ALIGNMENT_BYTES
        try:
            # One step of the interpreter: an interrupt comes before it, or finds what was given.
            buffers = zip(map(self._allocate, (given_size,)), (given_size,), strict=True)
            self._buffers.update(zip((self._count,), buffers, strict=True))
        except Exception as error:
            if isinstance(error, MemoryError) or not backend.is_out_of_memory(error):
                raise
            raise MemoryError(str(error)) from error
        number, self._count = self._count, self._count + 1
        buffer = _as_buffer(*self._buffers[number], size)
        self._number_at[buffer.address] = number
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give the memory back by `deallocate`."""
        self._give_back(self._number_at[buffer.address])

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Give back by `deallocate` what is not in use."""
        numbers = {self._number_at[buffer.address] for buffer in in_use}
        for number in self._buffers.keys() - numbers:
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        pair = map(self._buffers.pop, (number,))
        deque(pair if self._deallocate is None else starmap(self._deallocate, pair), maxlen=0)


def _as_buffer(held: Any, given_size: int, size: int) -> Buffer:
    if hasattr(held, "ptr") and hasattr(held, "mem"):
        return _aligned_on_device(held, size)
    if isinstance(held, int):
        cuda = backend.cupy().cuda
        memory = cuda.UnownedMemory(held, given_size, None)
        return _aligned_on_device(cuda.MemoryPointer(memory, 0), size)
    try:
        memory = np.frombuffer(held, np.uint8)
    except TypeError as error:
        raise TypeError(
            f"GivenMemory: allocate returned {type(held).__name__}.\n"
            "  rule: it returns an object with a buffer, a cupy.cuda.MemoryPointer, or an address"
        ) from error
    return _aligned(memory, size)


def _aligned(memory: Array, size: int) -> HostBuffer:
    address = memory.ctypes.data
    shift = -address % ALIGNMENT_BYTES
    return HostBuffer(memory[shift : shift + size], address + shift)


def _aligned_on_device(pointer: MemoryPointer, size: int) -> DeviceBuffer:
    return DeviceBuffer(pointer + -int(pointer.ptr) % ALIGNMENT_BYTES, size)
