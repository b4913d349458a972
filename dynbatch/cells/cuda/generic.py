"""`DeviceGenericSteps`: operators of a loop with kernels of their own, step by step on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.generic import GenericStep
from dynbatch.compiler.ir import Op, Origin
from dynbatch.nodes.batch import Batch, Gradients
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class DeviceGenericSteps:
    """The operators of a loop that run by their node types' kernels, from forward to backward.

    Args:
        rows:     where the values of the loop lie.
        memories: in the order of the steps' rows, which are at most `count`.
        chosen:   see `GenericStep`.
    """

    def __init__(
        self, rows: LoopRows, batch: Batch, memories: list[Ragged], count: int,
        chosen: Mapping[int, Array] | None = None,
    ) -> None:  # fmt: skip
        self._rows = rows
        self._steps = {
            id(op): GenericStep(op, memories, count, batch.dtype, batch.keeps, batch.xp, chosen)
            for op in rows.loop.program.generic
        }

    def __bool__(self) -> bool:
        return bool(self._steps)

    def forward(self, op: Op, t: int) -> None:
        """An operator's results in step t."""
        rows = self._rows
        xs = [rows.argument(op, position, t) for position in range(len(op.inputs))]
        with self._in_turn(op):
            self._steps[id(op)].forward(t, rows.steps[t][2], rows.array(op.output, t), *xs)

    def begin_backward(
        self, memory_gradients: Sequence[Ragged | None], gradients: Gradients,
        memories: list[Ragged] | None = None,
    ) -> None:  # fmt: skip
        """Set where gradients go, and the memories where they lie elsewhere by now."""
        for step in self._steps.values():
            step.memory_gradients = memory_gradients
            step.give_gradients_to(gradients)
            step.memories = step.memories if memories is None else memories

    def backward(self, op: Op, t: int) -> None:
        """Gradients of what an operator read in step t, by its GENERIC_GRADIENT."""
        rows, n, source = self._rows, self._rows.steps[t][2], op.source
        assert source is not None
        retains, results = source.node.retains, iter(op.outputs)
        saved, targets = [], []
        for position, x in enumerate(source.inputs):
            is_memory = x.base.origin is Origin.MEMORY
            is_read = retains.input(position) or is_memory
            saved.append(rows.argument(source, position, t) if is_read else None)
            out = None if is_memory else rows.of_step(next(results), t)
            targets.append(None if out is None else out.view(n))
        dy = rows.array(op.inputs[0], t)
        y = rows.array(source.output, t) if retains.output else None
        with self._in_turn(source):
            self._steps[id(source)].backward(t, n, dy, y, tuple(saved), tuple(targets))

    def finish(self) -> None:
        """Add the rest of the memories' gradients after the last step of backward."""
        for step in self._steps.values():
            step.finish()

    def _in_turn(self, op: Op) -> AbstractContextManager[None]:
        """Start all queued work before a user's node type that computes with CuPy."""
        return nullcontext() if type(op.node).names_kernels else self._rows.queue.at_once()
