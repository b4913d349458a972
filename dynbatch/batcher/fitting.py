"""Fits a run into a limit: which forwards run again in backward, found before the first kernel.

The choice is a heuristic, since the best is NP-hard (Naumann 2008): as long as the plan is above
the limit, what is alive at its peak and costs least for each byte that it frees is made again; at
the end what turned out not to be needed is taken back, the most costly first.

Source: the ratio of bytes to cost follows Kirisame et al. 2020 (Dynamic Tensor Rematerialization),
arXiv:2006.09616; ours sees the whole run beforehand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dynbatch.batcher.block import Block
from dynbatch.batcher.layout import END, Layout
from dynbatch.batcher.stages import Saving, What
from dynbatch.batcher.step import StepRun
from dynbatch.memory import Interval, live_peak, plan_offsets

SLOWER = 0.25
"""Added to the cost of each choice of `recompute_choices` after the first."""
TRIED = 8
"""Options that are tried at most before the search for a better one ends."""
MOST_OPTIONS = 256
"""Steps of a part above which neighbours are one option."""


@dataclass(frozen=True, eq=False)
class Option:
    """Something that a run can do to hold less.

    Args:
        steps:     of one signature: one in a whole mini-batch, one in each of its parts.
        cost:      multiply-adds that it adds.
        recompute: of each, how it makes again itself what it left (`Batch.recompute`). Without,
            all of its forward runs again, before its backward.
    """

    steps: tuple[StepRun, ...]
    cost: float
    recompute: tuple[int, ...] = ()

    def __str__(self) -> str:
        kind = self.steps[0].kind.__name__
        if not self.recompute:
            return kind
        least, most = min(self.recompute), max(self.recompute)
        return f"{kind} by segments of {f'{least} to ' * (least < most)}{most}"

    def held(self, layout: Layout, peak: int) -> int:
        """Elements at a stage that are not with it."""
        own = layout.sequence[peak].steps
        if not self.recompute:
            return sum([_held(step, peak) for step in self.steps if step not in own])
        return sum(
            [
                _segmented(step, steps, peak, own)
                for step, steps in zip(self.steps, self.recompute, strict=True)
            ]
        )


class Fit(NamedTuple):
    """A plan of a run: its layout and what it does to hold less.

    Args:
        live:     elements that are alive at its peak.
        elements: of its arena; not planned while `live` alone is above the limit.
    """

    layout: Layout
    live: int
    elements: int
    serial: bool
    options: Sequence[Option]

    def __str__(self) -> str:
        counts = Counter([str(option) for option in self.options])
        again = ", ".join([f"{n} {kind}" if n > 1 else kind for kind, n in counts.items()])
        told = [f"forward again in backward: {again}"] if again else []
        told += ["backward one batch at a time"] if self.serial else []
        return "; ".join(told)


class Fitter:
    """Looks for the cheapest plan of one run that fits.

    Args:
        layout_of: the layout of the run with a saving.
        parts:     its new steps, part by part.
        limit:     elements.
    """

    def __init__(
        self,
        layout_of: Callable[[Saving], Layout],
        parts: Sequence[Sequence[StepRun]],
        limit: int,
    ) -> None:
        self._layout_of = layout_of
        self._parts = parts
        self._limit = limit
        self._freed: frozenset[StepRun] = frozenset()

    def fit(self) -> Fit:
        """The cheapest found that fits; if none does, the smallest."""
        found = self._plan(False, [])
        if self._fits(found):
            return found
        self._freed = freed_after_forward(found.layout)
        options = self._options()
        if any([stage.is_backward and len(stage.steps) > 1 for stage in found.layout.sequence]):
            serial = self._plan(True, [])
            if serial.live < found.live:
                found = serial
        while not self._fits(found):
            better = self._better(found, options)
            if better is None:
                least = self._plan(found.serial, found.options)
                return least._replace(elements=plan_offsets(least.layout.intervals))
            found = better
            options.remove(found.options[-1])
        return self._taken_back(found)

    def _better(self, found: Fit, options: Sequence[Option]) -> Fit | None:
        """With one option more, of those that free most at the peak for what they cost."""
        layout = self._plan(found.serial, found.options).layout
        peak = _peak(layout.intervals, len(layout.sequence))
        gains: list[tuple[float, int, Option]] = []
        for option in options:
            held = option.held(layout, peak)
            if held > 0:
                gains.append((-held / (option.cost + 1), len(gains), option))
        for _, _, option in sorted(gains)[:TRIED]:
            tried = self._plan(found.serial, [*_without(found.options, option), option])
            if tried.live < found.live:
                return tried
        return None

    def _taken_back(self, found: Fit) -> Fit:
        tried = sorted(found.options[:-1], key=lambda option: -option.cost)[:TRIED]
        for option in tried:
            fewer = self._plan(found.serial, [one for one in found.options if one is not option])
            if self._fits(fewer):
                found = fewer
        if found.serial:
            together = self._plan(False, found.options)
            if self._fits(together):
                return together
        return self._plan(found.serial, found.options)  # a layout that was tried wrote on the steps

    def _fits(self, found: Fit) -> bool:
        return found.elements <= self._limit

    def _plan(self, serial: bool, options: Sequence[Option]) -> Fit:
        whole = [option.steps for option in options if not option.recompute]
        again = frozenset([step for steps in whole for step in steps])
        segments = {
            step: number
            for option in options
            for step, number in zip(option.steps, option.recompute, strict=False)
        }
        saving = Saving(self._freed | again if again else again, serial, segments)
        layout = self._layout_of(saving)
        live = live_peak(layout.intervals)
        elements = live if live > self._limit else plan_offsets(layout.intervals)
        return Fit(layout, live, elements, serial, options)

    def _options(self) -> list[Option]:
        """Steps of the same place in all parts, or in a long graph those near it, are one."""
        groups: dict[tuple[int, int], list[StepRun]] = {}
        for part in self._parts:
            near = 1 + len(part) // MOST_OPTIONS
            met: Counter[int] = Counter()
            for step in part:
                signature = step.nodes[0].sig
                met[signature] += 1
                if can_run_again(step) and step not in self._freed:
                    place = (signature, met[signature] // near)
                    groups.setdefault(place, []).append(step)
        costs = self._costs()
        found = []
        for steps in groups.values():
            cost = sum([costs[step] for step in steps])
            found.append(Option(tuple(steps), cost))
            choices = [step.kind.recompute_choices(step.batch) for step in steps]
            for k in range(max(map(len, choices)) if all(choices) else 0):
                segments = tuple([some[min(k, len(some) - 1)] for some in choices])
                slower = 1 + k * SLOWER
                found.append(Option(tuple(steps), cost * slower, segments))
        return found

    def _costs(self) -> dict[StepRun, int]:
        """Of running each step again, with what it reads that is freed after forward."""
        costs: dict[StepRun, int] = {}
        maker = {block: step for part in self._parts for step in part for block in step.blocks}
        for part in self._parts:
            for step in part:
                read = {b: maker[b] for s in step.sources for b in s.blocks if b in maker}
                costs[step] = step.kind.operations(step.batch) + sum(
                    [costs.get(one, 0) for one in set(read.values()) if one in self._freed]
                )
        return costs


def can_run_again(step: StepRun) -> bool:
    """Whether a step may free what it made, to make it again in backward."""
    return step.block.carries and not step.fused and not any([b.kept for b in step.blocks])


def freed_after_forward(layout: Layout) -> frozenset[StepRun]:
    """Steps whose values no backward reads: they cost nothing to free, and may be made again."""
    stages = layout.sequence
    return frozenset(
        [
            step
            for stage in stages
            if stage.what is What.FORWARD
            for step in stage.steps
            if can_run_again(step)
            and not step.kind.saves()
            and all([_last(b) < END and not stages[_last(b)].is_backward for b in step.blocks])
        ]
    )


def _last(block: Block) -> int:
    assert block.interval is not None
    return block.interval.last


def _without(options: Sequence[Option], new: Option) -> list[Option]:
    """A step recomputes in one way."""
    if not new.recompute:
        return list(options)
    return [one for one in options if not one.recompute or one.steps[0] is not new.steps[0]]


def _segmented(step: StepRun, recompute: int, peak: int, own: Sequence[StepRun]) -> int:
    """Elements less at a stage if a step makes again itself what it left."""
    saved = [interval for interval, _, _ in step.saved.values()]
    before = sum([interval.size for interval in saved if interval.first <= peak <= interval.last])
    if not before and step not in own:
        return 0
    batch, kept = step.batch, step.batch.recompute
    batch.recompute = recompute
    after = sum([rows * width for rows, width in step.kind.saved(batch).values()])
    if step in own:
        after += step.kind.workspace_backward(batch)
        before += 0 if step.workspace_backward is None else step.workspace_backward.size
    batch.recompute = kept
    return before - after


def _held(step: StepRun, peak: int) -> int:
    """Elements that a step holds at a stage, and would not if it were run again later."""
    held = [block.interval for block in step.blocks]
    held += [interval for interval, _, _ in step.saved.values()]
    return sum([i.size for i in held if i is not None and i.first < peak <= i.last])


def _peak(intervals: Sequence[Interval], stages: int) -> int:
    """The stage at which most elements are alive."""
    changes = [0] * (stages + 1)
    for block in intervals:
        changes[block.first] += block.size
        if block.last < stages:
            changes[block.last + 1] -= block.size
    alive = most = peak = 0
    for stage, change in enumerate(changes[:stages]):
        alive += change
        if alive > most:
            peak, most = stage, alive
    return peak
