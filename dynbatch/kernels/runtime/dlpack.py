"""Arrays of other libraries without copies: DLPack and the CUDA array interface.

An array tells its device by `__dlpack_device__` and exports itself by `__dlpack__`.
CuPy takes it and names its current stream; the other library lets that stream wait, by an event,
for the work that makes the array. The host waits for nothing. Arrays that have
`__cuda_array_interface__` alone are taken too; where they name a stream, CuPy waits for it.

Protocol: https://data-apis.org/array-api/latest/design_topics/data_interchange.html
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array
from dynbatch.errors import BackendError, DtypeError

# Types of devices in dlpack.h.
HOST, CUDA, PINNED, MANAGED = 1, 2, 3, 13

NOT_SHARED = (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What libraries raise for tensors that they do not hand out."""


def is_on_gpu(what: str, value: Any) -> bool:
    """Whether a value is an array on a GPU, of any library. Imports nothing.

    Raises:
        BackendError: the array is on neither a GPU nor the host; `what` begins the message.
    """
    if isinstance(value, np.ndarray):
        return False
    ask = getattr(value, "__dlpack_device__", None)
    if ask is None:
        return hasattr(value, "__cuda_array_interface__")
    try:
        device_type = int(ask()[0])
        problem = f"an array on a device of DLPack's type {device_type}"
    except NOT_SHARED as error:
        device_type, problem = 0, f"{type(value).__name__} cannot be taken: {error}"
    if device_type in (HOST, PINNED):
        return False
    if device_type not in (CUDA, MANAGED):
        raise BackendError(
            f"{what}: {problem}.\n  rule: arrays are on the host, or on an NVIDIA GPU\n"
            "  fix:  bring it to the host: np.asarray(array), tensor.cpu()"
        )
    return True


def view(what: str, value: Any) -> Array:
    """The value as a NumPy or CuPy array, sharing its memory if possible.

    Args:
        what:  begins the message of an error.
        value: an array of any library, or anything that NumPy converts.

    Raises:
        BackendError: CuPy is missing, there is no such GPU, or `require_aligned`.
        DtypeError:   its library does not hand it out, or NumPy and CuPy have no such type.
        ValueError:   lists of different lengths.
    """
    array: Array = value
    try:
        if not backend.is_device_array(value) and not isinstance(value, np.ndarray):
            array = _on_gpu(what, value) if is_on_gpu(what, value) else _on_host(value)
    except NOT_SHARED as error:
        if not hasattr(value, "__dlpack_device__") or isinstance(error, BackendError):
            raise
        raise DtypeError(
            f"{what}: {type(value).__name__} cannot be taken: {error}\n"
            "  fix:  a float32 or float64 tensor without gradient: tensor.detach(), tensor.float()"
        ) from error
    if not isinstance(array, np.ndarray):
        require_aligned(what, array)
    return array


def require_aligned(what: str, array: Any) -> None:
    """Raise BackendError where numbers on a GPU do not lie at multiples of their size.

    No kernel can read them there, nor count in elements how far they are from others.
    """
    if isinstance(array, np.ndarray) or not array.size:
        return
    steps = [step for step, count in zip(array.strides, array.shape, strict=True) if count > 1]
    size, address = array.itemsize, array.data.ptr
    if address % size or any([step % size for step in steps]):
        raise BackendError.at_caller(
            f"{what}: an array of {array.dtype} at the address {address:#x} of a GPU, with strides "
            f"{tuple(array.strides)}.\n  rule: a GPU reads numbers of {size} bytes at multiples of "
            f"{size} bytes\n  fix:  copy its bytes to an allocation of their own: "
            "cupy.asarray(cupy.asnumpy(array))"
        )


def _on_host(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype == object and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return array


def _on_gpu(what: str, value: Any) -> Array:
    if not hasattr(value, "__dlpack_device__"):
        interfaced: Array = backend.device("cuda").xp.asarray(value)
        return interfaced
    device_type, number = value.__dlpack_device__()
    device = backend.device(f"cuda:{number}" if device_type == CUDA else "cuda")
    array: Array = device.xp.from_dlpack(value)
    return array


def writable(what: str, value: Any) -> Array:
    """The result of `view`; a copy if the owner forbids writing, as JAX does."""
    array = view(what, value)
    if isinstance(array, np.ndarray):
        may_write = array.flags.writeable
    elif array is value:
        may_write = True
    else:
        # CuPy forgets what DLPack says of that.
        interface = getattr(value, "__cuda_array_interface__", {"data": (0, True)})
        may_write = not interface["data"][1]
    return array if may_write else array.copy()


def dlpack_device(device: backend.Device) -> tuple[int, int]:
    """The result of `__dlpack_device__` for an array on a device: (type, number)."""
    return (CUDA, device.index) if device.is_cuda else (HOST, 0)


def capsule(array: Array, **options: Any) -> Any:
    """The result of `array.__dlpack__` with the reader's options that are not None.

    On a GPU all that makes the array must have been started: the reader's stream is told to wait
    for CuPy's current one.
    """
    return array.__dlpack__(**{name: value for name, value in options.items() if value is not None})
