"""Fits a run into a limit: which forwards run again in backward, found before the first kernel.

The choice is a heuristic, since the best is NP-hard (Naumann 2008): as long as the plan is above
the limit, what is alive at its peak and costs least for each byte that it frees is made again; at
the end what turned out not to be needed is taken back, the most costly first.

Source: the ratio of bytes to cost follows Kirisame et al. 2020 (Dynamic Tensor Rematerialization),
arXiv:2006.09616; ours sees the whole run beforehand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dynbatch.batcher.planning.memory_plan import MemoryPlan, plan_lifetimes
from dynbatch.batcher.planning.recompute import RecomputeOption, freed_after_forward, options_of
from dynbatch.batcher.planning.requirements import Requirements
from dynbatch.batcher.planning.stages import MemorySaving, StepGraph
from dynbatch.batcher.steps.step import StepRun

TRIED = 8
"""Options that are tried at most, one by one, before the search for a better one ends."""


class Candidate(NamedTuple):
    """A plan of a run: its layout and what it does to hold less.

    Args:
        peak:     the stage at which most is alive, and `live`, the elements alive then.
        elements: of its arena; not planned while `live` alone is above the limit.
    """

    plan: MemoryPlan
    peak: int
    live: int
    elements: int
    serial: bool
    options: Sequence[RecomputeOption]

    def __str__(self) -> str:
        counts = Counter([str(option) for option in self.options])
        steps = ", ".join([f"{n} × {step}" if n > 1 else step for step, n in counts.items()])
        measures = [f"recompute {steps}"] if steps else []
        measures += ["backward one batch at a time"] if self.serial else []
        return "; ".join(measures)


class RecomputeSearch:
    """Looks for the cheapest plan of one run that fits.

    Args:
        graph:     the steps of the run.
        parts:     its new steps, part by part.
        in_place:  whether blocks may be written over others.
        limit:     elements.
        thorough:  at each step of the search as if all were too much. It takes longer, and goes the
            same way for every limit; so the least that it finds for one, it finds for all.
    """

    def __init__(
        self,
        graph: StepGraph,
        parts: Sequence[Sequence[StepRun]],
        in_place: bool,
        limit: int,
        thorough: bool,
    ) -> None:
        self._graph = graph
        self._in_place = in_place
        self._requirements = Requirements()
        self._parts = parts
        self._limit = limit
        self._wanted = 0 if thorough else limit
        self._freed: frozenset[StepRun] = frozenset()

    def fit(self) -> Candidate:
        """The cheapest found that fits; if none does, the smallest."""
        found = self._plan(False, [])
        if self._fits(found):
            return found
        self._freed = freed_after_forward(found.plan)
        options = options_of(self._graph, self._parts, self._freed)
        if any([stage.is_backward and len(stage.steps) > 1 for stage in found.plan.stages]):
            serial = self._plan(True, [])
            found = serial if serial.live < found.live else found
        while not self._fits(found):
            better = self._better(found, options)
            if better is None:
                plan = found.plan.placed()
                return found._replace(plan=plan, elements=plan.elements)
            found = better
            options = [option for option in options if option not in found.options]
        return self._taken_back(found)

    def _better(self, found: Candidate, options: Sequence[RecomputeOption]) -> Candidate | None:
        """With more options, those that free most at the peak for what they cost.

        As many at once as free what is too much, if that helps; else one.
        """
        gains = []
        for number, option in enumerate(options):
            held = option.held(found.plan, self._requirements, found.peak)
            if held > 0:
                gains.append((-held / (option.cost + 1), number, held))
        gains.sort()
        several: list[RecomputeOption] = []
        wanted = found.live - self._wanted
        for _, number, held in gains:
            if wanted <= 0:
                break
            several = _with(several, options[number])
            wanted -= held
        for more in (several, *[[options[number]] for _, number, _ in gains[:TRIED]]):
            chosen = list(found.options)
            for option in more:
                chosen = _with(chosen, option)
            tried = self._plan(found.serial, chosen)
            if tried.live < found.live:
                return tried
        return None

    def _taken_back(self, found: Candidate) -> Candidate:
        tried = sorted(found.options[:-1], key=lambda option: -option.cost)[:TRIED]
        for option in tried:
            fewer = self._plan(found.serial, [one for one in found.options if one is not option])
            if self._fits(fewer):
                found = fewer
        if found.serial:
            together = self._plan(False, found.options)
            if self._fits(together):
                return together
        return found

    def _fits(self, found: Candidate) -> bool:
        return found.elements <= self._limit

    def _plan(self, serial: bool, options: Sequence[RecomputeOption]) -> Candidate:
        whole = [option.steps for option in options if not option.recompute]
        again = frozenset([step for steps in whole for step in steps])
        segments = {
            step: number
            for option in options
            for step, number in zip(option.steps, option.recompute, strict=False)
        }
        saving = MemorySaving(self._freed | again if again else again, serial, segments)
        plan = plan_lifetimes(self._graph, saving, self._requirements, self._in_place)
        peak, live = plan.fullest()
        if live <= self._limit:
            plan = plan.placed()
        return Candidate(plan, peak, live, max(live, plan.elements), serial, options)


def _with(options: Sequence[RecomputeOption], new: RecomputeOption) -> list[RecomputeOption]:
    """One more; a step recomputes in one way only."""
    others = [
        one
        for one in options
        if not (one.recompute and new.recompute and one.steps[0] is new.steps[0])
    ]
    return [*others, new]
