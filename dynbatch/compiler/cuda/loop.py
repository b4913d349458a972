"""`Loop`: both passes of a cell's loop for a GPU, and where their values lie."""

from __future__ import annotations

from dynbatch.compiler.buffers import Role, Storage, array_name, read_after
from dynbatch.compiler.cuda.buffers import DeviceStorage, gradient_storage_of
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import Op
from dynbatch.compiler.lanes import FUSED
from dynbatch.compiler.places import Pointers
from dynbatch.compiler.program import Program, numbered


class Loop:
    """The loop of a cell for a GPU, before its kernels are printed.

    Attributes:
        program, backward_program: the passes, and `forward`, `backward` in a GPU's order.
        storage, gradients: their buffers; `places` has those of both.
        temporary, temporary_gradients: those that have an array while a pass runs.
        maps:        numbers of linear maps, by identity.
        inline_maps: those whose bias a group adds when it reads them, by their output.
        weights:     elements of all weights in the loop.
        carried:     names of the arrays for gradients of each part of the state: of that which the
                     step left, and of that which it found. After a step they change places.
        read_again:  streams whose gradient a step reads once it is there: it must have memory.
        found:       parts of the state that a weight's gradient needs as every step found them.

    Args:
        overwrites: whether backward may write where it has read what forward left, or gradients of
            exports. It then runs once.
    """

    def __init__(self, backward: BackwardProgram, overwrites: bool = True) -> None:
        program = backward.forward
        self.program, self.backward_program = program, backward
        self._store(overwrites)
        self.places = Pointers(self.gradients, self.storage)
        self.maps = numbered(program.linear_maps)
        self.inline_maps = {
            id(op.output): op for op in program.linear_maps if self._bias_in_kernel(op)
        }
        maps = [op for op in program.ops if op.is_linear]
        self.weights = sum([op.output.width * op.inputs[0].width for op in maps])
        self.carried = [
            (array_name(Role.LEFT_GRADIENT, k), array_name(self.found_gradient, k))
            for k in range(len(program.states))
        ]

    def _store(self, overwrites: bool) -> None:
        """Put the passes in order, and choose the buffers of their values."""
        program, backward = self.program, self.backward_program
        kept = [*read_after(program, backward), *backward.saved()]
        self.found_gradient = Role.FOUND_GRADIENT
        self.forward = DevicePass(program, kept)
        self.storage: Storage = DeviceStorage(self.forward, kept)
        self.backward = DevicePass(backward, backward.results())
        self.gradients: Storage = gradient_storage_of(
            self.backward, backward, self.storage, overwrites
        )
        self.temporary = self.storage.temporary
        self.temporary_gradients = self.gradients.temporary
        self.read_again = {
            k for k, value in backward.of_streams.items() if self.backward.reads(value)
        }

    def skips_zeros(self, op: Op) -> bool:
        return op.reads_state and id(op.output) in self.inline_maps

    def _bias_in_kernel(self, op: Op) -> bool:
        """Whether a linear map's bias can wait until a group reads the map's output."""
        readers = self.program.readers(op.output)
        return not self.storage.is_kept(op.output) and all([r.opcode in FUSED for r in readers])


class SentenceLoop(Loop):
    """A loop whose buffers are those of C, where gradients of states stay in one array."""

    def __init__(self, backward: BackwardProgram, storage: Storage, gradients: Storage) -> None:
        self.storage, self.gradients = storage, gradients
        super().__init__(backward)

    def _store(self, overwrites: bool) -> None:
        self.forward = self.backward = DevicePass(Program(), [])  # no step is a launch of its own
        self.temporary = self.temporary_gradients = []  # these lie in shared memory
        self.found_gradient = Role.LEFT_GRADIENT
        self.read_again = set()

    def _bias_in_kernel(self, op: Op) -> bool:
        return False
