"""Lifetimes of a run's blocks: from the stage of the first write to that of the last read.

The stages of a run are walked once. Nothing is written on steps, blocks or nodes: the walk makes
intervals of an arena, which get their offsets at last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dynbatch.batcher.planning.in_place import InPlace
from dynbatch.batcher.planning.stage_order import StageOrder
from dynbatch.batcher.planning.stages import (
    MemorySaving,
    Stage,
    StageKind,
    StageSequence,
    StepGraph,
)
from dynbatch.batcher.planning.whole_gradients import moves_all, tiled
from dynbatch.batcher.steps.block import BatchInput, Block
from dynbatch.batcher.steps.placement import (
    BackwardPlacement,
    GradientTarget,
    Left,
    Placement,
    halves_size,
)
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.memory import Interval

END = 1 << 60
"""The last stage of a block that outlives its run."""
SCRATCH_ALIGNMENT = 16
NOBODY: frozenset[int] = frozenset()
DIRECT = GradientTarget(direct=True)
OF_FORMS = {
    StageKind.NARROW: "_walk_narrow",
    StageKind.WIDEN: "_walk_widen",
    StageKind.WIDEN_SAVED: "_walk_widen_saved",
}
VALUES = "activations"
KEPT = "kept for backward"


class LifetimeWalk:
    """Walks the stages of a run.

    Args:
        graph:    the steps, and where gradients pass.
        saving:   what the run does to need less memory.
        in_place: whether blocks may be written over others, and read in 16 bits; not where somebody
            looks at each.

    Attributes:
        blocks:     of the arena, as if none took the place of another.
        scratch:    workspaces of a run without a loss, whose arena stays with its values.
        stages:     the stages.
        placements: of each step's forward; `recomputed`, of its second forward.
        backward:   of each step's backward.
        gradients:  the place of each block's gradient.
        pairs:      blocks that may take the place of others; None where none may. Then no kernel
            adds to a gradient either, so that whoever looks at a step sees what it makes.

    Raises:
        PlanError: the stages are in a wrong order (see `StageOrder`).
    """

    def __init__(self, graph: StepGraph, saving: MemorySaving, in_place: bool) -> None:
        self.blocks: list[Interval] = []
        self.scratch: list[Interval] = []
        self.stages: list[Stage] = []
        self.placements: dict[StepRun, Placement] = {}
        self.recomputed: dict[StepRun, Placement] = {}
        self.backward: dict[StepRun, BackwardPlacement] = {}
        self.gradients: dict[Block, Interval] = {}
        self.pairs = InPlace() if in_place and graph.loss is not None else None
        self._graph = graph
        self._saving = saving
        self._values: dict[Block, Interval] = {}
        self._ownerless = graph.without_gradient
        self._cleared: list[Block] = []
        self._adding: set[Block] = set()
        self._retained: set[Block] = set()  # read as inputs by backward
        self._order = StageOrder(graph.maker)
        loss = graph.loss
        if loss is not None:
            owner = type(loss.nodes[0]).__name__
            self.gradients[loss] = self._add(loss.size, 0, END, loss.width, "gradients", owner)
        self._sequence = StageSequence(graph, saving, in_place)
        self._narrow: dict[Block, Interval] = {}  # what lies in 16 bits alone
        for time, (kind, steps) in enumerate(self._sequence.sequence):
            self._walk_stage(time, kind, steps)

    def _add(
        self, size: int, first: int, last: int, width: int, cause: str, owner: str
    ) -> Interval:  # fmt: skip
        """Add a block to the arena."""
        return self._enter(Interval(size, first, last, width or 1, -1, cause, owner))

    def _enter(self, block: Interval) -> Interval:
        self.blocks.append(block)
        return block

    def _add_workspace(
        self, elements: int, time: int, owner: str, apart: bool = False
    ) -> Interval | None:
        """Add a workspace to the arena, or to the one `apart`; None for none."""
        if not elements:
            return None
        block = Interval(elements, time, time, SCRATCH_ALIGNMENT, -1, "workspace", owner)
        (self.scratch if apart else self.blocks).append(block)
        return block

    def _walk_stage(self, time: int, kind: StageKind, steps: Sequence[StepRun]) -> None:
        self._cleared, self._adding = [], set()
        if kind is StageKind.BACKWARD:
            self._order.finished.update(steps)
            # A step is left out where nothing downstream sends it a gradient.
            steps = [step for step in steps if not self.gradients.keys().isdisjoint(step.blocks)]
            for step in steps:
                for block in step.blocks:
                    self._ensure_gradient(block, time)
                self._walk_backward(step, time)
        elif kind in (StageKind.FORWARD, StageKind.RECOMPUTE):
            for step in steps:
                self._walk_forward(step, time, kind is StageKind.RECOMPUTE)
        elif kind in OF_FORMS:
            for step in steps:
                getattr(self, OF_FORMS[kind])(step, time)
        self.stages.append(Stage(kind, steps, self._cleared))

    def _walk_forward(self, step: StepRun, time: int, again: bool) -> None:
        graph, add, values = self._graph, self._add, self._values
        differentiates = graph.loss is not None
        owner = step.node_type.__name__
        stays = not graph.kept.isdisjoint(step.blocks) or (graph.trains and not differentiates)
        for block in step.blocks:
            last = END if stays and (graph.trains or not step.is_inside(block)) else time
            values[block] = add(block.size, time, last, block.width, VALUES, owner)
        narrow = self._narrow_input(step, time, backward=False)
        packings = (None,) if narrow is not None else self._read_inputs(step, time, time, None)
        fused = step in graph.fused
        keeps = again
        if step not in self._saving.recomputed:
            # Without a loss in sight, a node that is kept later may still need a gradient.
            needed = not differentiates or step.block in graph.requires_grad
            keeps = graph.trains and needed and not fused
        recompute = self._saving.segments.get(step, step.batch.recompute)
        asked = step.needs(keeps, recompute)
        saved = {
            name: (add(n * width, time, last, width, KEPT, owner), n, width)
            for name, (n, width) in asked.saved.items()
        }
        workspace = self._add_workspace(asked.workspace, time, owner, apart=not differentiates)
        blocks = tuple([values[block] for block in step.blocks])
        placement = Placement(blocks, packings, saved, workspace, keeps, recompute, narrow)
        (self.recomputed if again else self.placements)[step] = placement
        if self.pairs is not None:
            self.pairs.forward(step, time, values, placement)
        if fused:
            self._fused_backward(step, time)

    def _walk_narrow(self, step: StepRun, time: int) -> None:
        """Take half the room for what a step has left, of which it is cut now."""
        placement = self.placements[step]
        narrow: dict[Left, Interval] = {}
        for left in [*range(len(step.blocks)), *placement.saved]:
            if left in self._sequence.narrowed[step]:
                block = placement.place(left)
                last_until(block, time)
                size = halves_size(block.size)
                narrow[left] = self._enter(form_of(block, time, size, SCRATCH_ALIGNMENT))
                if isinstance(left, int):
                    self._narrow[step.blocks[left]] = narrow[left]
        self.placements[step] = placement._replace(narrow=narrow)

    def _walk_widen(self, step: StepRun, time: int) -> None:
        for number, block in enumerate(step.blocks):
            if self._narrow.pop(block, None) is not None:
                self._values[block] = self._widen(step, number, time)

    def _walk_widen_saved(self, step: StepRun, time: int) -> None:
        for name in filter(
            self.placements[step].narrow.__contains__, self._sequence.widened_names(step)
        ):
            self._widen(step, name, time)

    def _widen(self, step: StepRun, left: Left, time: int) -> Interval:
        placement = self.placements[step]
        placement.narrow[left].last = time
        block = placement.place(left)
        wide = self._enter(form_of(block, time, block.size, block.alignment))
        self.placements[step] = placement._replace(widened={**placement.widened, left: wide})
        return wide

    def _read_inputs(
        self, step: StepRun, time: int, until: int, reads: Sequence[bool] | None
    ) -> tuple[Interval | None, ...]:
        """Note that inputs are read until a stage; return the places of packed ones."""
        if step.is_structural:
            if reads is None:
                for source in step.sources:
                    self._read(source.blocks, until)
            return (None,) * len(step.sources)
        packings: list[Interval | None] = []
        for position, source in enumerate(step.sources):
            if reads is not None and not reads[position]:
                packings.append(None)
                continue
            self._read(source.blocks, until)
            if reads is not None:
                self._retained.update(source.blocks)
            packings.append(
                None
                if source.is_view
                else self._add(
                    source.size, time, until, source.width, "copies", step.node_type.__name__
                )
            )
        return tuple(packings)

    def _narrow_input(self, step: StepRun, until: int, backward: bool) -> Interval | None:
        """Note that a pass reads its one input in 16 bits until a stage: where; None if not so."""
        narrow: Interval | None = None
        if self._narrow and self._sequence.reads_narrow_input(step, backward):
            narrow = self._narrow.get(step.sources[0].blocks[0])
        if narrow is not None:
            narrow.last = until
        return narrow

    def _read(self, blocks: Iterable[Block], time: int) -> None:
        for block in blocks:
            value = self._values.get(block)
            if value is None:
                self._order.require_written(block)
            else:
                last_until(value, time)

    # Backward -------------------------------------------------------------------------------------

    def _walk_backward(self, step: StepRun, time: int) -> None:
        graph, node_type = self._graph, step.node_type
        retains = step.retains
        deferred = graph.deferred.get(step)
        until = self._sequence.accumulated.get(step, END) if deferred else time
        packings: tuple[Interval | None, ...] = (None,) * len(step.sources)
        narrow = self._narrow_input(step, until, backward=True) if retains.inputs else None
        if narrow is None and retains.inputs and not step.is_structural:
            reads = [retains.input(position) for position in range(len(step.sources))]
            packings = self._read_inputs(step, time, until, reads)
        is_kept = step.block in self._retained
        output = retains.output or (is_kept and node_type.uses_output(step.batch))
        if output:
            self._read([step.block], until)
        placement = self.recomputed.get(step) or self.placements.get(step)
        if placement is None:
            if step.parameters or node_type.reads_values():
                self._order.require_written(step.block)
        else:
            for read in placement.read_by_backward():
                last_until(read, until)
        for block in step.blocks:
            last_until(self.gradients[block], END if block in graph.kept else until)
        recompute = self._saving.segments.get(step, step.batch.recompute)
        elements = step.needs_backward(recompute)
        workspace = self._add_workspace(elements, time, node_type.__name__)
        self._add_backward(step, time, packings, workspace, output, narrow)
        if self.pairs is not None:
            self.pairs.backward(step, self.backward[step].targets, self.gradients)

    def _fused_backward(self, step: StepRun, time: int) -> None:
        self._order.finished.add(step)
        gradient = self.gradients.get(step.block)
        if gradient is not None:
            last_until(gradient, time)
        self._add_backward(step, time, (), None, False)

    def _add_backward(
        self,
        step: StepRun,
        time: int,
        packings: tuple[Interval | None, ...],
        workspace: Interval | None,
        output: bool,
        narrow: Interval | None = None,
    ) -> None:
        owned = NOBODY
        if step.parameters:
            owned = self._ownerless.intersection([p.uid for p in step.parameters])
            self._ownerless -= owned
        # A structural step moves block by block, and says for each what it writes first.
        begun = [] if step.is_structural else [b for b in tiled(step) if self._begins(b)]
        for block in begun:
            self._begin_gradient(block, time)
        targets = tuple([self._target(step, source, time, begun) for source in step.sources])
        deferred = self._graph.deferred.get(step, NOBODY)
        self.backward[step] = BackwardPlacement(
            packings, targets, workspace, owned, deferred, output, narrow
        )

    def _target(
        self, step: StepRun, source: BatchInput, time: int, begun: Sequence[Block]
    ) -> GradientTarget | None:
        """The block that the gradient of an input goes to.

        Args:
            begun: blocks all of whose gradient the step writes first, a part for each input.
        """
        blocks = source.gradient_blocks
        if self._graph.requires_grad.isdisjoint(blocks):
            return None
        self._order.require_unfinished(step, blocks)
        if step.is_structural:
            assigned = [
                block for block in blocks if self._begins(block) and moves_all(step, block, source)
            ]
            for block in blocks:
                if block in assigned:
                    self._begin_gradient(block, time)
                else:
                    self._add_to_gradient(block, time)
            return GradientTarget(assigned=frozenset(assigned))
        block = blocks[0]
        if source.is_view and block in begun:
            return DIRECT
        if source.is_view and source.covers and block not in self.gradients:
            self._begin_gradient(block, time)
            return DIRECT
        if self._can_add(step, source, time):
            self._add_to_gradient(block, time)
            return GradientTarget(direct=True, adds=True)
        scratch = self._add(
            source.size, time, time, source.width, "gradients", step.node_type.__name__
        )
        for block in blocks:
            self._add_to_gradient(block, time)
        return GradientTarget(scratch=scratch)

    def _begins(self, block: Block) -> bool:
        return block not in self.gradients and block in self._graph.requires_grad

    def _begin_gradient(self, block: Block, time: int) -> None:
        last = END if block in self._graph.kept else time
        owner = type(block.nodes[0]).__name__
        self.gradients[block] = self._add(block.size, time, last, block.width, "gradients", owner)

    def _ensure_gradient(self, block: Block, time: int) -> None:
        if self._begins(block):
            self._begin_gradient(block, time)
            self._cleared.append(block)

    def _add_to_gradient(self, block: Block, time: int) -> None:
        self._ensure_gradient(block, time)
        if self.pairs is not None and block in self.gradients:
            self.pairs.added(self.gradients[block], time)

    def _can_add(self, step: StepRun, source: BatchInput, time: int) -> bool:
        """Whether the step's kernel may itself add to a gradient, which no other of its stage does.

        Others that add to it do so after the kernels of the stage.
        """
        block = source.blocks[0]
        if self.pairs is None or not (step.node_type.adds_gradient and source.is_view):
            return False
        if not step.batch.device.is_cuda or len(step.sources) > 1 or block in self._adding:
            return False
        gradient = self.gradients.get(block)
        if gradient is None or gradient.first >= time:
            return False
        self._adding.add(block)
        return True


def last_until(block: Interval, time: int) -> None:
    """Have a block live until a stage, if it does not live longer."""
    block.last = max(block.last, time)


def form_of(block: Interval, time: int, size: int, alignment: int) -> Interval:
    """A block for what another one has, in another form, from a stage on."""
    return replace(block, first=time, last=time, size=size, alignment=alignment, is_form=True)
