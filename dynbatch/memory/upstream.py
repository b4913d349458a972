"""Where a pool gets its buffers: the host's memory through NumPy, or a GPU's through CuPy."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dynbatch import backend

ALIGNMENT_BYTES = 64


class Upstream(Protocol):
    """Gives buffers of raw bytes, aligned to `ALIGNMENT_BYTES`, and takes them back by forgetting.

    `name` says in errors whose memory it is.
    """

    name: str

    def allocate(self, size: int) -> Any:
        """A new buffer of `size` bytes; MemoryError where there is none."""

    def array(self, buffer: Any, size: int, dtype: Any) -> Any:
        """The first `size` bytes of a buffer as a one-dimensional array."""

    def buffer(self, array: Any) -> Any:
        """The buffer behind what `array` returned."""

    def size(self, buffer: Any) -> int:
        """The bytes that were asked for."""

    def state(self) -> str:
        """What errors say about memory that is not the pool's; nothing where it is not known."""


class HostMemory:
    """Memory of the host, as NumPy allocates it."""

    name = "the system"

    def allocate(self, size: int) -> Any:
        """An array of bytes with room to align its beginning."""
        return np.empty(size + ALIGNMENT_BYTES, np.uint8)

    def array(self, buffer: Any, size: int, dtype: Any) -> Any:
        """A view."""
        shift = -buffer.ctypes.data % ALIGNMENT_BYTES
        return buffer[shift : shift + size].view(dtype)

    def buffer(self, array: Any) -> Any:
        """What the view is of."""
        return array.base

    def size(self, buffer: Any) -> int:
        """Without the room to align."""
        return int(buffer.size) - ALIGNMENT_BYTES

    def state(self) -> str:
        """Nothing."""
        return ""


class DeviceMemory:
    """Memory of CuPy's current device, straight from the driver: the pool above keeps it."""

    name = "the GPU"

    def allocate(self, size: int) -> Any:
        """A `cupy.cuda.Memory`, which the driver aligns to 256 bytes."""
        cupy = backend.cupy()
        try:
            return self._memory(cupy, size)
        except MemoryError:
            # CuPy's own pool may hold what is missing here.
            cupy.get_default_memory_pool().free_all_blocks()
        return self._memory(cupy, size)

    def _memory(self, cupy: Any, size: int) -> Any:
        try:
            return cupy.cuda.Memory(size)
        except Exception as error:
            if not backend.is_out_of_memory(error):
                raise
            raise MemoryError(str(error)) from error

    def state(self) -> str:
        """Free and total bytes, and those that CuPy's pool holds: parameters, optimizer state."""
        cupy = backend.cupy()
        free, total = cupy.cuda.runtime.memGetInfo()
        held = cupy.get_default_memory_pool().used_bytes()
        return (
            f"{free:,} of its {total:,} bytes are free; arrays of CuPy hold {held:,} "
            "(parameters, gradients, optimizer state)"
        )

    def array(self, buffer: Any, size: int, dtype: Any) -> Any:
        """A CuPy array over the buffer."""
        cupy = backend.cupy()
        elements = size // np.dtype(dtype).itemsize
        return cupy.ndarray((elements,), dtype, cupy.cuda.MemoryPointer(buffer, 0))

    def buffer(self, array: Any) -> Any:
        """The memory that the array lies in."""
        return array.data.mem

    def size(self, buffer: Any) -> int:
        """As CuPy says."""
        return int(buffer.size)
