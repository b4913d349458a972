"""`Graph(check=True)`: every batch is computed a second time, and the first difference is an error.

What is compared, after each batch step, given the very inputs that the step had:

    on a GPU     with the same batch run by the NumPy twins of its kernels
    on the CPU   with the step's nodes run one by one; calls of cells too, with gathers of their own

Values and last states; gradients of inputs and of parameters; what is copied together for a batch;
structural moves, against plain indexing; gradients added up in nodes and in parameters. The second
run keeps what its own forward left for its backward, so nothing is taken over from the first.

Two numbers differ if they are further apart than `TOLERANCES[dtype]` times the largest finite
element of what the node gave or was given: the rounding of a sum grows with its terms, which may
cancel. NaN equals NaN. A slope that jumps, relu's at 0, may be reported where a number inside a
scan is 0 but for rounding; float64 settles such a case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.step import StepRun
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.debugging.checked_region import CheckedRegion, CheckedStack
from dynbatch.debugging.checked_step import CheckedStep
from dynbatch.debugging.difference import Checker, differing, magnitude
from dynbatch.debugging.reference import dense_on_host, totals
from dynbatch.errors import CheckError
from dynbatch.kernels.arrays import download
from dynbatch.kernels.runtime import transfer
from dynbatch.nodes.base import Node, heading
from dynbatch.parameter import Array, Parameter, RowSparse

CHECKED: dict[type[Node], type[CheckedStep]] = {
    RegionNode: CheckedRegion,
    StackCalls: CheckedStack,
}


class CheckedExecutor(Executor):
    """An `Executor` that computes everything twice, from inputs that are still there then."""

    writes_in_place = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.checker = Checker(self._device.is_cuda, self._start)

    def run(self, *args: Any) -> None:
        """As `Executor.run`.

        Raises:
            CheckError: at the first difference; the graph is as it was before the run.
        """
        self.checker.copies.clear()  # of parameters, which change between two runs
        super().run(*args)

    def _start(self) -> str:
        """Start what waits; what it is, for errors."""
        names = [] if self._queue is None else self._queue.waiting()
        self.flush()
        return ", ".join(dict.fromkeys(names))

    def _step(self, nodes: Sequence[Node]) -> StepRun:
        kind = CHECKED.get(type(nodes[0]), CheckedStep)
        return kind(nodes, self._dtype, self._device.xp, self.checker)

    def _clear(self, block: Block) -> None:
        super()._clear(block)
        self.flush()
        found = transfer.to_host(block.gradients().flat)
        if found.any():
            node = block.nodes[0]
            raise CheckError(
                heading(node, "the block of its gradient holds other numbers than 0")
                + "\n  rule: a gradient that several batches add to begins as zeros"
            )

    def _run_on_device(self, steps: Sequence[StepRun], tasks: Sequence[Callable[[], None]]) -> None:
        """One after the other, so that the first difference is the first."""
        for step, task in zip(steps, tasks, strict=True):
            self._on_device(step, task)

    def _commit(self, gradients: Sequence[StepGradients]) -> None:
        """As `Executor._commit`, against sums on the host; differences leave gradients as before.

        Raises:
            CheckError: at the first difference.
        """
        before: dict[int, Any] = {}
        expected: dict[int, tuple[Parameter, Array, float]] = {}
        for step in gradients:
            for uid, (parameter, array) in totals(step).items():
                if uid not in expected:
                    grad = before[uid] = saved_gradient(parameter.grad)
                    start = np.zeros_like(array) if grad is None else dense_on_host(grad)
                    expected[uid] = (parameter, start, magnitude(start))
                _, known, scale = expected[uid]
                expected[uid] = (parameter, known + array, max(scale, magnitude(array)))
        terms = [magnitude(transfer.to_host(x)) * magnitude(transfer.to_host(dy))
                 for step in gradients for _, x, dy in step.products]  # fmt: skip
        super()._commit(gradients)
        self.flush()
        for parameter, wanted, scale in expected.values():
            found = dense_on_host(parameter.grad)
            places = differing(found, wanted, max([scale, *terms]))
            if places.size:
                self._touched = []
                for other, _, _ in expected.values():
                    other.grad = restored(before[other.uid], other)
                flat = found.ravel(), wanted.ravel()
                where = self.checker.difference(found.shape, places, *flat)
                raise CheckError(
                    f"the gradient of parameter {parameter.name!r}: {where}\n"
                    "  rule: it is the sum of what all batches left for it, and of what was there\n"
                    f"  fix:  {self.checker.advice(None)}"
                )


def saved_gradient(grad: Any) -> Any:
    """A gradient as it is now: sums write into dense ones only."""
    return grad if grad is None or isinstance(grad, RowSparse) else download(grad)


def restored(grad: Any, parameter: Parameter) -> Any:
    """The gradient that `saved_gradient` kept, where the parameter is."""
    if grad is None or isinstance(grad, RowSparse):
        return grad
    return transfer.to_device(grad, parameter.device)
