"""Memory requirements of node types besides values, cached by step and setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.nodes.batch import Batch

Shapes = Mapping[str, tuple[int, int]]


class ForwardRequirements(NamedTuple):
    """Rows and widths of what forward saves for backward, by name, and elements of scratch."""

    saved: Shapes
    workspace: int


NOTHING = ForwardRequirements({}, 0)


class Requirements:
    """The answers of the steps' node types, for all plans of one run."""

    def __init__(self) -> None:
        self._forward: dict[tuple[StepRun, bool, int], ForwardRequirements] = {}
        self._backward: dict[tuple[StepRun, int], int] = {}

    def forward(self, step: StepRun, keeps: bool, recompute: int) -> ForwardRequirements:
        """The requirements of a forward with these settings of its `Batch`."""
        if step.is_structural:
            return NOTHING
        key = step, keeps, recompute
        answer = self._forward.get(key)
        if answer is None:
            batch = _asked(step.batch, keeps, recompute)
            saved: Shapes = step.node_type.saved(batch) if keeps else {}
            answer = ForwardRequirements(saved, step.node_type.workspace(batch))
            self._forward[key] = answer
        return answer

    def backward(self, step: StepRun, recompute: int) -> int:
        """Elements of scratch of a backward."""
        if step.is_structural:
            return 0
        key = step, recompute
        elements = self._backward.get(key)
        if elements is None:
            batch = _asked(step.batch, step.batch.keeps, recompute)
            elements = self._backward[key] = step.node_type.workspace_backward(batch)
        return elements


def _asked(batch: Batch, keeps: bool, recompute: int) -> Batch:
    """The batch with these two settings, for node types to read."""
    if batch.keeps == keeps and batch.recompute == recompute:
        return batch
    other = Batch.__new__(Batch)
    for name in Batch.__slots__:
        setattr(other, name, getattr(batch, name))
    other.keeps, other.recompute = keeps, recompute
    return other
