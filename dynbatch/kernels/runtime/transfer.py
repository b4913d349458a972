"""Transfers between host and device for arrays that outlive a graph: parameters, optimizer state.

They wait for the device: use them to load, save and move a model, not in a training step.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array, Device, device_of
from dynbatch.kernels.arrays import download
from dynbatch.kernels.cuda.runtime.queue import queue


def to_host(array: Array) -> Array:
    """The array itself if it is on the host, else a copy there."""
    if isinstance(array, np.ndarray):
        return array
    return download(array)


def to_device(array: Array, device: Device) -> Array:
    """The array itself if it is on that device, else a copy there."""
    if device_of(array) == device:
        return array
    host = to_host(array)
    return device.xp.asarray(host) if device.is_cuda else host


def overwrite(out: Array, values: Array) -> None:
    """out = values of the host, converted to out's type.

    Raises:
        TypeError: they are of another kind, complex say.
    """
    if isinstance(out, np.ndarray):
        np.copyto(out, values)
        return
    device_of(out).use()
    queue().flush()
    out.set(np.asarray(values, order="C").astype(out.dtype, casting="same_kind", copy=False))


def convert(array: Array, dtype: np.typing.DTypeLike) -> Array:
    """A copy in another dtype, on the array's device."""
    return to_device(to_host(array).astype(dtype), device_of(array))
