"""`RecordedStages`: the calls of C that a run's stages make, to be made again by one call of C.

A run whose blocks and parameters lie where they lay makes the calls of the run before it. The
Python between them takes a seventh of a small Transformer's step on one thread, a fifth on two.
Stages that read more than that, as ids, or draw masks, run as they always do, in their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import is_

import numpy as np

from dynbatch.backend import Array, Device
from dynbatch.batcher.execution.forms import place_widened
from dynbatch.batcher.planning.stages import FORMS, Stage, StageKind
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cupy_types import address_of
from dynbatch.kernels.backends import settings
from dynbatch.kernels.packed import packed_weights
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.kernels.runtime.tasks import Tasks, WrittenCalls, written
from dynbatch.parameter import Parameter

MOST = 8
"""Recordings of one run, whose arrays seem to move from time to time."""

RunStage = Callable[[Stage], object]


def surroundings(device: Device, parameters: Iterable[Parameter]) -> list[object]:
    """All that recorded calls and launches depend on, beside the arena."""
    packed = packed_weights()
    values = [parameter.value for parameter in parameters]
    return [stream_of(device), *settings(), packed, packed and packed.version, *values]


Trace = tuple[Callable[[float, float], object], int]
"""A function of the times of a stage, which leaves what the stage leaves beside numbers; and how
many stages of C have ended with it."""


def leave(
    step: StepRun, what: str, copied_bytes: int, launches: int, parameters: Sequence[Parameter],
    begin: float, end: float,
) -> None:  # fmt: skip
    """Leave on a step what it counts, and the gradients of parameters that are in their buffers."""
    step.copied_bytes += copied_bytes
    step.batch.launches += launches
    step.spans.append((what, begin, end))
    for parameter in parameters:
        assert step.gradients is not None
        step.gradients.buffer(parameter)


class CallsOfStages:
    """Stages that follow one another, all in C."""

    def __init__(self, tasks: WrittenCalls, traces: Sequence[Trace]) -> None:
        self._tasks = tasks
        self._traces = traces

    def run(self) -> None:
        begin = time.perf_counter()
        self._tasks()
        end, times = time.perf_counter(), self._tasks.times
        ends = [begin, *(end - (times[-1:] - times) / 1e9).tolist()]
        last = 0
        for trace, ended in self._traces:
            trace(ends[last], ends[ended])
            last = ended


class StageWriter:
    """Runs stages for the first time, and writes down what C does.

    Args:
        work:   runs a stage.
        arenas: of the run.
    """

    def __init__(self, work: RunStage, arenas: Sequence[Array]) -> None:
        self.turns: list[CallsOfStages | Stage] = []
        self.steps: dict[StepRun, None] = {}  # those that were written down, once each
        self._work = work
        self._arenas = arenas
        self._tasks = Tasks()
        self._traces: list[Trace] = []

    def run(self, stages: Iterable[Stage]) -> None:
        for stage in stages:
            if not self._write(stage):
                self._end()
                self.turns.append(stage)
                self._work(stage)
        self._end()

    def _end(self) -> None:
        if self._traces:
            tasks = self._tasks.repeated(self._is_of_arena)
            self.turns.append(CallsOfStages(tasks, self._traces))
        self._tasks, self._traces = Tasks(), []

    def _is_of_arena(self, array: Array) -> bool:
        return any([np.may_share_memory(array, arena) for arena in self._arenas])

    def _write(self, stage: Stage) -> bool:
        """Run a stage whose work comes again, and write it down; else leave all as it is."""
        if stage.kind in FORMS:
            return self._write_form(stage)
        if len(stage.steps) > 1 or stage.kind not in (StageKind.FORWARD, StageKind.BACKWARD):
            return False
        (step,) = stage.steps
        if step.fused or not step.node_type.comes_again(step.batch):
            return False
        spans, copied_bytes, launches = len(step.spans), step.copied_bytes, step.batch.launches
        gradients = step.gradients
        if gradients is not None and stage.is_backward:
            step.gradients = gradients.copy()
        tasks = written(partial(self._work, stage))
        if tasks is None or not _is_kept(step.gradients):
            step.copied_bytes, step.batch.launches = copied_bytes, launches
            del step.spans[spans:]
            step.gradients = gradients
            return False
        what, begin, _ = step.spans[spans]
        self._tasks.extend(tasks)
        tasks.run()
        step.spans[spans:] = [(what, begin, time.perf_counter())]
        self.steps[step] = None
        left = step.gradients.dense if stage.is_backward and step.gradients else []
        counted = step.copied_bytes - copied_bytes, step.batch.launches - launches
        trace = partial(leave, step, what, *counted, [parameter for parameter, _ in left])
        self._traces.append((trace, len(self._tasks)))
        return True

    def _write_form(self, stage: Stage) -> bool:
        tasks = written(partial(self._work, stage))
        if tasks is None:
            return False
        self._tasks.extend(tasks)
        tasks.run()
        self._traces.append((lambda begin, end: place_widened(stage), len(self._tasks)))
        return True


def _is_kept(gradients: StepGradients | None) -> bool:
    """Whether gradients lie in buffers that their parameters keep."""
    if gradients is None:
        return True
    others = gradients.sparse or gradients.products
    return not others and all([array is p.gradient_state[1] for p, array in gradients.dense])


class RecordedStages:
    """The stages of a run, as far as they were recorded, and what that depends on.

    Args:
        device:     of the graph.
        parameters: that the run reads.
    """

    def __init__(self, device: Device, parameters: Sequence[Parameter]) -> None:
        self._device = device
        self._parameters = parameters
        self._left = MOST
        self._turns: Sequence[CallsOfStages | Stage] = ()
        self._steps: Collection[StepRun] = ()
        self._known: list[object] = []
        self._places: list[tuple[int, int]] = []

    def run(self, stages: Sequence[Stage], work: RunStage, arenas: Sequence[Array]) -> None:
        """Run all stages.

        Args:
            stages: of the run's plan.
            work:   runs one as usual.
            arenas: where its blocks lie.
        """
        places = [(address_of(arena), arena.size) for arena in arenas]
        if self._suits(places):
            self._again(work, arenas[0])
        elif self._left and packed_weights() is None:
            self._left, self._turns = self._left - 1, ()
            writer = StageWriter(work, arenas)
            writer.run(stages)
            self._known, self._places = self._surroundings(), places
            self._steps, self._turns = writer.steps, writer.turns
        else:
            for stage in stages:
                work(stage)

    def _surroundings(self) -> list[object]:
        buffers = [parameter.gradient_state[1] for parameter in self._parameters]
        return [*surroundings(self._device, self._parameters), *buffers]

    def _suits(self, places: Sequence[tuple[int, int]]) -> bool:
        """Whether all lies where it lay, and steps do what they did."""
        if not self._turns or places != self._places:
            return False
        if not all(map(is_, self._known, self._surroundings())):
            return False
        return all([step.node_type.comes_again(step.batch) for step in self._steps])

    def _again(self, work: RunStage, arena: Array) -> None:
        for turn in self._turns:
            if isinstance(turn, CallsOfStages):
                turn.run()
                continue
            if turn.kind is not StageKind.FORWARD:
                for step in turn.steps:
                    # Calls left it, or a change of form moved it.
                    if step in self._steps or step.placement.narrow.keys() & step.placement.saved:
                        step.place_saved(arena)
            work(turn)
