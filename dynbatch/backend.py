"""Devices and their array modules; the only module that imports CuPy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dynbatch.errors import BackendError

DType = np.dtype[Any]
Array = np.ndarray[Any, DType]
"""An array of NumPy or CuPy: the array alias of the whole package."""

ArrayModule = Any
"""NumPy or CuPy: the module whose functions make and read arrays."""

NAMES = ("cpu", "cuda")

LEAST_CAPABILITY = {13: 75, 12: 60}
"""The oldest GPUs, by CUDA's version: Turing, where CUDA 13 begins, and Pascal under CUDA 12."""

_stand_in: list[ArrayModule] = []


class Device:
    """Where the values of a graph, or the arrays of a model, live.

    Attributes:
        name: "cpu" or "cuda" (CuPy's current device).
        xp:   its array module, NumPy or CuPy.
        is_cuda: whether it is a GPU.
    """

    __slots__ = ("is_cuda", "name", "xp")

    def __init__(self, name: str, xp: ArrayModule) -> None:
        self.name = name
        self.xp = xp
        self.is_cuda = name == "cuda"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Device({self.name!r})"


CPU = Device("cpu", np)


def device(name: str | Device) -> Device:
    """The device with a name.

    Raises:
        BackendError: there is no such device, CuPy is not installed, or it finds no GPU to use.
    """
    if isinstance(name, Device):
        return name
    if name == "cpu":
        return CPU
    if name != "cuda":
        raise BackendError(
            f"device {name!r} is unknown.\n  rule: one of {', '.join(NAMES)}\n"
            '  fix:  device="cuda"; cupy.cuda.Device(1).use() selects another GPU'
        )
    module = cupy()
    if not _stand_in:
        require_gpu(module)
    return Device("cuda", module)


def device_of(array: object) -> Device:
    """The device that holds an array. A GPU that holds arrays is not looked for again."""
    return CPU if isinstance(array, np.ndarray) else Device("cuda", cupy())


def is_device_array(value: object) -> bool:
    """Whether a value is an array of CuPy or its stand-in. Imports nothing."""
    module = _stand_in[-1] if _stand_in else sys.modules.get("cupy")
    return module is not None and isinstance(value, module.ndarray)


def cupy() -> ArrayModule:
    """CuPy, or what `stand_in` put in its place.

    Raises:
        BackendError: CuPy is not installed.
    """
    if _stand_in:
        return _stand_in[-1]
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise BackendError(
            f"CUDA is not available: CuPy cannot be imported ({error}).\n"
            "  fix:  pip install 'dynbatch[cuda13]' (or cuda12), or use device=\"cpu\""
        ) from error


def nccl() -> Any:
    """CuPy's NCCL, or that of what `stand_in` put in its place.

    Raises:
        BackendError: CuPy or NCCL is not installed.
    """
    if _stand_in:
        return _stand_in[-1].cuda.nccl
    cupy()
    found = importlib.import_module("cupy.cuda.nccl")
    if not found.available:
        raise BackendError(
            "NCCL is not available: CuPy finds no libnccl.\n"
            "  fix:  pip install nvidia-nccl-cu13 (or nvidia-nccl-cu12, as CuPy's CUDA is)"
        )
    return found


def require_gpu(module: ArrayModule) -> None:
    """Raise BackendError unless this CuPy finds a GPU that it can compile for, and cuBLAS."""
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(
            f"CUDA is not available: {error}.\n"
            "  fix:  install an NVIDIA driver that fits the CUDA version of CuPy "
            '(nvidia-smi shows both), or use device="cpu"'
        ) from error
    if not count:
        raise BackendError('CUDA is not available: no GPU was found.\n  fix:  use device="cpu"')
    try:
        module.cuda.cublas  # noqa: B018  CuPy looks for the library here
    except ImportError as error:
        raise BackendError(
            f"CUDA is not available: cuBLAS cannot be loaded ({error}).\n"
            "  fix:  install CUDA's libraries beside CuPy: pip install 'dynbatch[cuda13]' (or "
            'cuda12), or use device="cpu"'
        ) from error
    _require_capability(module)


def _require_capability(module: ArrayModule) -> None:
    """Refuse older GPUs: CUDA 13's compiler would name neither them nor the reason."""
    cuda = min(module.cuda.runtime.runtimeGetVersion() // 1000, max(LEAST_CAPABILITY))
    capability = int(module.cuda.Device().compute_capability)
    least = LEAST_CAPABILITY.get(cuda, 0)
    if capability < least:
        fits = capability >= LEAST_CAPABILITY[12]
        older = "pip uninstall cupy-cuda13x, then pip install 'dynbatch[cuda12]', or "
        raise BackendError(
            f"CUDA is not available: this GPU has capability {_dotted(capability)}, "
            f"and CuPy is built for CUDA {cuda}.\n"
            f"  rule: with CUDA {cuda}, capability {_dotted(least)} or more\n"
            f'  fix:  {older if fits else ""}use device="cpu"'
        )


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of CuPy, or of the driver, says that memory ran out."""
    return isinstance(error, MemoryError) or "MemoryAllocation" in str(error)


@contextmanager
def stand_in(module: ArrayModule) -> Iterator[None]:
    """Use `module` in place of CuPy inside the block: for tests on machines without a GPU."""
    _stand_in.append(module)
    try:
        yield
    finally:
        _stand_in.pop()
