"""The items of a queue: launches and host calls, and their names in errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dynbatch.backend import Array, DType, is_out_of_memory
from dynbatch.errors import BackendError, DynbatchError, OutOfMemory
from dynbatch.kernels.cuda.runtime.captured import KernelLaunch, NotCapturable
from dynbatch.kernels.cuda.runtime.launch import Dimensions, Kernels
from dynbatch.kernels.cuda.runtime.packing import Arguments
from dynbatch.kernels.cuda.runtime.staging import Upload

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class Work(Protocol):
    """Queued work. `str` gives its name in errors."""

    @property
    def label(self) -> str:
        """The node or batch that it is done for."""

    def start(self, upload: Upload, stream: int) -> None:
        """Start the work now, on CuPy's current stream, whose address is `stream`."""

    def launches_in_graph(self) -> Iterable[KernelLaunch]:
        """The launches that it makes, for a CUDA graph.

        Raises:
            NotCapturable: a graph cannot hold it.
        """


class WorkQueue(Protocol):
    """The interface of a queue for its work; implemented by `queue.Queue`."""

    label: str

    @property
    def upload(self) -> int: ...
    @property
    def few_rows(self) -> int: ...
    def kernels(self, dtype: DTypeLike) -> Kernels: ...
    def add(self, work: Work) -> None: ...
    def stage(self, array: Array, dtype: DType) -> int: ...
    def launch(
        self, dtype: DTypeLike, name: str, grid: Dimensions, block: Dimensions, args: Arguments
    ) -> Work | None: ...


class HostCall(NamedTuple):
    """Any other device work between the launches."""

    function: Callable[[], object]
    label: str

    def __str__(self) -> str:
        return "a call"

    def start(self, upload: Upload, stream: int) -> None:
        self.function()

    def launches_in_graph(self) -> Iterable[KernelLaunch]:
        raise NotCapturable(f"{self.label or 'no node'}: a call of Python between its kernels")


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
