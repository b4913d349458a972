"""`DeviceGenericSteps`: operators of a loop with kernels of their own, step by step on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from dynbatch.backend import Array
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.generic import GenericStep
from dynbatch.compiler.ir import Op, Origin
from dynbatch.kernels.runtime.device_loops import AdditiveSteps, PreparedLoop
from dynbatch.nodes.attention.base import AttentionCache
from dynbatch.nodes.batch import Batch, Gradients
from dynbatch.ragged import Ragged


class DeviceGenericSteps:
    """The operators of a loop that run by their node types' kernels, from forward to backward.

    Args:
        rows:     where the values of the loop lie.
        memories: in the order of the steps' rows, which are at most `count`.
        keeps:    whether backward follows.
        chosen:   see `GenericStep`; None for scans.
    """

    def __init__(
        self, rows: LoopRows, batch: Batch, memories: list[Ragged], count: int, keeps: bool,
        chosen: Mapping[int, Array] | None = None,
    ) -> None:  # fmt: skip
        self._rows = rows
        self._steps = {
            id(op): GenericStep(op, memories, count, batch.dtype, keeps, batch.device, chosen)
            for op in rows.loop.program.generic
        }
        self._memories, self.keeps = memories, keeps
        self._memory_gradients: Sequence[Ragged | None] = []
        self._prepared: dict[int, AdditiveSteps] = {}
        is_scan = chosen is None  # whose memories lie in one place, and are those of all steps
        self._can_prepare = {
            id(op) for op in rows.loop.program.generic if is_scan and self._is_whole(op)
        }

    def __bool__(self) -> bool:
        return bool(self._steps)

    def is_prepared(self, op: Op) -> bool:
        """Whether `add` takes an operator, or its gradient."""
        return id(op.source or op) in self._can_prepare

    def add(self, op: Op, loop: PreparedLoop, order: Array) -> None:
        """Add an operator, or its gradient, to steps of a loop whose numbers are `order`."""
        rows, source = self._rows, op.source or op
        queries = rows.of_steps(source.inputs[0], order)
        numbers = [x.base.number for x in source.inputs[1:]]
        if op is source:
            keys, values = [self._memories[k] for k in numbers]
            if id(op) not in self._prepared:
                self._prepared[id(op)] = AdditiveSteps(
                    op.node.vector.value, keys.values, values.values, keys.offsets,
                    rows.table[:, 1], self.keeps,
                )  # fmt: skip
            out = rows.of_steps(op.output, order).addresses
            self._prepared[id(op)].forward(loop, order, queries, out)
            return
        gradients = [self._memory_gradients[k] for k in numbers]
        dkeys, dvalues = [None if dx is None else dx.values for dx in gradients]
        dout, dqueries = [rows.of_steps(x, order) for x in (op.inputs[0], op.output)]
        steps = self._prepared[id(source)]
        steps.backward(loop, order, queries, dout.addresses, dqueries, dkeys, dvalues)

    def _is_whole(self, op: Op) -> bool:
        """Whether a node type prepares an operator, and what it reads and writes has whole rows."""
        loop = self._rows.loop
        scores = op.node.step_scores(op.memories)
        if scores is None or scores.vector is None or op.inputs[0].base.origin is Origin.STATE:
            return False
        gradients = [each.inputs[0] for each in loop.backward.ops if each.source is op]
        widths = [
            (loop.places.buffer_of(x.base)[0].width, x.width) for x in [op.output, *gradients]
        ]
        return all([whole == width for whole, width in widths])

    def forward(self, op: Op, t: int) -> None:
        rows = self._rows
        xs = [rows.argument(op, position, t) for position in range(len(op.inputs))]
        with self._in_turn(op):
            self._steps[id(op)].forward(t, rows.steps[t][2], rows.rows_of(op.output, t), *xs)

    def begin_backward(
        self, memory_gradients: Sequence[Ragged | None], gradients: Gradients,
        memories: list[Ragged] | None = None,
    ) -> None:  # fmt: skip
        """Set where gradients go, and the memories where they lie elsewhere by now."""
        self._memory_gradients = memory_gradients
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
        dy = rows.rows_of(op.inputs[0], t)
        y = rows.rows_of(source.output, t) if retains.output else None
        with self._in_turn(source):
            self._steps[id(source)].backward(t, n, dy, y, tuple(saved), tuple(targets))

    def finish(self) -> None:
        """Add the rest of the memories' gradients after the last step of backward."""
        for number, step in self._steps.items():
            prepared = self._prepared.get(number)
            if prepared is not None:
                assert isinstance(step.cache, AttentionCache)
                step.cache.vectors, prepared.dvectors = prepared.dvectors, None
            step.finish()

    def _in_turn(self, op: Op) -> AbstractContextManager[None]:
        """Start all queued work before a user's node type that computes with CuPy."""
        return self._rows.queue.hook(type(op.node).names_kernels)
