"""The items of a queue: launches and host calls, and their names in errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from dynbatch.backend import is_out_of_memory
from dynbatch.errors import BackendError, DynbatchError, OutOfMemory
from dynbatch.kernels.cuda.runtime.launch import (
    Argument,
    Arguments,
    Dimensions,
    KernelArgument,
    Kernels,
)
from dynbatch.kernels.cuda.runtime.staging import Table, Upload

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Value = Argument | Table
"""An argument that was cast, or a table that the next flush brings up."""


class Work(Protocol):
    """Queued work. `str` gives its name in errors."""

    @property
    def label(self) -> str:
        """The node or batch that it is done for."""

    def start(self, upload: Upload, stream: int) -> None:
        """Start the work now, on CuPy's current stream, whose address is `stream`."""


class WorkQueue(Protocol):
    """The interface of a queue for its work; implemented by `queue.Queue`."""

    label: str

    @property
    def upload(self) -> int: ...
    def add(self, work: Work) -> None: ...
    def ready(
        self, name: str, arguments: Iterable[KernelArgument], args: Arguments
    ) -> list[Value]: ...
    def launch(
        self, dtype: DTypeLike, name: str, grid: Dimensions, block: Dimensions, args: Arguments
    ) -> None: ...


class Launch(NamedTuple):
    """One launch of a kernel."""

    kernels: Kernels
    name: str
    grid: Dimensions
    block: Dimensions
    values: Sequence[Value]
    shared: int
    label: str

    def __str__(self) -> str:
        return f"kernel {self.name}"

    def start(self, upload: Upload, stream: int) -> None:
        values = placed(self.values, upload)
        self.kernels.start(self.name, self.grid, self.block, values, self.shared)


class RepeatedLaunch:
    """A kernel that a run launches many times; only the last argument, an int, differs.

    The arguments are staged and cast once for each flush, most often once for the run, so that the
    many launches of a scan's loop cost little. Tables lie on the device for one flush only. If a
    flush interrupts the loop, as before a user's node type, the next launch stages them again.
    """

    __slots__ = ("_args", "_arguments", "_is_placed", "_queue", "_upload", "kernels", "name",
                 "values")  # fmt: skip

    def __init__(
        self,
        queue: WorkQueue,
        kernels: Kernels,
        name: str,
        arguments: Sequence[KernelArgument],
        args: Arguments,
    ) -> None:
        self._queue = queue
        self.kernels = kernels
        self.name = name
        self._arguments = arguments
        self._args = args
        self.values: Sequence[Value] = ()
        self._upload = -1  # which brings up the tables of `values`
        self._is_placed = False

    def launch(self, grid: int, block: int, last: int) -> None:
        """Queue a launch."""
        if not grid:
            return
        queue = self._queue
        if self._upload != queue.upload:
            self.values = queue.ready(self.name, self._arguments, self._args)
            self._upload, self._is_placed = queue.upload, False
        queue.add(Repetition(self, grid, block, last, queue.label))

    def values_of(self, upload: Upload) -> Arguments:
        """The arguments but the last, with the addresses of their tables."""
        if not self._is_placed:
            self.values, self._is_placed = placed(self.values, upload), True
        return self.values  # type: ignore[return-value]  # no table is left among them


class Repetition(NamedTuple):
    """One launch of a repeated kernel."""

    repeated: RepeatedLaunch
    grid: int
    block: int
    last: int
    label: str

    def __str__(self) -> str:
        return f"kernel {self.repeated.name}"

    def start(self, upload: Upload, stream: int) -> None:
        repeated = self.repeated
        values = [*repeated.values_of(upload), np.int32(self.last)]
        repeated.kernels.start(repeated.name, (self.grid,), (self.block,), values)


class HostCall(NamedTuple):
    """Any other device work between the launches."""

    function: Callable[[], object]
    label: str

    def __str__(self) -> str:
        return "a call"

    def start(self, upload: Upload, stream: int) -> None:
        self.function()


def placed(values: Sequence[Value], upload: Upload) -> list[Argument]:
    """Values with the addresses of their tables."""
    return [upload.address(value) if isinstance(value, Table) else value for value in values]


# What driver and compiler say where the GPU is newer than the compiler.
NEWER_THAN_COMPILER = (
    "NO_BINARY_FOR_GPU",
    "NoKernelImageForDevice",
    "no kernel image is available",
    "invalid value for --gpu-architecture",
)


def refused(error: Exception, what: str, label: str) -> DynbatchError:
    """The error for refused device work; it names node and batch."""
    whose = label or "no node"
    if is_out_of_memory(error):
        return OutOfMemory(
            f"{whose}: the GPU has no memory left for {what} ({error}).\n"
            "  fix:  use a smaller mini-batch; graph.explain() shows what is large"
        )
    if any([text in str(error) for text in NEWER_THAN_COMPILER]):
        return BackendError(
            f"{whose}: {what} could not be compiled for this GPU: {type(error).__name__}: {error}."
            "\n  rule: CuPy compiles machine code, for the GPUs that its CUDA version knows\n"
            "  fix:  set CUPY_COMPILE_WITH_PTX=1 in the environment, so that the driver compiles "
            "for this GPU,\n        or install CuPy for a newer CUDA"
        )
    return BackendError(
        f"{whose}: {what} failed on the GPU: {type(error).__name__}: {error}.\n"
        "  rule: after a failure inside a kernel, a GPU may refuse all later work of this process\n"
        "  fix:  db.Graph(check=True) finds the batch where numbers first go wrong; report a\n"
        "        kernel that fails"
    )
