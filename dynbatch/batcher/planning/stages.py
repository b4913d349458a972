"""The order of a run: which steps run when, before anything is known of bytes.

A run is a sequence of stages. The steps of a stage do not read each other and may run side by side.

    early    backward of steps that need no values (a mean of losses): their gradients are known
             before forward, so that a loss can make its own gradient in the same pass
    forward  every step that has not run
    backward the rest, last stage first

To need less memory (`MemorySaving`), forward of some steps runs again where backward needs what
they made; and a mini-batch may run in parts, forward and backward of each before the next.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step import StepRun

Stages = Sequence[Sequence[StepRun]]


class StageKind(Enum):
    """What a stage does with its steps."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    """Forward once more."""
    ACCUMULATE = "accumulate"
    """Gradients of parameters, as a part left them, are added up."""


@dataclass(slots=True)
class Stage:
    """Steps that run side by side, and gradient blocks to clear before them."""

    kind: StageKind
    steps: list[StepRun]
    cleared: list[Block] = field(default_factory=list)

    @property
    def is_backward(self) -> bool:
        """Whether gradients of the steps' inputs are made."""
        return self.kind is StageKind.BACKWARD

    @property
    def kinds(self) -> tuple[str, list[type]]:
        """For reports: what it does, and with which node types."""
        return self.kind.value, [step.node_type for step in self.steps]


@dataclass(frozen=True)
class MemorySaving:
    """What a run does to need less memory.

    Args:
        recomputed: steps whose values are freed after forward and made again in backward.
        serial:    backward of steps that could run side by side, one after the other.
        recompute: of steps that make again themselves what they left, how: `Batch.recompute`.
    """

    recomputed: frozenset[StepRun] = frozenset()
    serial: bool = False
    recompute: Mapping[StepRun, int] = field(default_factory=dict)


NO_SAVING = MemorySaving()


class StageSequence:
    """The stages of one run.

    Args:
        parts:  new steps, stage by stage. One part, or several: first what is common to all, then
            parts that do not read each other, at last what reads them.
        past:   steps that ran before in this graph, in order.
        loss:   block of the loss, or None for a run that only computes values.
        saving: what it does to need less memory.

    Attributes:
        sequence: the stages.
        backward: all backward stages, for counts.
    """

    def __init__(
        self,
        parts: Sequence[Stages],
        past: Sequence[StepRun],
        loss: Block | None,
        saving: MemorySaving,
    ) -> None:
        self.sequence: list[Stage] = []
        self.backward: list[list[StepRun]] = []
        self._saving = saving
        self._done: set[StepRun] = set()
        if loss is None:
            for part in parts:
                self._forward(part)
            return
        new = [step for part in parts for stage in part for step in stage]
        self._maker = {block: step for step in new for block in step.blocks}
        self.backward = backward_stages([*past, *new], loss)
        early = _early(self.backward, self._maker)
        for stage in self.backward:
            self._append(StageKind.BACKWARD, [step for step in stage if step in early])
        late = [[s for s in stage if s not in early and not s.fused] for stage in self.backward]
        self._forward(parts[0])
        for part in parts[1:-1]:
            members = {step for stage in part for step in stage}
            self._forward(part)
            self._backward([[s for s in stage if s in members] for stage in late])
            self._append(StageKind.ACCUMULATE, [s for stage in part for s in stage if s.parameters])
            late = [[s for s in stage if s not in members] for stage in late]
        if len(parts) > 1:
            self._backward(late)
            self._forward(parts[-1])
        else:
            self._backward(late)

    def _append(self, kind: StageKind, steps: list[StepRun]) -> None:
        if steps:
            self.sequence.append(Stage(kind, steps))

    def _forward(self, stages: Stages) -> None:
        for stage in stages:
            self._append(StageKind.FORWARD, list(stage))

    def _backward(self, stages: Stages) -> None:
        for stage in stages:
            for steps in [[step] for step in stage] if self._saving.serial else [list(stage)]:
                if self._saving.recomputed:
                    for step in steps:
                        self._recompute(self._needs(step))
                self._append(StageKind.BACKWARD, steps)

    def _needs(self, step: StepRun) -> list[StepRun]:
        """The steps that are run again and whose values the backward of `step` reads."""
        found = [step] if step.node_type.retains.output or step.node_type.saves() else []
        for position, source in enumerate(step.sources):
            if step.node_type.retains.input(position) and not step.is_structural:
                found += self._makers(source.blocks)
        return [one for one in found if one in self._saving.recomputed]

    def _makers(self, blocks: Iterable[Block]) -> list[StepRun]:
        return [self._maker[block] for block in blocks if block in self._maker]

    def _recompute(self, steps: Iterable[StepRun]) -> None:
        """Forward of some steps, and before it of those of `again` that they read; once each."""
        done = self._done
        stack = [step for step in steps if step not in done]
        while stack:
            step = stack[-1]
            sources = [block for source in step.sources for block in source.blocks]
            missing = [
                one
                for one in self._makers(sources)
                if one in self._saving.recomputed and one not in done
            ]
            if missing:
                stack += missing
                continue
            stack.pop()
            if step not in done:
                done.add(step)
                self._append(StageKind.RECOMPUTE, [step])


def backward_stages(steps: Sequence[StepRun], loss: Block) -> list[list[StepRun]]:
    """Steps that the loss depends on and that carry a gradient, last stage first."""
    wanted = {loss}
    stages: list[list[StepRun]] = []
    number = -1
    for step in reversed(steps):
        if wanted.isdisjoint(step.blocks) or not step.block.requires_grad:
            continue
        if not step.node_type.differentiable:
            continue  # a kept node, whose gradient ends there
        for source in step.sources:
            wanted.update(source.gradient_blocks)
        if step.stage != number:
            stages.append([])
            number = step.stage
        stages[-1].append(step)
    return stages


def _early(backward: Stages, new: Container[Block]) -> set[StepRun]:
    """Steps whose gradient is known before forward; also marks the steps that can be fused."""
    early: set[StepRun] = set()
    late_readers: set[Block] = set()
    for stage in backward:
        for step in stage:
            known = late_readers.isdisjoint(step.blocks) and step.block in new
            step.fused = known and step.node_type.fuses_backward
            if known and not (step.fused or step.parameters or step.node_type.reads_values()):
                early.add(step)
                continue
            for source in step.sources:
                late_readers.update(source.gradient_blocks)
    return early


def requires_grad(step: StepRun) -> bool:
    """Whether the step's output needs a gradient: it leads to a parameter or a kept node."""
    if step.block.kept or not step.node_type.differentiable:
        return step.block.kept
    return bool(step.parameters) or any([s.requires_grad for s in step.sources])
