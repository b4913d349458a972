"""Fits a run into a limit: searches for the steps to recompute, before the first kernel.

The choice is a heuristic, since the best is NP-hard (Naumann 2008): what is alive at the peak and
costs least for each byte that it frees is recomputed, then what is at the peak that is left, and so
on. That ranking is made on a `LiveProfile`, without a limit, so it is the same for every limit.
Plans are made for a few of its beginnings only, until the shortest one that fits is found; at the
end what turned out not to be needed is taken back, the most costly first.

Source: the ratio of bytes to cost follows Kirisame et al. 2020 (Dynamic Tensor Rematerialization),
arXiv:2006.09616; ours sees the whole run beforehand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.planning.live_profile import LiveProfile
from dynbatch.batcher.planning.memory_plan import MemoryPlan, plan_lifetimes
from dynbatch.batcher.planning.recompute import RecomputeOption, freed_after_forward, options_of
from dynbatch.batcher.planning.stages import MemorySaving, StepGraph
from dynbatch.batcher.steps.step_run import StepRun

FAR = 1.25
"""How far above the limit a profile must be for no plan to be tried: it is off by some per cent."""
GUESSES = 4
"""After this many plans a search goes on by bisection."""
TRIED = 8
"""Options that are tried at most, one by one, before the search for a better one ends."""


class Candidate(NamedTuple):
    """A plan of a run, and its memory saving.

    Args:
        live:     most elements alive at a stage.
        elements: of its arena; as many as `live` where these alone are above the limit.
    """

    plan: MemoryPlan
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
        graph:    the steps of the run.
        parts:    its new steps, part by part.
        in_place: whether blocks may be written over others.
        limit:    elements.

    Attributes:
        floor:    elements that are about the least, once `fit` found nothing.
        smallest: the smallest plan, once `fit_thoroughly` found nothing.
    """

    floor: int
    smallest: Candidate

    def __init__(
        self, graph: StepGraph, parts: Sequence[Sequence[StepRun]], in_place: bool, limit: int
    ) -> None:
        self._graph = graph
        self._parts = parts
        self._in_place = in_place
        self._limit = limit
        self._freed: frozenset[StepRun] = frozenset()
        self._whole: Candidate
        self._ranking: Ranking

    def fit(self) -> Candidate | None:
        """The cheapest plan found that fits; None if the limit seems out of reach."""
        whole = self._plan(False, [])
        if self._fits(whole):
            return whole
        peak, _ = whole.plan.fullest()
        if whole.plan.stages[peak].is_backward and len(whole.plan.stages[peak].steps) > 1:
            serial = self._plan(True, [])
            whole = serial if serial.live < whole.live else whole
            if self._fits(whole):
                return whole
        self._whole = whole
        self._freed = freed_after_forward(whole.plan)
        profile = LiveProfile(whole.plan, self._freed)
        self._ranking = Ranking(profile, options_of(self._graph, self._parts, self._freed))
        self.floor = min([whole.live, *self._ranking.peaks[-1:]])
        return None if self.floor > FAR * self._limit else self.fit_thoroughly()

    def fit_thoroughly(self) -> Candidate | None:
        """The cheapest plan found that fits, by a longer search after `fit`; None if none fits."""
        candidate = self.smallest = self._shortest(self._whole, self._ranking)
        return self._without_waste(candidate) if self._fits(candidate) else None

    def _shortest(self, whole: Candidate, ranking: Ranking) -> Candidate:
        """The shortest prefix of the ranking that fits, or all of it.

        The first plans are of beginnings that should fit by what the profile says and by how far
        the last plan was from it; then the middle is tried.
        """
        peaks = ranking.peaks
        low, high = 0, len(peaks) + 1
        best = last = whole
        error, tried = whole.elements - whole.live, 0
        while high - low > 1:
            guess = (low + high) // 2
            if tried < GUESSES:
                guess = bisect_left(peaks, error - self._limit, key=lambda peak: -peak) + 1
                guess = min(max(guess, low + 1), high - 1)
            tried += 1
            last = self._plan(whole.serial, ranking.options(guess))
            error = max(error, last.elements - peaks[guess - 1])
            if self._fits(last):
                best, high = last, guess
            else:
                low = guess
        return best if high <= len(peaks) else last

    def _without_waste(self, candidate: Candidate) -> Candidate:
        """Drop the most expensive options as long as the rest fits."""
        profile = self._ranking.profile
        spare = self._limit - candidate.elements + profile.peak_with(candidate.options)
        # As if the profile were right, and else as if it were always as far from the plan as here.
        for most in (self._limit, spare):
            options = list(candidate.options)
            for option in sorted(options[:-1], key=lambda option: -option.cost)[:TRIED]:
                fewer = [other for other in options if other is not option]
                if profile.peak_with(fewer) <= most:
                    options = fewer
            if len(options) == len(candidate.options):
                continue
            fewest = self._plan(candidate.serial, options)
            if self._fits(fewest):
                candidate = fewest
                break
        if candidate.serial:
            together = self._plan(False, candidate.options)
            candidate = together if self._fits(together) else candidate
        return candidate

    def _fits(self, found: Candidate) -> bool:
        return found.elements <= self._limit

    def _plan(self, serial: bool, options: Sequence[RecomputeOption]) -> Candidate:
        whole = [option.steps for option in options if not option.recompute]
        recomputed = frozenset([step for steps in whole for step in steps])
        segments = {
            step: number
            for option in options
            for step, number in zip(option.steps, option.recompute, strict=False)
        }
        recomputed = self._freed | recomputed if recomputed else recomputed
        saving = MemorySaving(recomputed, serial, segments)
        plan = plan_lifetimes(self._graph, saving, self._in_place)
        _, live = plan.fullest()
        if live <= self._limit:
            plan = plan.placed()
        return Candidate(plan, live, max(live, plan.elements), serial, options)


class Ranking:
    """Options in the order in which a run should take them, whatever its limit.

    Attributes:
        peaks:   elements after each of them, as the profile says; falling.
        profile: of the plan without any.
    """

    def __init__(self, profile: LiveProfile, options: Sequence[RecomputeOption]) -> None:
        self.peaks: list[int] = []
        self._order: list[RecomputeOption] = []
        self.profile = profile
        self._waiting = list(options)
        self._costs = np.array([option.cost + 1.0 for option in options])
        whole = [(k, profile.numbers(o.steps)) for k, o in enumerate(options) if not o.recompute]
        self._option_of = np.array([k for k, steps in whole for _ in steps], np.int64)
        self._steps = np.array([step for _, steps in whole for step in steps], np.int64)
        self._segmented = [(k, option) for k, option in enumerate(options) if option.recompute]
        self._taken: set[int] = set()
        while self._take_next():
            pass
        profile.take_back()

    def options(self, count: int) -> list[RecomputeOption]:
        """The first options; each step is cut into segments in one way only."""
        chosen: list[RecomputeOption] = []
        for new in self._order[:count]:
            chosen = [
                option
                for option in chosen
                if not (option.recompute and new.recompute and option.steps[0] is new.steps[0])
            ]
            chosen.append(new)
        return chosen

    def _take_next(self) -> bool:
        """Take the option that frees most at the peak per cost, if the peak falls."""
        profile = self.profile
        entry, peak = profile.peak
        freed = self._freed_at(entry)
        rank = np.argsort(-freed / self._costs, kind="stable")
        better = [k for k in rank[: TRIED + len(self._taken)].tolist() if freed[k] > 0]
        for k in better[:TRIED]:
            mark = profile.mark
            profile.take(self._waiting[k])
            if profile.alive[entry] < peak and profile.peak[1] <= peak:
                self._enter(k)
                return True
            profile.take_back(mark)
        return False

    def _freed_at(self, entry: int) -> Array:
        freed = np.bincount(
            self._option_of, self.profile.freed_at(entry)[self._steps], len(self._waiting)
        )
        for k, option in self._segmented:
            freed[k] = self.profile.saved_by_segments(option, entry)
        freed[list(self._taken)] = 0
        return freed

    def _enter(self, number: int) -> None:
        self._taken.add(number)
        self._order.append(self._waiting[number])
        self.peaks.append(self.profile.peak[1])
