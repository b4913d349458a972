"""What a queue holds: launches, products of cuBLAS and other calls, and how errors name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynbatch.backend import is_out_of_memory
from dynbatch.errors import BackendError, DynbatchError, OutOfMemory
from dynbatch.kernels.cuda.runtime.cublas import Product
from dynbatch.kernels.cuda.runtime.launch import KernelArgument, Kernels
from dynbatch.kernels.cuda.runtime.staging import Table, Upload
from dynbatch.kernels.cuda.runtime.streams import Fork

if TYPE_CHECKING:
    from dynbatch.kernels.cuda.runtime.queue import Queue


class Launch(NamedTuple):
    """One launch that waits. `values` are cast, or `Table`s; `label` says for whom it is made."""

    kernels: Kernels
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    values: Sequence[Any]
    shared: int
    label: str


class RepeatedLaunch:
    """A kernel that a run launches many times with the same arguments but the last, an int.

    They are staged and cast once for each flush, most often once for the run, so that a launch
    costs little: the loops of scans are such. Tables lie on the device for one flush only. Where a
    loop is flushed in between, as before a node type of the user's, the next launch stages them
    again.
    """

    __slots__ = ("_args", "_arguments", "_is_placed", "_upload", "_values", "kernels", "name",
                 "queue")  # fmt: skip

    def __init__(
        self,
        queue: Queue,
        kernels: Kernels,
        name: str,
        arguments: Sequence[KernelArgument],
        args: Sequence[Any],
    ) -> None:
        self.queue = queue
        self.kernels = kernels
        self.name = name
        self._arguments = arguments
        self._args = args
        self._values: Sequence[Any] = ()
        self._upload = -1  # which brings up the tables of `_values`
        self._is_placed = False

    def launch(self, grid: int, block: int, last: int) -> None:
        """Have it launched after everything that waits."""
        if not grid:
            return
        queue = self.queue
        if self._upload != queue.upload:
            self._values = queue.ready(self.name, self._arguments, self._args)
            self._upload, self._is_placed = queue.upload, False
        queue.add(Turn(self, grid, block, last, queue.label))

    def start(self, turn: Turn, upload: Upload) -> None:
        """Launch it now."""
        if not self._is_placed:
            self._values, self._is_placed = placed(self._values, upload), True
        values = [*self._values, np.int32(turn.last)]
        self.kernels.start(self.name, (turn.grid,), (turn.block,), values)


class Turn(NamedTuple):
    """One launch of a repeated kernel."""

    repeated: RepeatedLaunch
    grid: int
    block: int
    last: int
    label: str


class HostCall(NamedTuple):
    """Any other work of the device, in its place between the launches."""

    function: Callable[[], None]
    label: str


Item = Launch | Turn | Product | HostCall

# What driver and compiler say where the GPU is newer than the compiler.
NEWER_THAN_COMPILER = (
    "NO_BINARY_FOR_GPU",
    "NoKernelImageForDevice",
    "no kernel image is available",
    "invalid value for --gpu-architecture",
)


def placed(values: Sequence[Any], upload: Upload) -> list[Any]:
    """Values with the addresses of their tables."""
    return [upload.address(value) if type(value) is Table else value for value in values]


def what_is(item: Item | Fork) -> str:
    """An item as errors call it."""
    if isinstance(item, Fork):
        return "branches side by side"
    if isinstance(item, Launch):
        return f"kernel {item.name}"
    if isinstance(item, Turn):
        return f"kernel {item.repeated.name}"
    return "a product of cuBLAS" if isinstance(item, Product) else "a call"


def refused(error: Exception, what: str, label: str) -> DynbatchError:
    """What to raise where the device did not do something: for which node and batch that was."""
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
        "  rule: a GPU that has failed inside a kernel may refuse all later work of this process\n"
        "  fix:  db.Graph(check=True) finds the batch where numbers first go wrong; report a\n"
        "        kernel that fails"
    )
