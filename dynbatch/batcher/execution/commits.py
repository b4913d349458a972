"""`Commits`: adds what steps left for parameters to `parameter.grad`."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.batcher.execution.observer import StepActions
from dynbatch.batcher.steps.parameter_gradients import StashedGradients, StepGradients, commit
from dynbatch.batcher.steps.step import StepRun
from dynbatch.errors import CheckError
from dynbatch.kernels.runtime import parallel
from dynbatch.parameter import Parameter


class Commits:
    """Adds gradients, and knows of which parameters they may be half added.

    Args:
        observed: adds them instead, and looks at the sums.
    """

    def __init__(self, observed: StepActions | None) -> None:
        self._observed = observed
        self._touched: list[Parameter] = []

    def add(self, steps: Sequence[StepRun]) -> None:
        """Add what these steps left."""
        self._add([step.gradients for step in steps if step.gradients])
        for step in steps:
            step.gradients = None

    def add_last(self, steps: Sequence[StepRun], stashed: StashedGradients) -> None:
        """Add what these steps left, and what there was before the run."""
        with parallel.one_blas_thread():
            self.add(steps)
            self._touched += stashed.parameters
            stashed.add()

    def forget_touched(self) -> None:
        """Forget the gradients that may be half added."""
        for parameter in self._touched:
            parameter.grad = None

    def finish(self) -> None:
        """All that was added is whole."""
        self._touched = []

    def _add(self, gradients: Sequence[StepGradients]) -> None:
        self._touched = [parameter for step in gradients for parameter in step.parameters()]
        if self._observed is None:
            commit(gradients)
            return
        try:
            self._observed.commit(gradients)
        except CheckError:
            self._touched = []  # it has put the gradients back
            raise
