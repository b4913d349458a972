"""The order of a run, and where its blocks lie: all decided before the first kernel.

A run is a sequence of stages. The steps of a stage do not read each other and may run side by side.

    early    backward of steps that need no values (a mean of losses): their gradients are known
             before forward, so that a loss can make its own gradient in the same pass
    forward  every step that has not run
    backward the rest, last stage first

Walking that sequence once gives each block its lifetime: from its first write to its last read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dynbatch.batcher.block import Block
from dynbatch.batcher.gradients import StepGradients
from dynbatch.batcher.step import GradientTarget, StepRun
from dynbatch.memory import Interval
from dynbatch.nodes.base import Node

END = 1 << 60


@dataclass(slots=True)
class Stage:
    """Steps that run side by side, and gradient blocks to clear before them."""

    is_backward: bool
    steps: list[StepRun]
    cleared: list[Block] = field(default_factory=list)


class Layout:
    """The stages of one run and the lifetimes of all its blocks.

    Args:
        forward: new steps, stage by stage.
        past:    steps that ran before in this graph, in order.
        loss:    block of the loss, or None for a run that only computes values.
        trains:  whether a later backward may need what this run leaves.
    """

    def __init__(
        self,
        forward: Sequence[Sequence[StepRun]],
        past: Sequence[StepRun],
        loss: Block | None,
        trains: bool,
    ) -> None:
        self.intervals: list[Interval] = []
        self.sequence: list[Stage] = []
        self._new = {block for stage in forward for step in stage for block in step.blocks}
        self._uses: dict[int, int] = {}
        self._owned: set[int] = set()
        self._trains = trains
        self._differentiates = loss is not None
        self.loss = loss
        # Earlier steps again, since nodes may have been kept after they ran.
        for step in [*past, *[s for stage in forward for s in stage]] if trains else ():
            carries = _carries(step)
            for block in step.blocks:
                block.carries = carries
        backward: list[list[StepRun]] = []
        if loss is not None:
            backward = _backward_stages([*past, *[s for stage in forward for s in stage]], loss)
            early = _early(backward, self._new, loss)
            loss.gradient_interval = self._interval(loss.size, 0, END, loss.width)
            for stage in backward:
                self._append(True, [step for step in stage if step in early])
            self._count_uses(backward)
        for new in forward:
            self._append(False, list(new))
        done = {step for stage in self.sequence for step in stage.steps if stage.is_backward}
        for stage in backward:
            self._append(True, [s for s in stage if s not in done and not s.fused])
        self._plan()

    def forward_scratch(self) -> list[tuple[StepRun, Interval]]:
        """Scratch of a run without a loss, which is no part of `intervals`.

        All values of such a run stay, and with them their arena; scratch in it would stay as well.
        """
        if self._differentiates:
            return []
        return [
            (step, step.workspace)
            for stage in self.sequence
            for step in stage.steps
            if step.workspace is not None
        ]

    def _append(self, is_backward: bool, steps: list[StepRun]) -> None:
        if steps:
            self.sequence.append(Stage(is_backward, steps))

    def _count_uses(self, backward: Sequence[Sequence[StepRun]]) -> None:
        for stage in backward:
            for step in stage:
                for parameter in step.parameters:
                    self._uses[parameter.uid] = self._uses.get(parameter.uid, 0) + 1

    # Lifetimes ------------------------------------------------------------------------------------

    def _interval(self, size: int, first: int, last: int, width: int) -> Interval:
        interval = Interval(size, first, last, width or 1)
        self.intervals.append(interval)
        return interval

    def _plan(self) -> None:
        for time, stage in enumerate(self.sequence):
            for step in list(stage.steps):
                if not stage.is_backward:
                    self._plan_forward(step, time, stage)
                elif all([block.gradient_interval is None for block in step.blocks]):
                    stage.steps.remove(step)  # nothing downstream sends it a gradient
                else:
                    for block in step.blocks:
                        self._ensure(block, time, stage)
                    self._plan_backward(step, time, stage)

    def _plan_forward(self, step: StepRun, time: int, stage: Stage) -> None:
        keep = not self._differentiates or step.block.kept
        last = END if keep else time
        for block in step.blocks:
            block.interval = self._interval(block.size, time, last, block.width)
        for source in step.sources:
            self._read(source.blocks, time)
            if not source.is_view and not step.is_structural:
                source.packing = self._interval(source.size, time, time, source.width)
        # Without a loss in sight, a node that is kept later may still make this one carry.
        may_carry = step.block.carries or not self._differentiates
        step.batch.keeps = self._trains and may_carry and not step.fused
        if step.batch.keeps:
            for name, (rows, width) in step.kind.saved(step.batch).items():
                interval = self._interval(rows * width, time, last, width)
                step.saved[name] = (interval, rows, width)
        workspace = 0 if step.is_structural else step.kind.workspace(step.batch)
        if workspace:
            step.workspace = Interval(workspace, time, time, 16)
            if self._differentiates:
                self.intervals.append(step.workspace)
        if step.fused:
            self._plan_gradients(step, time, stage)

    def _plan_backward(self, step: StepRun, time: int, stage: Stage) -> None:
        retains = step.kind.retains
        deferred = any([self._uses[parameter.uid] > 1 for parameter in step.parameters])
        until = END if deferred else time
        step.repacked = []
        for position, source in enumerate(step.sources):
            again: Interval | None = None
            if retains.input(position) and not step.is_structural:
                self._read(source.blocks, until)
                if not source.is_view:
                    again = self._interval(source.size, time, until, source.width)
            step.repacked.append(again)
        if retains.output:
            self._read([step.block], until)
        for interval, _, _ in step.saved.values():
            interval.last = max(interval.last, until)
        for block in step.blocks:
            gradient = block.gradient_interval
            assert gradient is not None
            gradient.last = END if block.kept else max(gradient.last, until)
        workspace = 0 if step.is_structural else step.kind.workspace_backward(step.batch)
        if workspace:
            step.workspace_backward = self._interval(workspace, time, time, 16)
        self._plan_gradients(step, time, stage)

    def _read(self, blocks: Iterable[Block], time: int) -> None:
        for block in blocks:
            if block.interval is not None and block in self._new:
                block.interval.last = max(block.interval.last, time)

    # Gradients ------------------------------------------------------------------------------------

    def _plan_gradients(self, step: StepRun, time: int, stage: Stage) -> None:
        owned: set[int] = set()
        deferred: set[int] = set()
        for parameter in step.parameters:
            if self._uses[parameter.uid] > 1:
                deferred.add(parameter.uid)
            if parameter.grad is None and parameter.uid not in self._owned:
                self._owned.add(parameter.uid)
                owned.add(parameter.uid)
        step.gradients = StepGradients(owned, deferred)
        if step.fused and step.block.gradient_interval is not None:
            interval = step.block.gradient_interval
            interval.last = max(interval.last, time)
        step.targets = []
        for source in step.sources:
            if not source.carries:
                step.targets.append(None)
                continue
            target = GradientTarget()
            step.targets.append(target)
            if step.is_structural:
                for block in source.blocks:
                    self._move_target(step, target, block, source.nodes, time, stage)
                continue
            block = source.blocks[0]
            if source.is_view and source.covers and block.gradient_interval is None:
                target.direct = True
                block.gradient_interval = self._gradient(block, time)
                continue
            target.scratch = self._interval(source.size, time, time, source.width)
            for block in source.blocks:
                self._ensure(block, time, stage)

    def _gradient(self, block: Block, time: int) -> Interval:
        return self._interval(block.size, time, END if block.kept else time, block.width)

    def _ensure(self, block: Block, time: int, stage: Stage) -> None:
        if not block.carries:
            return
        if block.gradient_interval is None:
            block.gradient_interval = self._gradient(block, time)
            stage.cleared.append(block)

    def _move_target(
        self, step: StepRun, target: GradientTarget, block: Block, nodes: Sequence[object],
        time: int, stage: Stage,
    ) -> None:  # fmt: skip
        if not block.carries:
            return
        if block.gradient_interval is None and step.kind.moves_all:  # type: ignore[attr-defined]
            positions = [n._position for n in nodes if n._block is block]  # type: ignore[attr-defined]
            # A call is a part of its block: its position is None.
            whole = len(positions) == len(block.nodes) == len(set(positions))
            if whole and None not in positions:
                target.assigned.add(block)
                block.gradient_interval = self._gradient(block, time)
                return
        self._ensure(block, time, stage)


def _carries(step: StepRun) -> bool:
    """Whether the step's output needs a gradient: it leads to a parameter or a kept node."""
    if not step.kind.differentiable:
        return False
    return step.block.kept or bool(step.parameters) or any([s.carries for s in step.sources])


def _backward_stages(steps: Sequence[StepRun], loss: Block) -> list[list[StepRun]]:
    """Steps that the loss depends on and that carry a gradient, last stage first."""
    wanted = {loss}
    stages: list[list[StepRun]] = []
    number = -1
    for step in reversed(steps):
        if wanted.isdisjoint(step.blocks) or not step.block.carries:
            continue
        for source in step.sources:
            wanted.update(source.blocks)
        if step.stage != number:
            stages.append([])
            number = step.stage
        stages[-1].append(step)
    return stages


def _early(backward: Sequence[Sequence[StepRun]], new: set[Block], loss: Block) -> set[StepRun]:
    """Steps whose gradient is known before forward; also marks the steps that can be fused."""
    early: set[StepRun] = set()
    late_readers: set[Block] = set()
    for stage in backward:
        for step in stage:
            known = late_readers.isdisjoint(step.blocks) and step.block in new
            step.fused = known and step.kind.fuses_backward
            if known and not (step.fused or step.parameters or _reads_values(step)):
                early.add(step)
                continue
            for source in step.sources:
                late_readers.update(source.blocks)
    return early


def _reads_values(step: StepRun) -> bool:
    retains = step.kind.retains
    saves = step.kind.saved.__func__ is not Node.saved.__func__  # type: ignore[attr-defined]
    return bool(retains.inputs) or retains.output or saves
