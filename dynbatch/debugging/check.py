"""`Graph(check=True)`: every batch is computed a second time, and the first difference is an error.

After each batch step, what it computed is compared with a second run from the same inputs:

    on a GPU     the same batch, run by NumPy's versions of its kernels
    on the CPU   the step's nodes, run one by one; calls of cells as the operators they are made of

Compared are values and last states, gradients of inputs and of parameters, copies that pack inputs,
structural moves (with plain indexing), and gradients that were added up in nodes and parameters.
The second backward reads what the second forward left, and nothing from the first.

Two numbers differ if they are further apart than `TOLERANCES[dtype]` times the largest finite
element that the node read or wrote: the rounding error of a sum grows with its terms, which may
cancel. With `Graph(matmul="tf32")` it is 2^-9 times this element, with "bfloat16" 2^-6. NaN equals
NaN. Where a slope jumps, as that of relu at 0, and rounding alone decides on the side, a difference
may be reported that is none; float64 settles such a case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.execution.observer import Observer
from dynbatch.batcher.execution.stage_runner import StepActions
from dynbatch.batcher.steps.alias import AliasStep
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.debugging.difference import Checker, differing, magnitude, rounding
from dynbatch.debugging.reference import dense_on_host, totals
from dynbatch.debugging.step_check import StepCheck
from dynbatch.errors import CheckError
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import heading
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse, moved_gradient


class Check(Observer):
    """Computes everything a second time, and compares.

    Args:
        rounds: whether values are rounded to bfloat16 after it.

    Raises:
        CheckError: at the first difference; the graph and all gradients are as before the run.
    """

    def __init__(self, upstream: StepActions, rounds: bool = False) -> None:
        super().__init__(upstream)
        self.checker = Checker(
            self.device.is_cuda, lambda: ", ".join(dict.fromkeys(self.start())), rounds
        )
        self._checks: dict[StepRun, StepCheck] = {}

    def begin(self) -> None:
        self.checker.copies.clear()
        super().begin()

    def close(self) -> None:
        self._checks.clear()
        super().close()

    def forward(self, step: StepRun, arena: Array) -> None:
        run = partial(super().forward, step, arena)
        if isinstance(step, AliasStep):  # it computes nothing
            run()
            return
        self._check_of(step).forward(arena, run)
        if not step.batch.keeps:  # no backward reads what the second forward left
            del self._checks[step]

    def backward(self, step: StepRun, arena: Array) -> None:
        self._check_of(step).backward(arena, partial(super().backward, step, arena))

    def add_gradients(self, step: StepRun, arena: Array) -> None:
        self._check_of(step).add_gradients(arena, partial(super().add_gradients, step, arena))

    def _check_of(self, step: StepRun) -> StepCheck:
        if step not in self._checks:
            self._checks[step] = StepCheck(step, self.checker)
        return self._checks[step]

    def clear(self, block: Block) -> None:
        super().clear(block)
        self.start()
        if to_host(block.gradients().flat).any():
            raise CheckError(
                heading(block.nodes[0], "the block of its gradient is not all zeros")
                + "\n  rule: a gradient that several batches add to starts as zeros"
            )

    def commit(self, gradients: Sequence[StepGradients]) -> None:
        """Compare with sums on the host; after a difference all gradients are as before."""
        before: dict[int, Array | RowSparse | None] = {}
        expected: dict[int, tuple[Parameter, Array, float]] = {}
        for step in gradients:
            for uid, (parameter, array) in totals(step).items():
                if uid not in expected:
                    grad = before[uid] = parameter.grad
                    start = np.zeros_like(array) if grad is None else dense_on_host(grad)
                    if grad is not None and not isinstance(grad, RowSparse):
                        before[uid] = start  # a copy: it is written in place
                    expected[uid] = (parameter, start, magnitude(start))
                _, known, scale = expected[uid]
                expected[uid] = (parameter, known + array, max(scale, magnitude(array)))
        terms = [
            magnitude(to_host(x)) * magnitude(to_host(dy))
            for step in gradients
            for _, x, dy in step.products
        ]
        super().commit(gradients)
        self.start()
        for parameter, wanted, scale in expected.values():
            if parameter.row_is_frozen is not None:
                wanted[parameter.row_is_frozen] = 0
            actual = dense_on_host(parameter.grad)
            wrong = differing(actual, wanted, rounding(wanted, max([scale, *terms])))
            if wrong.size:
                for other, _, _ in expected.values():
                    other.grad = moved_gradient(before[other.uid], other.device)
                flat = actual.ravel(), wanted.ravel()
                where = self.checker.difference(actual.shape, wrong, *flat)
                raise CheckError(
                    f"the gradient of parameter {parameter.name!r}: {where}\n"
                    "  rule: it is its earlier value plus the gradients of all batches\n"
                    f"  fix:  {self.checker.advice(None)}"
                )
