"""Compiles and launches CUDA kernels; nothing else does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array, DType
from dynbatch.cupy_types import CompiledKernel, CupyModule
from dynbatch.errors import BackendError, DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.captured import KernelLaunch
from dynbatch.kernels.cuda.runtime.packing import (
    HEADER_WORDS,
    Arguments,
    Packer,
    Stage,
    Tables,
)
from dynbatch.kernels.cuda.runtime.source import CudaSource
from dynbatch.kernels.cuda.runtime.staging import Upload
from dynbatch.kernels.runtime.compiling import compiling

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

REAL = {"float32": "float", "float64": "double"}
# Since this NVRTC it can leave out textures and CUDA's runtime functions, which it reads before
# every text; none of our kernels uses one.
MINIMAL, NVRTC_OF_MINIMAL = "--minimal", (12, 4)
# Shared memory that a block of any kernel may have; the driver wants to be told of more.
DEFAULT_SHARED_BYTES = 48 * 1024

# Blocks that a grid may have in its second and third dimension.
THREADS = 256  # of a block
TILE = 4 * THREADS  # elements of a block: EACH of common.cuh for every thread
MOST_ACROSS = 65535
# What completes a grid or block of fewer dimensions than three.
ONES: tuple[tuple[int, ...], ...] = ((1, 1, 1), (1, 1), (1,), ())

Dimensions = tuple[int, ...]
"""Of a grid, in blocks, or of a block, in threads: up to three."""


class Room:
    """Memory from which the driver reads a launch's arguments; it copies them before it returns.

    Attributes:
        extra:   its address for the driver.
        data, words: the arguments as bytes and as addresses.
    """

    __slots__ = ("_memory", "data", "extra", "words")

    def __init__(self, packer: Packer) -> None:
        self._memory = packer.room(1)[0]
        self.words = self._memory[HEADER_WORDS:].data
        self.data = self.words.cast("B")[: packer.size]
        self.extra: int = self._memory.ctypes.data


class LoadedKernel:
    """A compiled kernel on the device.

    Attributes:
        function: what the driver calls it.
        allowed:  the most dynamic shared memory of its launches so far, in bytes.
        room:     for the arguments of one launch at a time.
    """

    __slots__ = ("_compiled", "allowed", "function", "room")

    def __init__(self, compiled: CompiledKernel, packer: Packer) -> None:
        self._compiled = compiled
        self.allowed = 0
        self.function = compiled.kernel.ptr
        self.room = Room(packer)

    def allow(self, shared: int) -> None:
        """Tell the driver of dynamic shared memory for which the default leaves no room.

        A block has its static shared memory beside it.
        """
        if shared > self.allowed:
            if shared + self._compiled.shared_size_bytes > DEFAULT_SHARED_BYTES:
                self._compiled.max_dynamic_shared_size_bytes = shared
            self.allowed = shared


class Kernels:
    """The kernels for one element type, compiled when they are first launched.

    Kernels run on CuPy's current device and stream. A kernel never waits for the device.

    Args:
        dtype: float32 or float64: what REAL stands for.
        cupy:  the module to use; CuPy itself unless a test gives a stand-in.

    Attributes:
        launches: launches so far, by kernel name.
        known:    the kernels started so far, by name.
        packers:  of the kernels launched so far, by name.
        needed:   kernels that wait in a queue and are not known, in order of their launches.
        ahead:    kernels that threads compile for the flush that needs them, by name.

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
        self.known: dict[str, LoadedKernel] = {}
        self.packers: dict[str, Packer] = {}
        self.needed: list[str] = []
        self.ahead: dict[str, Future[CompiledKernel]] = {}
        self._whole_text = threading.Lock()  # is one module, whichever of its kernels comes first
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
        Launch(self, name, grid, block, args, packed, 0, shared, "").start(Upload(0, 0, 0), stream)

    def packer(self, name: str) -> Packer:
        """The layout of the arguments of the kernel `name`, without compiling it."""
        known = self.packers.get(name)
        if known is None:
            parameters = self._source(name).kernels[name]
            known = self.packers[name] = Packer(source.name_of(name), parameters, self.dtype)
        return known

    def loaded(self, name: str) -> LoadedKernel:
        """The kernel `name`, compiled and loaded when it is first wanted."""
        known = self.known.get(name)
        if known is None:
            with compiling():
                known = backend.with_memory_of_cupy(
                    lambda: LoadedKernel(self._compiled(name), self.packer(name))
                )
            self.known[name] = known
        return known

    def know_of_steps(self, name: str) -> None:
        """Register NAME_of_step, whose arguments lie in a table; see `source.of_steps`."""
        if f"{name}_of_step" not in self._generated:
            self.add(source.of_steps(self._source(name)))

    def need(self, name: str) -> None:
        """Have a kernel compiled beside the others that the next flush is the first to start."""
        if name not in self.known:
            self.needed.append(name)

    def text(self, name: str) -> str:
        """The CUDA text of the kernel `name`, which is compiled by itself."""
        return source.alone(self._source(name), name)

    def compile(self, name: str) -> CompiledKernel:
        """Compile the kernel `name`, or take it from CuPy's cache, and load it; in any thread."""
        self.cupy.cuda.runtime.memGetInfo()  # makes the device's context that of this thread
        text = self._source(name)
        options: tuple[str, ...] = ("-std=c++17", f"-DREAL={REAL[self.dtype.name]}")
        if text.origin is None and self.cupy.cuda.nvrtc.getVersion() >= NVRTC_OF_MINIMAL:
            options = (*options, MINIMAL)
        module = self.cupy.RawModule(code=self.text(name), options=options)
        try:
            with self._whole_text if text.origin is not None else nullcontext():
                return module.get_function(source.name_of(name))
        except Exception as error:
            if text.origin is not None and text.name in str(error):
                raise does_not_compile(text, name, error) from error
            raise

    def _source(self, name: str) -> CudaSource:
        return self._generated.get(name) or source.home(name)

    def _compiled(self, name: str) -> CompiledKernel:
        """The kernel, or the error, of the thread that compiled it ahead; else compile it now."""
        ahead = self.ahead.pop(name, None)
        return self.compile(name) if ahead is None else ahead.result()


class Launch:
    """One launch of a kernel.

    Args:
        args:   whose arrays live until it has been started.
        packed: their bytes, and the tables among them.
        upload: the number of that which brings the tables up.
        label:  the node or batch that it is done for.
    """

    __slots__ = ("_args", "_block", "_grid", "_in_graph", "_kernels", "_name", "_packed", "_shared",
                 "_upload", "label")  # fmt: skip

    def __init__(
        self, kernels: Kernels, name: str, grid: Dimensions, block: Dimensions, args: Arguments,
        packed: tuple[bytes, Tables], upload: int, shared: int, label: str,
    ) -> None:  # fmt: skip
        self._kernels = kernels
        self._name = name
        self._grid = grid
        self._block = block
        self._args = args
        self._packed = packed
        self._upload = upload
        self._shared = shared
        self._in_graph: KernelLaunch | None = None
        self.label = label

    def __str__(self) -> str:
        return f"kernel {source.name_of(self._name)}"

    @property
    def has_tables(self) -> bool:
        return bool(self._packed[1])

    def staged(self, upload: int, stage: Stage) -> Launch:
        kernels, name, args = self._kernels, self._name, self._args
        packed = kernels.packer(name).pack(args, stage)
        return Launch(
            kernels, name, self._grid, self._block, args, packed, upload, self._shared, self.label
        )

    def launches_in_graph(self) -> tuple[KernelLaunch]:
        if self._in_graph is None:
            grid, block = [(*sizes, *ONES[len(sizes)]) for sizes in (self._grid, self._block)]
            self._in_graph = KernelLaunch.of(
                self._kernels, self._name, grid, block, self._shared, *self._packed, self._upload
            )
        return (self._in_graph,)

    def forget(self) -> None:
        """Need its kernel no more: it was queued last, and is taken back."""
        needed = self._kernels.needed
        if needed and needed[-1] == self._name:
            needed.pop()

    def start(self, upload: Upload, stream: int) -> None:
        """Start it on the stream of that address; no size is zero.

        Raises:
            ShapeError: the grid is too large in its second or third dimension.
        """
        kernels, grid, block, shared = self._kernels, self._grid, self._block, self._shared
        kernel = kernels.known.get(self._name) or kernels.loaded(self._name)
        across = grid[1] if len(grid) > 1 else 1
        deep = grid[2] if len(grid) > 2 else 1
        if across > MOST_ACROSS or deep > MOST_ACROSS:
            raise too_wide(self._name, grid)
        if shared > kernel.allowed:
            kernel.allow(shared)
        data, tables = self._packed
        room = kernel.room
        room.data[:] = data
        if tables:
            if self._upload != upload.number:
                upload.require(self._upload)
            words, base = room.words, upload.base
            for word, offset in tables:
                words[word] = base + offset
        kernels.launches[self._name] += 1
        kernels.driver_launch(
            kernel.function, grid[0], across, deep, block[0], block[1] if len(block) > 1 else 1,
            block[2] if len(block) > 2 else 1, shared, stream, 0, room.extra,
        )  # fmt: skip


def too_wide(name: str, grid: Sequence[int]) -> ShapeError:
    """The error for a grid that is too large in its second or third dimension."""
    return ShapeError(
        f"{source.name_of(name)}: a grid of {' x '.join(map(str, grid))} blocks.\n"
        f"  rule: at most {MOST_ACROSS} across; a block often takes 32 columns\n"
        "  fix:  narrower rows"
    )


def does_not_compile(text: CudaSource, key: str, error: Exception) -> BackendError:
    return BackendError(
        f"kernel {source.name_of(key)} does not compile: {text.in_users_lines(str(error)).strip()}"
        "\n  rule: the text is CUDA C++17 and stands by itself; REAL is float or double\n"
        "  fix:  mend it in the line that the compiler names"
    )


def no_table(array: Array, dtype: DType) -> int:
    """Refuse a host array among a kernel's arguments."""
    raise DtypeError(f"a host array of {array.dtype}: only a queue makes it a table")
