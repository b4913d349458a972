"""Compiles and launches CUDA kernels; nothing else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array, DType
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.cupy_types import CompiledKernel, CudaText, CupyModule
from dynbatch.kernels.cuda.runtime.packing import HEADER_WORDS, Arguments, Packed, Packer
from dynbatch.kernels.cuda.runtime.source import CudaSource
from dynbatch.kernels.cuda.runtime.staging import Table, Upload

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

REAL = {"float32": "float", "float64": "double"}
# Dynamic shared memory that any kernel may ask for; above it the driver wants to be told.
DEFAULT_SHARED_BYTES = 48 * 1024

# Blocks that a grid may have in its second and third dimension.
MOST_ACROSS = 65535

Dimensions = tuple[int, ...]
"""Of a grid, in blocks, or of a block, in threads: up to three."""


class Room:
    """Where the driver reads the arguments of a launch; it copies them before it returns.

    Attributes:
        extra:   its address for the driver.
        data, words, numbers: the arguments as bytes, pointers and ints.
    """

    __slots__ = ("_memory", "data", "extra", "numbers", "words")

    def __init__(self, packer: Packer) -> None:
        self._memory = packer.room(1)[0]
        self.extra: int = self._memory.ctypes.data
        self.words = memoryview(self._memory[HEADER_WORDS:])
        whole = self.words.cast("B")
        self.data, self.numbers = whole[: packer.size], whole.cast("i")

    def fill(self, packed: Packed, upload: Upload) -> None:
        """Write arguments, with the addresses of their tables in an upload."""
        self.data[:] = packed.data
        for word, table in packed.tables:
            self.words[word] = upload.address(table)


class LoadedKernel:
    """A compiled kernel on the device.

    Attributes:
        function: what the driver calls it.
        room:     for the arguments of one launch at a time.
    """

    __slots__ = ("_compiled", "_shared", "function", "room")

    def __init__(self, compiled: CompiledKernel, packer: Packer) -> None:
        self._compiled = compiled
        self._shared = DEFAULT_SHARED_BYTES
        self.function = compiled.kernel.ptr
        self.room = Room(packer)

    def allow(self, shared: int) -> None:
        """Tell the driver of the most dynamic shared memory that launches ask for."""
        if shared > self._shared:
            self._compiled.max_dynamic_shared_size_bytes = self._shared = shared


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
        self._loaded: dict[str, LoadedKernel] = {}
        self._packers: dict[str, Packer] = {}
        self.driver_launch = self.cupy.cuda.driver.launchKernel

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
        if 0 in grid or 0 in block:
            return
        packed = self.packer(name).pack(args, no_table)
        stream = self.cupy.cuda.get_current_stream().ptr
        self.start(name, grid, block, packed, shared, Upload(0, 0, 0), stream)

    def packer(self, name: str) -> Packer:
        """The layout of the arguments of the kernel `name`, without compiling it."""
        known = self._packers.get(name)
        if known is None:
            parameters = self._source(name).kernels[name]
            known = self._packers[name] = Packer(name, parameters, self.dtype)
        return known

    def start(
        self,
        name: str,
        grid: Dimensions,
        block: Dimensions,
        packed: Packed,
        shared: int,
        upload: Upload,
        stream: int,
    ) -> None:
        """Launch with packed arguments on the stream with that address; no size is zero.

        Raises:
            ShapeError: the grid is too large in its second or third dimension.
        """
        if len(grid) > 1:
            check_grid(name, grid)
        kernel = self._loaded.get(name) or self.loaded(name)
        if shared > DEFAULT_SHARED_BYTES:
            kernel.allow(shared)
        room = kernel.room
        room.fill(packed, upload)
        self.launches[name] += 1
        self.driver_launch(
            kernel.function, *in_three(grid), *in_three(block), shared, stream, 0, room.extra
        )

    def loaded(self, name: str) -> LoadedKernel:
        """The kernel `name`, compiled and loaded when it is first wanted."""
        known = self._loaded.get(name)
        if known is None:
            self.cupy.cuda.runtime.memGetInfo()  # makes the device's context that of this thread
            known = self._loaded[name] = LoadedKernel(self._compile(name), self.packer(name))
        return known

    def of_steps(self, name: str) -> LoadedKernel:
        """The kernel `name` with its arguments in a table; see `source.of_steps`."""
        wrapper = f"{name}_of_step"
        if wrapper not in self._generated:
            self.add(source.of_steps(self._source(name)))
        return self.loaded(wrapper)

    def _source(self, name: str) -> CudaSource:
        return self._generated.get(name) or source.home(name)

    def _compile(self, name: str) -> CompiledKernel:
        text = self._source(name)
        module = self._modules.get(text.text)
        if module is None:
            options = ("-std=c++17", f"-DREAL={REAL[self.dtype.name]}")
            module = self.cupy.RawModule(code=text.text, options=options)
            self._modules[text.text] = module
        return module.get_function(name)


def in_three(extents: tuple[Any, ...]) -> tuple[Any, ...]:
    """A grid or block in three dimensions."""
    return (*extents, 1, 1)[:3]


def check_grid(name: str, grid: Sequence[int]) -> None:
    """Raise ShapeError where a grid is too large in its second or third dimension."""
    if max(grid[1:]) > MOST_ACROSS:
        raise ShapeError(
            f"{name}: a grid of {' x '.join(map(str, grid))} blocks.\n"
            f"  rule: at most {MOST_ACROSS} across; a block often takes 32 columns\n"
            "  fix:  narrower rows"
        )


def no_table(array: Array, dtype: DType) -> Table:
    """Refuse a host array among a kernel's arguments."""
    raise DtypeError(f"a host array of {array.dtype}: only a queue makes it a table")
