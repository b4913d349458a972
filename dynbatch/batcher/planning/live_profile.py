"""`LiveProfile`: elements alive at each stage of a plan, and what recomputing steps would change.

A search that made a plan for each thing it tries would take longer than the run. Here a trial moves
the ends of the lifetimes that it touches, and can be taken back. The profile is near the plan, not
equal to it: blocks that then no longer share a place are left out, and steps that run again before
one stage count as if their values came at once. So a search ends with plans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.planning.lifetimes import END
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.planning.recompute import RecomputeOption
from dynbatch.batcher.planning.stages import StageKind
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.memory import Interval

NEVER = END

CHANGED = "alive", "_saved", "_last", "_wide", "_slot", "_segments", "_work", "_waiting"
"""Attributes of a profile that options change."""


class LiveProfile:
    """Elements alive at each stage of a plan in which nothing is recomputed.

    Steps are numbered in the order in which they run. Stage k is entry 2k of the profile; entry
    2k − 1 is the time before it, in which steps run again.

    Args:
        plan:         the plan.
        freed:        steps whose values no backward reads: recomputed where others need them.

    Attributes:
        alive: elements at each entry.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        freed: Collection[StepRun],
    ) -> None:
        self._plan = plan
        self._steps = steps = list(plan.placements)
        self._number = {step: number for number, step in enumerate(steps)}
        count = len(steps)
        self._end = 2 * len(plan.stages)
        self.alive = self._alive()
        self._made = np.zeros(count, np.int64)  # entry at which forward writes the value
        self._read = np.zeros(count, np.int64)  # last entry at which a forward reads it
        self._needed = np.full(count, NEVER)  # entry before the first backward that reads it
        self._inputs: list[list[int]] = [[] for _ in steps]
        self._readers: list[list[int]] = [[] for _ in steps]
        self._walk()
        placements = plan.placements.values()
        self._size = [_elements(p.blocks) for p in placements]
        # Between forward and backward, where some of it lies in 16 bits.
        self._sizes = np.array([_elements(p.resting_blocks()) for p in placements])
        self._saved = np.array([_elements(p.resting_saved()) for p in placements])
        self._saved_last = [_last_entry(p.read_by_backward()) for p in placements]
        wide = [[p.widened[k] for k in range(len(p.blocks)) if k in p.widened] for p in placements]
        self._last = [
            _last_entry([*p.blocks, *again]) for p, again in zip(placements, wide, strict=True)
        ]
        # The entry from which values that lie in 16 bits are float32 again.
        self._wide = [2 * min([x.first for x in again], default=0) for again in wide]
        self._slot: dict[int, int] = {}  # of each recomputed step, the entry at which it runs again
        self._segments = [p.recompute for p in placements]
        self._work: dict[int, int] = {}  # the most that a step works with when it runs again
        self._waiting = np.ones(count, bool)
        for step in freed:
            number = self._number[step]
            self._slot[number] = NEVER
            self._waiting[number] = False
        self._begin = self.mark

    @property
    def peak(self) -> tuple[int, int]:
        """The first entry with the most elements alive, and their number."""
        entry = int(self.alive.argmax())
        return entry, int(self.alive[entry])

    def take(self, option: RecomputeOption) -> None:
        """Apply an option."""
        if option.recompute:
            for step, segments in zip(option.steps, option.recompute, strict=True):
                self._cut(self._number[step], segments)
        else:
            for step in option.steps:
                self._recompute(self._number[step])

    @property
    def mark(self) -> list[Any]:
        """All that options change, as it is now, to which `take_back` returns."""
        return [getattr(self, name).copy() for name in CHANGED]

    def take_back(self, mark: list[Any] | None = None) -> None:
        """Undo all options taken since the mark, or all."""
        for name, value in zip(CHANGED, self._begin if mark is None else mark, strict=True):
            setattr(self, name, value.copy())

    def peak_with(self, options: Iterable[RecomputeOption]) -> int:
        """The most elements alive with exactly these options."""
        self.take_back()
        for option in options:
            self.take(option)
        most = self.peak[1]
        self.take_back()
        return most

    def freed_at(self, entry: int) -> Array:
        """Elements that each step would free there, were it recomputed; of others than inputs."""
        away = entry < self._needed
        values = np.where((self._read < entry) & away, self._sizes, 0)
        saved = np.where((self._made <= entry) & away, self._saved, 0)
        held: Array = np.where(self._waiting, values + saved, 0)
        return held

    def numbers(self, steps: Iterable[StepRun]) -> list[int]:
        """The positions of these steps in `freed_at`."""
        return [self._number[step] for step in steps]

    def saved_by_segments(self, option: RecomputeOption, entry: int) -> int:
        """Elements less at an entry if the steps of an option make again what they leave."""
        return sum(
            [
                self._less(step, segments, entry)
                for step, segments in zip(option.steps, option.recompute, strict=True)
            ]
        )

    # From the plan --------------------------------------------------------------------------------

    def _alive(self) -> Array:
        changes = np.zeros(self._end + 2, np.int64)
        for block in self._plan.intervals:
            changes[2 * block.first] += block.size
            changes[min(2 * block.last + 1, self._end + 1)] -= block.size
        alive: Array = np.cumsum(changes)[:-1]
        return alive

    def _walk(self) -> None:
        number, maker = self._number, self._plan.graph.maker
        for time, stage in enumerate(self._plan.stages):
            for step in stage.steps:
                if stage.kind is StageKind.FORWARD:
                    reader = number[step]
                    # Times are doubled, so that 2 t - 1 is the moment before stage t.
                    self._made[reader] = self._read[reader] = 2 * time
                    blocks = [block for source in step.sources for block in source.blocks]
                    makers = {number[maker[block]] for block in blocks if block in maker}
                    self._inputs[reader] = sorted(makers)
                    for made in makers:
                        self._read[made] = 2 * time
                        self._readers[made].append(reader)
                elif stage.kind is StageKind.BACKWARD:
                    for made in self._read_by_backward(step):
                        self._needed[made] = min(self._needed[made], 2 * time - 1)

    def _read_by_backward(self, step: StepRun) -> list[int]:
        number, maker = self._number, self._plan.graph.maker
        makers = [number[step]] if step.node_type.saves and step in number else []
        return makers + [number[maker[x]] for x in step.read_by_backward() if x in maker]

    # Trials ---------------------------------------------------------------------------------------

    def _change(self, first: int, end: int, elements: int) -> None:
        if first < end:
            self.alive[first:end] += elements

    def _extend(self, number: int, entry: int) -> None:
        last, wide = self._last[number], self._wide[number]
        if entry < wide:
            self._change(entry, wide, self._size[number])
            self._wide[number] = entry
        elif last < entry:
            self._change(last + 1, entry + 1, self._size[number])
            self._last[number] = entry

    def _recompute(self, number: int) -> None:
        if number in self._slot:
            return
        slots = [self._slot.get(reader, NEVER) for reader in self._readers[number]]
        slot = min(int(self._needed[number]), *slots, NEVER)
        self._slot[number] = slot
        self._waiting[number] = False
        if slot is not NEVER:
            self._change(int(self._read[number]) + 1, slot, -int(self._sizes[number]))
            self._change(int(self._made[number]), slot, -int(self._saved[number]))
            self._work_at(number, slot)
            self._read_inputs(number, slot)

    def _read_inputs(self, number: int, slot: int) -> None:
        stack = [number]
        while stack:
            for made in self._inputs[stack.pop()]:
                before = self._slot.get(made)
                if before is None:
                    self._extend(made, slot)
                elif slot < before:
                    self._slot[made] = slot
                    if before >= NEVER:
                        self._change(slot, slot + 1, self._size[made])
                        self._last[made] = slot
                    else:
                        self._change(slot, before, self._size[made] + int(self._saved[made]))
                    self._work_at(made, slot)
                    stack.append(made)
                else:
                    self._extend(made, slot)

    def _work_at(self, number: int, slot: int) -> None:
        """A step runs again, with what it packs and its workspace."""
        step = self._steps[number]
        asked = step.needs(True, self._segments[number])
        packed = [source.size for source in step.sources if not source.is_view]
        work, before = asked.workspace + sum(packed), self._work.get(slot, 0)
        if work > before and not step.is_structural:
            self._work[slot] = work
            self._change(slot, slot + 1, work - before)

    def _less(self, step: StepRun, segments: int, entry: int) -> int:
        """Elements that a step saves at an entry by making again itself what it left."""
        number = self._number[step]
        before, after = self._segment_sizes(number), self._segment_sizes(number, segments)
        begin = self._slot.get(number, int(self._made[number]))
        less = before[0] - after[0] if begin <= entry <= self._saved_last[number] else 0
        if entry == self._made[number]:
            less += before[1] - after[1]
        elif entry == self._saved_last[number]:
            less += before[2] - after[2]
        return less

    def _segment_sizes(self, number: int, segments: int | None = None) -> tuple[int, int, int]:
        """Elements of what forward leaves, and of its workspace and that of backward."""
        step = self._steps[number]
        recompute = self._segments[number] if segments is None else segments
        saved = step.needs(True, recompute).saved
        keeps = number not in self._slot
        return (
            sum([rows * width for rows, width in saved.values()]),
            step.needs(keeps, recompute).workspace,
            step.needs_backward(recompute),
        )

    def _cut(self, number: int, segments: int) -> None:
        """A step makes again itself what it left, in segments."""
        last = self._saved_last[number]
        before, after = self._segment_sizes(number), self._segment_sizes(number, segments)
        if last >= self._end or not before[0]:
            return
        made = int(self._made[number])
        self._change(self._slot.get(number, made), last + 1, after[0] - before[0])
        self._change(made, made + 1, after[1] - before[1])
        self._change(last, last + 1, after[2] - before[2])
        self._segments[number], self._saved[number] = segments, after[0]


def _elements(blocks: Iterable[Interval]) -> int:
    return sum([block.size for block in blocks])


def _last_entry(blocks: Iterable[Interval]) -> int:
    return 2 * max([block.last for block in blocks], default=0)
