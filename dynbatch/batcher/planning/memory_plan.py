"""Where the blocks of a run lie: all decided before the first kernel.

Walking the stages of a run once gives each block its lifetime: from its first write to its last
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynbatch.batcher.planning.in_place import InPlace
from dynbatch.batcher.planning.stages import (
    MemorySaving,
    Stage,
    StageKind,
    Stages,
    StageSequence,
    requires_grad,
)
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.step import GradientTarget, Placement, StepRun
from dynbatch.memory import Interval
from dynbatch.memory.offsets import place
from dynbatch.nodes.base import Node
from dynbatch.parameter import Parameter

END = 1 << 60


class MemoryPlan:
    """The stages of one run and the lifetimes of all its blocks.

    Args:
        parts:  new steps, stage by stage; see `stages.Order`.
        past:   steps that ran before in this graph, in order.
        loss:   block of the loss, or None for a run that only computes values.
        trains: whether a later backward may need what this run leaves.
        in_place: whether blocks may be written over others (see `inplace`).
        saving: what it does to need less memory.

    Attributes:
        intervals:      blocks to be placed; `place` does.
        scratch:        of a run without a loss, which is no part of `intervals`: all values of such
            a run stay, and with them their arena; scratch in it would stay as well.
        block_elements: of all blocks, as if none took the room of another.
    """

    def __init__(
        self,
        parts: Sequence[Stages],
        past: Sequence[StepRun],
        loss: Block | None,
        trains: bool,
        in_place: bool,
        saving: MemorySaving,
    ) -> None:
        self.intervals: list[Interval] = []
        new = [step for part in parts for stage in part for step in stage]
        self._new = {block for step in new for block in step.blocks}
        self._uses: dict[tuple[int, int], int] = {}
        self._owned: set[int] = set()
        self._trains = trains
        self._differentiates = loss is not None
        self._saving = saving
        self.loss = loss
        for step in new:
            step.placements = []
            own = step.node_type.recompute_of(step.nodes)
            step.batch.recompute = saving.recompute.get(step, own)
        # Earlier steps again, since nodes may have been kept after they ran.
        for step in [*past, *new] if trains else ():
            needs_gradient = requires_grad(step)
            for block in step.blocks:
                block.requires_grad = needs_gradient
                block.gradient_interval = None
        order = StageSequence(parts, past, loss, saving)
        self.sequence = order.sequence
        # When the products that make a parameter's gradient are made, by step; of others at the end
        self._added = {
            step: time
            for time, stage in enumerate(self.sequence)
            if stage.kind is StageKind.ACCUMULATE
            for step in stage.steps
        }
        if loss is not None:
            loss.gradient_interval = self._interval(
                loss.size, 0, END, loss.width, "gradients", loss.nodes[0]
            )
            self._count_uses(order.backward)
        self._in_place = InPlace() if in_place and loss is not None else None
        self._plan()
        self.scratch: list[tuple[StepRun, Interval]] = []
        if loss is None:
            steps = [step for stage in self.sequence for step in stage.steps]
            self.scratch = [(s, s.workspace) for s in steps if s.workspace is not None]
        self.block_elements = sum([interval.size for interval in self.intervals])
        self._chains: list[list[Interval]] = []
        if self._in_place is not None:
            self.intervals, self._chains = self._in_place.share(self.intervals)

    def place(self) -> int:
        """Set the offset of every block; return the elements of the arena."""
        total = place(self.intervals)
        for whole, *members in self._chains:
            for interval in members:
                interval.offset = whole.offset
        return total

    def stage_kinds(self) -> list[tuple[str, list[type]]]:
        """Of each stage, for reports."""
        return [stage.kinds for stage in self.sequence]

    def _count_uses(self, backward: Sequence[Sequence[StepRun]]) -> None:
        for stage in backward:
            for step in stage:
                for parameter in step.parameters:
                    use = (parameter.uid, self._until(step))
                    self._uses[use] = self._uses.get(use, 0) + 1

    def _until(self, step: StepRun) -> int:
        """When products that make gradients of its parameters are made at the latest."""
        return self._added.get(step, END)

    def _is_deferred(self, step: StepRun, parameter: Parameter) -> bool:
        """Whether several steps use a parameter, so that one product makes its gradient."""
        return self._uses[parameter.uid, self._until(step)] > 1

    # Lifetimes ------------------------------------------------------------------------------------

    def _interval(
        self, size: int, first: int, last: int, width: int, cause: str, owner: StepRun | Node
    ) -> Interval:
        kind = owner.node_type if isinstance(owner, StepRun) else type(owner)
        interval = Interval(size, first, last, width or 1, -1, cause, kind.__name__)
        self.intervals.append(interval)
        return interval

    def _plan(self) -> None:
        for time, stage in enumerate(self.sequence):
            if stage.kind is StageKind.ACCUMULATE:
                continue
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
            block.interval = self._interval(
                block.size, time, last, block.width, "activations", step
            )
        for source in step.sources:
            self._read(source.blocks, time)
            if not source.is_view and not step.is_structural:
                source.packing = self._interval(
                    source.size, time, time, source.width, "copies", step
                )
        # Without a loss in sight, a node that is kept later may still make this one carry.
        may_require_grad = step.block.requires_grad or not self._differentiates
        again = step in self._saving.recomputed
        step.batch.keeps = self._trains and may_require_grad and not step.fused
        if again:
            step.batch.keeps = stage.kind is StageKind.RECOMPUTE
        step.saved = {}
        if step.batch.keeps:
            for name, (rows, width) in step.node_type.saved(step.batch).items():
                interval = self._interval(
                    rows * width, time, last, width, "kept for backward", step
                )
                step.saved[name] = (interval, rows, width)
        workspace = 0 if step.is_structural else step.node_type.workspace(step.batch)
        step.workspace = None
        if workspace:
            step.workspace = Interval(
                workspace, time, time, 16, -1, "workspace", step.node_type.__name__
            )
            if self._differentiates:
                self.intervals.append(step.workspace)
        if again:
            packings = [source.packing for source in step.sources]
            intervals = [block.interval for block in step.blocks if block.interval is not None]
            step.placements.append(Placement(intervals, packings, step.saved, step.workspace))
        if self._in_place is not None:
            self._in_place.forward(step, time)
        if step.fused:
            self._plan_gradients(step, time, stage)

    def _plan_backward(self, step: StepRun, time: int, stage: Stage) -> None:
        retains = step.node_type.retains
        deferred = any([self._is_deferred(step, parameter) for parameter in step.parameters])
        until = self._until(step) if deferred else time
        step.repacked = []
        for position, source in enumerate(step.sources):
            again: Interval | None = None
            if retains.input(position) and not step.is_structural:
                self._read(source.blocks, until)
                if not source.is_view:
                    again = self._interval(source.size, time, until, source.width, "copies", step)
            step.repacked.append(again)
        if retains.output:
            self._read([step.block], until)
        for interval, _, _ in step.saved.values():
            interval.last = max(interval.last, until)
        for block in step.blocks:
            gradient = block.gradient_interval
            assert gradient is not None
            gradient.last = END if block.kept else max(gradient.last, until)
        workspace = 0 if step.is_structural else step.node_type.workspace_backward(step.batch)
        step.workspace_backward = None
        if workspace:
            step.workspace_backward = self._interval(workspace, time, time, 16, "workspace", step)
        self._plan_gradients(step, time, stage)
        if self._in_place is not None:
            self._in_place.backward(step)

    def _read(self, blocks: Iterable[Block], time: int) -> None:
        for block in blocks:
            if block.interval is not None and block in self._new:
                block.interval.last = max(block.interval.last, time)

    # Gradients ------------------------------------------------------------------------------------

    def _plan_gradients(self, step: StepRun, time: int, stage: Stage) -> None:
        owned: set[int] = set()
        deferred: set[int] = set()
        for parameter in step.parameters:
            if self._is_deferred(step, parameter):
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
            if not source.requires_grad:
                step.targets.append(None)
                continue
            target = GradientTarget()
            step.targets.append(target)
            if step.is_structural:
                for block in source.gradient_blocks:
                    self._move_target(step, target, block, source.nodes, time, stage)
                continue
            block = source.gradient_blocks[0]
            if source.is_view and source.covers and block.gradient_interval is None:
                target.direct = True
                block.gradient_interval = self._gradient(block, time)
                continue
            target.scratch = self._interval(
                source.size, time, time, source.width, "gradients", step
            )
            for block in source.gradient_blocks:
                self._ensure(block, time, stage)

    def _gradient(self, block: Block, time: int) -> Interval:
        last = END if block.kept else time
        return self._interval(block.size, time, last, block.width, "gradients", block.nodes[0])

    def _ensure(self, block: Block, time: int, stage: Stage) -> None:
        if not block.requires_grad:
            return
        if block.gradient_interval is None:
            block.gradient_interval = self._gradient(block, time)
            stage.cleared.append(block)

    def _move_target(
        self, step: StepRun, target: GradientTarget, block: Block, nodes: Sequence[object],
        time: int, stage: Stage,
    ) -> None:  # fmt: skip
        if not block.requires_grad:
            return
        if block.gradient_interval is None and step.node_type.moves_all:  # type: ignore[attr-defined]
            positions = [n._position for n in nodes if n._block is block]  # type: ignore[attr-defined]
            # A call is a part of its block: its position is None.
            whole = len(positions) == len(block.nodes) == len(set(positions))
            if whole and None not in positions:
                target.assigned.add(block)
                block.gradient_interval = self._gradient(block, time)
                return
        self._ensure(block, time, stage)
