"""Devices and their array modules; the only module that imports CuPy."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dynbatch.errors import BackendError

DType = np.dtype[Any]
Array = np.ndarray[Any, DType]
"""An array of NumPy or CuPy: the array alias of the whole package."""

ArrayModule = Any
"""NumPy or CuPy: the module whose functions make and read arrays."""

NAMES = ("cpu", "cuda")
"""The kinds of devices. GPUs are counted: "cuda:1" is the second one."""

LEAST_CAPABILITY = {13: 75, 12: 60}
"""The oldest GPUs, by CUDA's version: Turing, where CUDA 13 begins, and Pascal under CUDA 12."""

OUT_OF_MEMORY = (
    "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED",
)  # fmt: skip
"""The names, in the messages of CuPy's errors, for memory that CUDA's runtime, its driver, which
loads and starts kernels, or cuBLAS did not get."""

Made = TypeVar("Made")

_stand_in: list[ArrayModule] = []


class OfThread(threading.local):
    """The module that stands in for CuPy in one thread."""

    module: ArrayModule | None = None


of_thread = OfThread()


class Device:
    """The place of a graph's values or a model's arrays: the CPU, or one GPU.

    Args:
        xp:      the array module, NumPy or CuPy; None for a GPU that is only planned for.
        is_cuda: whether it is a GPU.
        index:   its number; 0 on the CPU.
    """

    __slots__ = ("_module", "index", "is_cuda")

    def __init__(self, xp: ArrayModule | None, is_cuda: bool, index: int = 0) -> None:
        self.is_cuda = is_cuda
        self.index = index
        self._module = xp

    @property
    def name(self) -> str:
        """The name: "cpu", "cuda", or "cuda:1" for the second GPU where there are several."""
        if not self.is_cuda:
            return "cpu"
        module = self._module
        counts = self.index or (module is not None and module.cuda.runtime.getDeviceCount() > 1)
        return f"cuda:{self.index}" if counts else "cuda"

    @property
    def xp(self) -> ArrayModule:
        """The array module, NumPy or CuPy, of which it is the current device; see `use`.

        Raises:
            BackendError: the device is only planned for.
        """
        self.use()
        return self._module

    def use(self) -> None:
        """Make a GPU CuPy's current device in this thread: arrays are made, and kernels run there.

        Whatever works on a GPU begins so, and leaves it current.
        """
        if self.is_cuda:
            if self._module is None:
                raise BackendError(
                    f"device {self.name!r} is planned for, and has no arrays.\n"
                    "  rule: sizes follow from shapes, dtype and device alone\n"
                    "  fix:  `batch.device.is_cuda` tells where they differ, and not batch.xp"
                )
            cuda = self._module.cuda
            if cuda.runtime.getDevice() != self.index:
                cuda.Device(self.index).use()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return False
        return self.is_cuda is other.is_cuda and self.index == other.index

    def __hash__(self) -> int:
        return hash((self.is_cuda, self.index))

    def __repr__(self) -> str:
        return f"Device({self.name!r})"


CPU = Device(np, False)

_gpus: dict[int, Device] = {}  # of the module that stood in last, or CuPy


def device(name: str | Device) -> Device:
    """The device with a name: "cpu", "cuda:1", or "cuda", CuPy's current device in this thread.

    Raises:
        BackendError: there is no such device, CuPy is not installed, or it finds no GPU to use.
    """
    if isinstance(name, Device):
        return name
    is_cuda, index = _parsed(name)
    if not is_cuda:
        return CPU
    module = cupy()
    if not _stand_in:
        require_gpu(module, index)
    runtime = module.cuda.runtime
    if index is not None and index >= runtime.getDeviceCount():
        raise _no_gpu(index, runtime.getDeviceCount())
    return _gpu(module, runtime.getDevice() if index is None else index)


def planned_device(name: str | Device) -> Device:
    """The device with a name, for plans: it need not be there, nor CuPy.

    Raises:
        BackendError: there is no such name.
    """
    if isinstance(name, Device):
        return name
    is_cuda, index = _parsed(name)
    return Device(None, True, index or 0) if is_cuda else CPU


def _parsed(name: str) -> tuple[bool, int | None]:
    """Whether a name is of a GPU, and its number, if it says one."""
    kind, colon, number = str(name).partition(":")
    if name != "cpu" and (kind != "cuda" or bool(colon) is not number.isdecimal()):
        raise BackendError(
            f"device {name!r} is unknown.\n  rule: cpu, cuda, or cuda:1, the second GPU\n"
            '  fix:  device="cuda" is the GPU that CuPy works on now'
        )
    return kind == "cuda", int(number) if colon else None


class ArraySpec(NamedTuple):
    """The device and dtype of arrays, from which sizes follow even where there are no arrays."""

    device: Device
    dtype: DType

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)


def spec_of(array: Array) -> ArraySpec:
    """The device and the dtype of an array."""
    return ArraySpec(device_of(array), array.dtype)


def device_of(array: Any) -> Device:
    """The device that holds an array. A GPU that holds arrays is not looked for again."""
    return CPU if isinstance(array, np.ndarray) else gpu(array.data.device_id)


def gpu(index: int) -> Device:
    """A GPU that is known to be there, by its number."""
    return _gpu(cupy(), index)


def _gpu(module: ArrayModule, index: int) -> Device:
    if module is of_thread.module:
        return Device(module, True, index)
    known = _gpus.get(index)
    if known is None or known._module is not module:
        known = _gpus[index] = Device(module, True, index)
    return known


def is_device_array(value: object) -> bool:
    """Whether a value is an array of CuPy or its stand-in. Imports nothing."""
    # `_standing_in` without its call: this is asked of every argument of a node.
    module = of_thread.module or (_stand_in[-1] if _stand_in else sys.modules.get("cupy"))
    return module is not None and isinstance(value, module.ndarray)


def cupy() -> ArrayModule:
    """CuPy, or what `stand_in` put in its place.

    Raises:
        BackendError: CuPy is not installed.
    """
    module = _standing_in()
    if module is not None:
        return module
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
    module = importlib.import_module("cupy.cuda.nccl")
    if not module.available:
        raise BackendError(
            "NCCL is not available: CuPy finds no libnccl.\n"
            "  fix:  pip install nvidia-nccl-cu13 (or nvidia-nccl-cu12, as CuPy's CUDA is)"
        )
    return module


def require_gpu(module: ArrayModule, index: int | None = None) -> None:
    """Raise BackendError unless this CuPy finds a GPU that it can compile for, and cuBLAS.

    Args:
        index: the GPU's number; None for CuPy's current one.
    """
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
    if index is not None and index >= count:
        raise _no_gpu(index, count)
    _require_capability(module, index)


def _no_gpu(index: int, count: int) -> BackendError:
    return BackendError(
        f"device 'cuda:{index}': this machine has {count} GPU{'s' * (count > 1)}, counted from 0.\n"
        f"  fix:  cuda:{count - 1} is the last; CUDA_VISIBLE_DEVICES hides others from a process"
    )


def _require_capability(module: ArrayModule, index: int | None) -> None:
    """Refuse older GPUs: CUDA 13's compiler would name neither them nor the reason."""
    cuda = min(module.cuda.runtime.runtimeGetVersion() // 1000, max(LEAST_CAPABILITY))
    device = module.cuda.Device() if index is None else module.cuda.Device(index)
    capability = int(device.compute_capability)
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
    """Whether an error of CuPy, of CUDA, or of an allocator says that memory ran out."""
    is_named = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    return is_named or any([name in str(error) for name in OUT_OF_MEMORY])


def with_memory_of_cupy(make: Callable[[], Made]) -> Made:
    """The result of `make`, which takes memory of a GPU outside of CuPy's pool.

    Where there is none, the pool gives back what it holds unused, and `make` is tried once more.
    """
    try:
        return make()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    cupy().get_default_memory_pool().free_all_blocks()
    return make()


def _standing_in() -> ArrayModule | None:
    return of_thread.module or (_stand_in[-1] if _stand_in else None)


@contextmanager
def stand_in(module: ArrayModule) -> Iterator[None]:
    """Use `module` in place of CuPy inside the block: for tests on machines without a GPU."""
    _stand_in.append(module)
    try:
        yield
    finally:
        _stand_in.pop()


@contextmanager
def stand_in_here(module: ArrayModule) -> Iterator[None]:
    """Use `module` in place of CuPy inside the block, in this thread alone."""
    before, of_thread.module = of_thread.module, module
    try:
        yield
    finally:
        of_thread.module = before
