"""`cupy.from_dlpack` and the capsules of the stand-in, after CuPy 14's rules.

A capsule of DLPack is opaque to Python, and so is this one; the stand-in's memory would not be
device memory to anybody else.
"""

from __future__ import annotations

from typing import Any

from tests.cuda.fake_cupy.stream import get_current_stream, stream_of

CPU, CUDA = 1, 2
LEGACY = 1  # what DLPack calls the null stream


class Capsule:
    """A tensor handed over once. It keeps its owner alive, and the reader keeps it."""

    def __init__(self, array: Any, versioned: bool) -> None:
        self.name = "dltensor_versioned" if versioned else "dltensor"
        self._array = array

    def take(self) -> Any:
        if self.name.startswith("used"):
            raise ValueError("A DLPack tensor object cannot be consumed multiple times")
        self.name = f"used_{self.name}"
        return self._array


def export(array: Any, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> Any:
    """`cupy.ndarray.__dlpack__`."""
    if dl_device is not None and tuple(dl_device) == (CPU, 0):
        if copy is False:
            raise BufferError("GPU to CPU requires a copy")
        return array.get().__dlpack__(max_version=max_version)
    if dl_device is not None and tuple(dl_device) != (CUDA, 0):
        raise BufferError(f"unsupported device {dl_device}")
    if copy:
        raise BufferError("copy=True only supported for copy to CPU.")
    if stream is None:
        stream = LEGACY
    if not isinstance(stream, int) or stream < -1 or stream == 0:
        raise ValueError(f"the valid stream is -1, 1, 2, or any larger value, not {stream}")
    if stream == 2:
        raise NotImplementedError("per-thread default streams")
    current = get_current_stream()
    if stream not in (-1, current.ptr or LEGACY):
        reader = stream_of(0 if stream == LEGACY else stream)
        reader.wait_event(current.record())
    return Capsule(array, max_version is not None and max_version[0] >= 1)


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> Any:
    """`cupy.from_dlpack`: a view that may be used on the current stream."""
    if not hasattr(array, "__dlpack_device__"):
        return _view(array)
    kind, _ = array.__dlpack_device__()
    if device is not None:
        raise NotImplementedError("from_dlpack() does not support device yet.")
    if kind == CPU:
        raise TypeError("CPU arrays cannot be directly imported to CuPy.")
    if kind != CUDA:
        raise TypeError(f"Unsupported array type: {kind}")
    stream = get_current_stream().ptr or LEGACY
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 0), copy=copy)
    except TypeError:
        if copy is not None:
            raise
        capsule = array.__dlpack__(stream=stream)
    return _view(capsule)


def _view(capsule: Any) -> Any:
    if not isinstance(capsule, Capsule):
        raise ValueError(f"object was not a DLPack capsule. Got: {capsule!r}")
    array = capsule.take()
    return array[...]
