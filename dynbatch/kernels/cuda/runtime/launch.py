"""Compiles and launches CUDA kernels; nothing else does."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array, DType
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.cupy_types import CompiledKernel, CudaText, CupyModule
from dynbatch.kernels.cuda.runtime.source import CudaSource, KernelParameter

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

REAL = {"float32": "float", "float64": "double"}
SCALARS: dict[str, type[np.generic]] = {
    "bool": np.bool_,
    "int": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
}
# Dynamic shared memory that any kernel may ask for; above it the driver wants to be told.
DEFAULT_SHARED_BYTES = 48 * 1024

# Blocks that a grid may have in its second and third dimension.
MOST_ACROSS = 65535

Argument = Array | np.generic | float | None
"""An array of host or device, an address, a number, or None for NULL."""

Cast = Callable[[Any], Argument]
Arguments = Sequence[Argument]
Dimensions = tuple[int, ...]
"""Of a grid, in blocks, or of a block, in threads: up to three."""


class KernelArgument(NamedTuple):
    """The type of a kernel parameter: `cast` converts a value to it.

    `table` is the dtype in which a host array is uploaded for a pointer; None for a number.
    """

    cast: Cast
    table: DType | None


class Kernels:
    """The kernels for one element type, compiled when they are first launched.

    Kernels run on CuPy's current device and stream. A kernel never waits for the device.

    Args:
        dtype: float32 or float64: what REAL stands for.
        cupy:  the module to use; CuPy itself unless a test gives a stand-in.

    Attributes:
        launches: launches so far, by kernel name.

    Raises:
        BackendError: CuPy is not installed.
        DtypeError: another dtype.
    """

    def __init__(self, dtype: DTypeLike, cupy: CupyModule | None = None) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in REAL:
            raise DtypeError(f"CUDA kernels take float32 or float64, not {self.dtype}")
        self.cupy: CupyModule = backend.cupy() if cupy is None else cupy
        self.launches: Counter[str] = Counter()
        self._generated: dict[str, CudaSource] = {}
        self._modules: dict[str, CudaText] = {}
        self._compiled: dict[str, CompiledKernel] = {}
        self._arguments: dict[str, tuple[KernelArgument, ...]] = {}

    def add(self, generated: CudaSource) -> None:
        """Register the kernels of a generated source by name.

        Raises:
            ValueError: another kernel of that name is registered.
        """
        for name in generated.kernels:
            known = self._generated.setdefault(name, generated)
            if known.text != generated.text:
                raise ValueError(f"two generated sources define a kernel {name!r}")

    def launch(
        self, name: str, grid: Dimensions, block: Dimensions, args: Arguments, shared: int = 0
    ) -> None:
        """Launch the kernel `name`, or nothing where grid or block has a zero.

        Args:
            grid:   blocks, in up to three dimensions.
            block:  threads of a block, in up to three dimensions.
            args:   one for each parameter of the kernel. For a pointer: a device array, an address
                    as a Python int, or None for NULL. For a number: a Python or NumPy number, cast
                    to the parameter's own width. For a struct: a NumPy array of one element.
            shared: bytes of dynamic shared memory for each block.

        Raises:
            DtypeError: an array or number is not what the parameter takes.
            ShapeError: an array is not C-contiguous, or the number of arguments is wrong.
            OverflowError: an integer does not fit its parameter.
        """
        if 0 in grid or 0 in block:  # CuPy would turn the 0 into 1
            return
        arguments = self.arguments(name, len(args))
        values = [argument.cast(value) for argument, value in zip(arguments, args, strict=True)]
        self.start(name, grid, block, values, shared)

    def arguments(self, name: str, count: int) -> tuple[KernelArgument, ...]:
        """The parameter types of the kernel `name`, without compiling it.

        Raises:
            ShapeError: the kernel does not have `count` parameters.
        """
        known = self._arguments.get(name)
        if known is None:
            parameters = (self._generated.get(name) or source.home(name)).kernels[name]
            known = tuple([_argument(name, each, self.dtype) for each in parameters])
            self._arguments[name] = known
        if len(known) != count:
            raise ShapeError(f"{name} takes {len(known)} arguments, not {count}")
        return known

    def start(
        self, name: str, grid: Dimensions, block: Dimensions, values: Arguments, shared: int = 0
    ) -> None:
        """Launch with values already cast; no size is zero.

        Raises:
            ShapeError: the grid is too large in its second or third dimension.
        """
        if len(grid) > 1 and max(grid[1:]) > MOST_ACROSS:
            raise ShapeError(
                f"{name}: a grid of {' x '.join(map(str, grid))} blocks.\n"
                f"  rule: at most {MOST_ACROSS} across; a block often takes 32 columns\n"
                "  fix:  narrower rows"
            )
        kernel = self._compiled.get(name)
        if kernel is None:
            kernel = self._compiled[name] = self._compile(name)
        if shared > DEFAULT_SHARED_BYTES:
            kernel.max_dynamic_shared_size_bytes = shared
        self.launches[name] += 1
        kernel(grid, block, values, shared_mem=shared)

    def _compile(self, name: str) -> CompiledKernel:
        text = self._generated.get(name) or source.home(name)
        module = self._modules.get(text.text)
        if module is None:
            options = ("-std=c++17", f"-DREAL={REAL[self.dtype.name]}")
            module = self.cupy.RawModule(code=text.text, options=options)
            self._modules[text.text] = module
        return module.get_function(name)


def _argument(kernel: str, parameter: KernelParameter, real: DType) -> KernelArgument:
    """The type of a parameter, for one element type.

    CuPy passes a Python int as 8 bytes and a float as a double, whatever the kernel reads.
    """
    where = f"{kernel}: argument {parameter.name!r}"
    scalar = real.type if parameter.type == "REAL" else SCALARS.get(parameter.type)
    if parameter.is_pointer:
        dtype = np.dtype(scalar) if scalar else None
        return KernelArgument(_pointer(where, dtype), dtype or np.dtype(np.uint8))
    if scalar is None:
        return KernelArgument(_as_it_is, None)  # a struct; its layout is the caller's affair
    if issubclass(scalar, np.floating):
        return KernelArgument(scalar, None)

    def to_integer(value: Any) -> np.generic:
        try:
            return scalar(operator.index(value))
        except TypeError:
            raise DtypeError(f"{where} is an integer, not {value!r}") from None

    return KernelArgument(to_integer, None)


def _as_it_is(value: Argument) -> Argument:
    return value


def _pointer(where: str, dtype: DType | None) -> Cast:
    def to_pointer(value: Any) -> Argument:
        if value is None:
            return 0  # CuPy would hand the driver no argument at all, instead of a NULL
        if isinstance(value, int):
            return value
        given = getattr(value, "dtype", None)
        if given is not None and dtype is not None and given != dtype:
            raise DtypeError(f"{where} points to {dtype}, not {given}")
        if given is not None and not value.flags.c_contiguous:
            raise ShapeError(f"{where} is not C-contiguous")
        return value  # type: ignore[no-any-return]

    return to_pointer
