"""`SentenceCell`: a compiled cell with matrices, for a GPU; `by_sentence` prints its kernels."""

from __future__ import annotations

from dynbatch.backend import DType
from dynbatch.compiler.buffers import Role, Storage
from dynbatch.compiler.cuda.by_sentence import SentenceKernel
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.heads import heads_of
from dynbatch.compiler.ir import Op
from dynbatch.compiler.program import Program
from dynbatch.errors import GraphError
from dynbatch.kernels.runtime.device_loops import queue


class SentenceLoop(Loop):
    """A loop whose buffers are those of C, where gradients of states stay in one array."""

    def __init__(self, backward: BackwardProgram, storage: Storage, gradients: Storage) -> None:
        self.storage, self.gradients = storage, gradients
        super().__init__(backward)
        self.temporary = self.temporary_gradients = []  # these lie in shared memory

    def _store(self, overwrites: bool) -> None:
        self.forward = self.backward = DevicePass(Program(), [])  # no step is a launch of its own
        self.found_gradient = Role.LEFT_GRADIENT
        self.read_again = set()

    def _bias_in_kernel(self, op: Op) -> bool:
        return False


class SentenceCell(DeviceCell):
    """The loop of a cell whose states are matrices: each pass is one launch."""

    tails: list[SentenceKernel]

    def require_room(self, name: str, dtype: DType) -> None:
        """Raise `GraphError` if a block has too little shared memory on this device."""
        size = max([kernel.shared_bytes(dtype.itemsize) for kernel in self.tails])
        most = queue().most_shared_bytes
        if size > most:
            raise GraphError.at_caller(
                f"{name}: a step with matrices, on a GPU, of which a block has {most:,} bytes of "
                f"shared memory; it needs {size:,}.\n"
                "  rule: a block holds the state of a head, or of all where heads meet\n"
                '  fix:  smaller matrices, heads that do not meet, float32, or db.Graph("cpu")'
            )

    def _tails(self) -> list[SentenceKernel]:
        loop = self.loop
        kernels = [SentenceKernel(loop, is_backward) for is_backward in (False, True)]
        storages = [loop.storage, loop.gradients]
        heads = heads_of(loop.backward_program, storages, [each.items for each in kernels])
        for kernel in kernels:
            kernel.print_for(heads)
        return kernels
