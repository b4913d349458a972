"""`HostCopy`: a device array on its way to the host, waited for when it is read."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cupy_types import CudaEvent, MemoryPointer
from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.runtime.in_flight import hold
from dynbatch.kernels.cuda.runtime.queue import queue


class HostCopy:
    """The contents of an array after all work that is queued now.

    The copy is queued like any other work. `read` waits for the copy, not for work queued after it:
    a training loop may read a step's loss while the device is busy with the next step.

    Args:
        array: a device array, C-contiguous.
    """

    def __init__(self, array: Array) -> None:
        self._queue = queue()
        self._array: Array | None = array
        self._host: Array | None = None
        self._event: CudaEvent | None = None
        self._queue.call(partial(self._start, array))

    def read(self) -> Array:
        """The host's copy. The first call flushes the queue if necessary, and waits.

        Raises:
            BackendError: work queued before it failed.
        """
        if self._array is not None:
            if self._event is None:
                self._queue.flush()
            if self._event is None:
                raise BackendError("this value was never computed: the run that makes it failed.")
            self._event.synchronize()
            self._array = self._event = None
        assert self._host is not None
        return self._host

    def _start(self, array: Array) -> None:
        cupy = self._queue.cupy
        pinned = cupy.cuda.alloc_pinned_memory(max(1, array.nbytes))
        self._host = np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)
        if array.nbytes:
            start: MemoryPointer = array.data  # type: ignore[assignment]
            stream = cupy.cuda.get_current_stream()
            start.copy_to_host_async(self._host.ctypes.data, array.nbytes, stream)
        self._event = hold(cupy, self._host)  # even if nobody reads it
