"""The stages of a run: the order of its steps, before memory is planned.

A run is a sequence of stages. The steps of a stage do not read each other and may run side by side.

    early    backward of steps that need no values (a mean of losses): their gradients are known
             before forward, so that a loss can make its own gradient in the same pass
    forward  every step that has not run
    backward the rest, last stage first

The gradient of a weight that several steps use is a product of few rows of each: it is made as soon
as rows suffice (`groups`), in a stage of its own, and what it was made from is free from then on.

To need less memory (`MemorySaving`), forward of some steps runs again where backward needs what
they made; and a mini-batch may run in parts, forward and backward of each before the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from dynbatch.batcher.planning.narrowing import Narrowing
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.parameter_gradients import groups
from dynbatch.batcher.steps.placement import Left
from dynbatch.batcher.steps.step_run import StepRun

StepStages = Sequence[Sequence[StepRun]]

EARLY_BACKWARD = "early backward"
"""Backward of a mean of losses and the like, before forward."""


class StageKind(Enum):
    """The kind of work that a stage does with its steps."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    """Forward once more."""
    ACCUMULATE = "accumulate"
    """Add up the gradients of parameters that a part left."""
    NARROW = "narrow"
    """Cut what forward left to 16 bits."""
    WIDEN = "widen"
    """Make float32 of values that lie in 16 bits."""
    WIDEN_SAVED = "widen what is kept"
    """Make float32 of what forward left beside values."""
    MULTIPLY = "weight gradients"
    """Make one product of what steps left for the gradient of a weight that several use."""


FORMS = StageKind.NARROW, StageKind.WIDEN, StageKind.WIDEN_SAVED
"""Stages that run no kernels of nodes: they change the form in which values lie."""


class Stage(NamedTuple):
    """Steps that run side by side, and gradient blocks to clear before them."""

    kind: StageKind
    steps: Sequence[StepRun]
    cleared: Sequence[Block] = ()

    @property
    def is_backward(self) -> bool:
        return self.kind is StageKind.BACKWARD


@dataclass(frozen=True)
class MemorySaving:
    """The ways in which a run saves memory.

    Args:
        recomputed: steps whose values are freed after forward and made again in backward.
        serial:     backward of steps that could run side by side, one after the other.
        segments:   for steps that make again themselves what they left, `Batch.recompute`.
        apart:      a product of few rows for each step, where a weight's are else made together.
        wide:       what steps leave that stays float32 though it could lie in 16 bits.
    """

    recomputed: Collection[StepRun] = frozenset()
    serial: bool = False
    segments: Mapping[StepRun, int] = field(default_factory=dict)
    apart: bool = False
    wide: frozenset[tuple[StepRun, Left]] = frozenset()

    def switched(self, name: str) -> MemorySaving:
        """The saving with `serial` or `apart` the other way."""
        serial, apart = self.serial != (name == "serial"), self.apart != (name == "apart")
        return replace(self, serial=serial, apart=apart)


NO_SAVING = MemorySaving()


class StepGraph:
    """The steps of a run and the flow of gradients, independent of memory savings.

    Args:
        parts:  new steps, stage by stage. One part, or several: first what is common to all, then
            parts that do not read each other, at last what reads them.
        past:   steps that ran before in this graph, in order.
        loss:   block of the loss, or None for a run that only computes values.
        trains: whether a later backward may need what this run leaves.
        kept:   blocks that outlive the run, beside those that earlier runs have kept.
        rounds: whether values are rounded to bfloat16.

    Attributes:
        requires_grad: blocks that lead to a parameter or a kept node.
        maker:         the new step that makes each block.
        backward:      steps that the loss depends on and that need a gradient, last stage first.
        early:         those among them whose gradient is known before forward.
        fused:         steps whose forward makes their gradient.
        deferred:      for each step of backward, its weight that several steps use: the products
            that make its gradient are gathered.
        gathered:      such steps of one weight, in the order of backward, where nothing else that
            they do not leave has to be added before.
        kept:          blocks whose values and gradients outlive the run.
        without_gradient: parameters that have no gradient yet.
        rounded:       see `Narrowing`.
        narrowed:      of each step, what it leaves that lies in 16 bits until backward.
    """

    def __init__(
        self,
        parts: Sequence[StepStages],
        past: Sequence[StepRun],
        loss: Block | None,
        trains: bool,
        kept: Collection[Block] = (),
        rounds: bool = False,
    ) -> None:
        self.parts = parts
        self.past = past
        self.loss = loss
        self.trains = trains
        self.rounds = rounds
        self.new = [step for part in parts for stage in part for step in stage]
        self.kept = frozenset(kept)
        self.requires_grad: set[Block] = set()
        if trains:
            before = [block for step in past for block in step.blocks if block.kept]
            self.kept = self.kept.union(before)
            for step in [*past, *self.new]:  # nodes may have been kept after they ran
                if self._requires_grad(step):
                    self.requires_grad.update(step.blocks)
        self.maker: dict[Block, StepRun] = {}
        self.backward: list[list[StepRun]] = []
        self.early: set[StepRun] = set()
        self.fused: set[StepRun] = set()
        self.deferred: dict[StepRun, frozenset[int]] = {}
        self.gathered: list[list[StepRun]] = []
        self.without_gradient: frozenset[int] = frozenset()
        narrowing = Narrowing(past, self.new) if rounds else None
        self.rounded = {} if narrowing is None else narrowing.rounded
        self.narrowed: Mapping[StepRun, Sequence[Left]] = {}
        if loss is not None:
            self.maker = {block: step for step in self.new for block in step.blocks}
            self._find_backward(loss)
            self._find_early()
            self._find_deferred()
            if narrowing is not None:
                late = [step for stage in self.late() for step in stage]
                self.narrowed = narrowing.narrowed(self.maker, late, self.kept)

    def needs_gradient(self, step: StepRun) -> bool:
        return any(
            [not self.requires_grad.isdisjoint(source.gradient_blocks) for source in step.sources]
        )

    def _requires_grad(self, step: StepRun) -> bool:
        kept = step.block in self.kept
        if kept or not step.node_type.differentiable:
            return kept
        return bool(step.parameters) or self.needs_gradient(step)

    def _find_backward(self, loss: Block) -> None:
        wanted = {loss}
        number = -1
        for step in reversed([*self.past, *self.new]):
            if wanted.isdisjoint(step.blocks) or step.block not in self.requires_grad:
                continue
            if not step.node_type.differentiable:
                continue  # a kept node, whose gradient ends there
            for source in step.sources:
                wanted.update(source.gradient_blocks)
            if step.stage != number:
                self.backward.append([])
                number = step.stage
            self.backward[-1].append(step)

    def late(self) -> list[list[StepRun]]:
        """The steps whose backward runs after forward, last stage first."""
        before = self.early | self.fused
        return [[step for step in stage if step not in before] for stage in self.backward]

    def _find_early(self) -> None:
        late_readers: set[Block] = set()
        for stage in self.backward:
            for step in stage:
                known = step.block in self.maker and late_readers.isdisjoint(step.blocks)
                if known and step.node_type.fuses_backward:
                    self.fused.add(step)
                elif known and not (step.parameters or step.node_type.reads_values()):
                    self.early.add(step)
                    continue
                for source in step.sources:
                    late_readers.update(source.gradient_blocks)

    def _find_deferred(self) -> None:
        part_of = {
            step: number
            for number, part in enumerate(self.parts[1:-1], 1)
            for stage in part
            for step in stage
            if step.parameters
        }
        users: dict[tuple[int, int], list[StepRun]] = {}
        steps = [step for stage in self.backward for step in stage if step.parameters]
        parameters = {p.uid: p for step in steps for p in step.parameters}
        self.without_gradient = frozenset([p.uid for p in parameters.values() if p.grad is None])
        for step in steps:
            part = part_of.get(step, 0)
            for parameter in step.parameters:
                users.setdefault((parameter.uid, part), []).append(step)
        for (uid, _), several in users.items():
            if len(several) > 1:
                self._gather(uid, several)

    def _gather(self, uid: int, steps: Sequence[StepRun]) -> None:
        """Defer the products of a weight that some of these steps leave."""
        weights = [step.node_type.outer_weight(step.batch) for step in steps]
        pairs = zip(steps, weights, strict=True)
        left = [step for step, weight in pairs if weight is not None and weight.uid == uid]
        self.deferred.update(dict.fromkeys(left, frozenset([uid])))
        # Dense arrays are added before products, and rows after them.
        others = [step for step in steps if step not in self.deferred]
        if left and all([step.node_type.gradient_rows(step.batch) is not None for step in others]):
            self.gathered.append(left)


def stage_label(stage: Stage, graph: StepGraph) -> str:
    """The name of a stage in reports: "early backward" where it comes before forward."""
    if stage.is_backward and graph.early.issuperset(stage.steps):
        return EARLY_BACKWARD
    return stage.kind.value


class StageSequence:
    """The stages of one run with a saving, in order.

    Args:
        reads_narrow: whether passes read in 16 bits what they can read so.

    Attributes:
        sequence:    the stages.
        narrowed:    of each step, what is cut to 16 bits when forward has left it.
        accumulated: for each step whose products are gathered, or of a part, the number of the
            stage at which they, or all its gradients, are added up; the rest is after the run.
    """

    def __init__(self, graph: StepGraph, saving: MemorySaving, reads_narrow: bool) -> None:
        self.sequence: list[tuple[StageKind, list[StepRun]]] = []
        self.accumulated: dict[StepRun, int] = {}
        self._graph = graph
        self._saving = saving
        self._reads_narrow = reads_narrow
        self._done: set[StepRun] = set()
        self.narrowed = {
            step: narrow
            for step, left in graph.narrowed.items()
            if (narrow := [each for each in left if (step, each) not in saving.wide])
        }
        self._wide: set[StepRun] = set()  # whose values are float32 again
        self._groups: dict[StepRun, list[StepRun]] = {}  # by the last step of each
        for steps in graph.gathered:
            together = [(k, k + 1) for k in range(len(steps))]
            if not saving.apart:
                together = groups([step.batch.rows for step in steps])
            for first, end in together:
                self._groups[steps[end - 1]] = steps[first:end]
        parts = graph.parts
        if graph.loss is None:
            for part in parts:
                self._forward(part)
            return
        early = graph.early
        if early:
            for stage in graph.backward:
                self._append(StageKind.BACKWARD, [step for step in stage if step in early])
        late = graph.late()
        self._forward(parts[0])
        for part in parts[1:-1]:
            members = {step for stage in part for step in stage}
            self._forward(part)
            self._backward([[s for s in stage if s in members] for stage in late])
            adding = [step for stage in part for step in stage if step.parameters]
            for step in adding:
                self.accumulated.setdefault(step, len(self.sequence))
            self._append(StageKind.ACCUMULATE, adding)
            late = [[s for s in stage if s not in members] for stage in late]
        self._backward(late)
        if len(parts) > 1:
            self._forward(parts[-1])
        if not self.sequence:  # the loss was computed and passes nothing on, but has its gradient
            self.sequence.append((StageKind.BACKWARD, []))

    def _append(self, kind: StageKind, steps: list[StepRun]) -> None:
        if steps:
            self.sequence.append((kind, steps))

    def _forward(self, stages: StepStages) -> None:
        for stage in stages:
            self._append(StageKind.FORWARD, list(stage))
            if self._graph.rounds:
                self._append(StageKind.NARROW, [step for step in stage if self._is_narrowed(step)])

    def _is_narrowed(self, step: StepRun) -> bool:
        return step in self.narrowed and step not in self._saving.recomputed

    def reads_narrow_input(self, step: StepRun, backward: bool) -> bool:
        """Whether a pass of a step reads its one input in 16 bits, if that lies so by then."""
        waits = backward and step in self._graph.deferred
        return self._reads_narrow and not waits and step.reads_narrow_input(backward)

    def widened_names(self, step: StepRun) -> list[str]:
        """The names of what a step left in 16 bits that becomes float32 again."""
        names = [left for left in self.narrowed.get(step, ()) if isinstance(left, str)]
        narrow = step.node_type.read_narrow(step.batch) if names and self._reads_narrow else ()
        return [name for name in names if name not in narrow]

    def _backward(self, stages: Iterable[list[StepRun]]) -> None:
        for stage in stages:
            for steps in [[step] for step in stage] if self._saving.serial else [stage]:
                if self._saving.recomputed:
                    for step in steps:
                        self._recompute(self._needs(step))
                if self._graph.rounds:
                    self._widen(steps)
                self._append(StageKind.BACKWARD, steps)
                gathered = [one for step in steps for one in self._groups.get(step, ())]
                self.accumulated.update(dict.fromkeys(gathered, len(self.sequence)))
                self._append(StageKind.MULTIPLY, gathered)

    def _needs(self, step: StepRun) -> list[StepRun]:
        """The recomputed steps whose values the backward of `step` reads."""
        saves = step.node_type.saves and step in self._saving.recomputed
        return [step] * saves + self._recomputed_makers(step.read_by_backward())

    def _recomputed_makers(self, blocks: Iterable[Block]) -> list[StepRun]:
        maker, recomputed = self._graph.maker, self._saving.recomputed
        return [maker[block] for block in blocks if block in maker and maker[block] in recomputed]

    def _recompute(self, steps: Iterable[StepRun]) -> None:
        """Forward of some steps, and before it of the recomputed ones that they read; once each."""
        done = self._done
        stack = [step for step in steps if step not in done]
        while stack:
            step = stack[-1]
            missing = [
                maker
                for source in step.sources
                for maker in self._recomputed_makers(source.blocks)
                if maker not in done
            ]
            if missing:
                stack += missing
                continue
            stack.pop()
            if step not in done:
                done.add(step)
                if self._graph.rounds:
                    self._widen_blocks([block for x in step.sources for block in x.blocks])
                self._append(StageKind.RECOMPUTE, [step])

    def _widen(self, steps: Sequence[StepRun]) -> None:
        """Widen what the backward of some steps reads, unless it was before."""
        wide = [step for step in steps if not self.reads_narrow_input(step, backward=True)]
        self._widen_blocks([block for step in wide for block in step.read_by_backward()])
        narrow = [step for step in steps if self._is_narrowed(step) and self.widened_names(step)]
        self._append(StageKind.WIDEN_SAVED, narrow)

    def _widen_blocks(self, blocks: Iterable[Block]) -> None:
        maker = self._graph.maker
        makers = [(maker[block], block) for block in blocks if block in maker]
        narrow = [
            step
            for step, block in makers
            if self._is_narrowed(step) and step.blocks.index(block) in self.narrowed[step]
        ]
        widened = [step for step in dict.fromkeys(narrow) if step not in self._wide]
        self._append(StageKind.WIDEN, widened)
        self._wide.update(narrow)
