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
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.planning.live_profile import LiveProfile
from dynbatch.batcher.planning.memory_plan import MemoryPlan, plan_lifetimes, plan_narrow
from dynbatch.batcher.planning.recompute import RecomputeOption, freed_after_forward, options_of
from dynbatch.batcher.planning.stages import NO_SAVING, MemorySaving, StepGraph
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.indexing import bincount

FAR = 1.25
"""How far above the limit a profile must be for no plan to be tried: it is off by some per cent."""
GUESSES = 4
"""After this many plans a search goes on by bisection."""
STEPS_PLANNED = 8_000
"""Before an error says what is the least, so many steps are planned at most, some 60 µs each."""
STARTS = 12
"""Of so many descents to what is the least."""
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
    saving: MemorySaving
    options: Sequence[RecomputeOption]

    def __str__(self) -> str:
        counts = Counter([str(option) for option in self.options])
        steps = ", ".join([f"{n} × {step}" if n > 1 else step for step, n in counts.items()])
        measures = [f"recompute {steps}"] if steps else []
        measures += ["backward one batch at a time"] if self.saving.serial else []
        measures += ["weight gradients one batch at a time"] if self.saving.apart else []
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
        smallest: the smallest plan, once a thorough search found nothing.
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

    def fit(self, thorough: bool = False) -> Candidate | None:
        """The cheapest plan found that fits; None if there is none.

        Args:
            thorough: whether to look for it where the limit seems out of reach.
        """
        saving = plan_narrow(self._graph, self._in_place)[1] if self._graph.rounds else NO_SAVING
        whole = self._plan(saving, [])
        if self._fits(whole):
            return whole
        peak, _ = whole.plan.fullest()
        more = []
        if whole.plan.stages[peak].is_backward and len(whole.plan.stages[peak].steps) > 1:
            more.append("serial")
        if whole.plan.waits:
            more.append("apart")
        for name in more:
            other = self._plan(whole.saving.switched(name), [])
            whole = other if other.live < whole.live else whole
            if self._fits(whole):
                return whole
        self._whole = whole
        self._freed = freed_after_forward(whole.plan)
        profile = LiveProfile(whole.plan, self._freed)
        self._ranking = Ranking(profile, options_of(self._graph, self._parts, self._freed))
        self.floor = min([whole.live, *self._ranking.peaks[-1:]])
        if self.floor > FAR * self._limit and not thorough:
            return None
        candidate = self.smallest = self._shortest(self._whole, self._ranking)
        return self._without_waste(candidate) if self._fits(candidate) else None

    def fit_by_descent(self) -> Candidate | None:
        """Look as a thorough `fit` does, and then for the first that fits of ever smaller plans.

        Each choice in turn is changed where the arena gets smaller by that, from the smallest plan,
        from nothing, from some and from all of it, within `STEPS_PLANNED`. It is the same for
        every limit.
        """
        candidate = self.fit(thorough=True)
        if candidate is not None:
            return candidate
        options = self._ranking.waiting
        changes: list[str | RecomputeOption] = ["serial", "apart", *options]
        left = STEPS_PLANNED // max(1, len(self._whole.plan.placements))
        generator = np.random.default_rng(0)
        ends = []
        for start in range(STARTS):
            if start == 0:
                best = self._plan(self.smallest.saving, self.smallest.options, places=True)
            elif left > 0:
                best = self.random_plan(generator, options, (start - 1) / (STARTS - 2))
            last = None
            while last is not best and left > 0:
                last = best
                for change in changes:
                    if left > 0 and not self._fits(best):
                        best = min(best, self._changed(best, change), key=_size)
                        left -= 1
            if self._fits(best):
                return self._without_waste(best)
            ends.append(best)
        self.smallest = min(ends, key=_size)
        return None

    def _changed(self, candidate: Candidate, change: str | RecomputeOption) -> Candidate:
        """The plan of a candidate with one choice changed."""
        saving, options = candidate.saving, candidate.options
        if isinstance(change, str):
            saving = saving.switched(change)
        elif change in options:
            options = [option for option in options if option is not change]
        else:
            options = with_option(options, change)
        return self._plan(saving, options, places=True)

    def random_plan(
        self, generator: np.random.Generator, options: Sequence[RecomputeOption], share: float
    ) -> Candidate:
        """The plan with about this share of the options, by chance."""
        saving = replace(
            self._whole.saving, serial=generator.random() < 0.5, apart=generator.random() < 0.5
        )
        chosen: list[RecomputeOption] = []
        for option in options:
            if generator.random() < share:
                chosen = with_option(chosen, option)
        return self._plan(saving, chosen, places=True)

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
            last = self._plan(whole.saving, ranking.options(guess))
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
            fewest = self._plan(candidate.saving, options)
            if self._fits(fewest):
                candidate = fewest
                break
        for name in ("serial", "apart"):
            if getattr(candidate.saving, name):
                together = self._plan(candidate.saving.switched(name), candidate.options)
                candidate = together if self._fits(together) else candidate
        return candidate

    def _fits(self, found: Candidate) -> bool:
        return found.elements <= self._limit

    def _plan(
        self, saving: MemorySaving, options: Sequence[RecomputeOption], places: bool = False
    ) -> Candidate:
        """The plan with some options.

        Args:
            saving: what it does beside them.
            places: whether offsets are looked for above the limit, too.
        """
        whole = [option.steps for option in options if not option.recompute]
        recomputed = frozenset([step for steps in whole for step in steps])
        segments = {
            step: number
            for option in options
            for step, number in zip(option.steps, option.recompute, strict=False)
        }
        recomputed = self._freed | recomputed if recomputed else recomputed
        saving = replace(saving, recomputed=recomputed, segments=segments)
        plan = plan_lifetimes(self._graph, saving, self._in_place)
        _, live = plan.fullest()
        if places or live <= self._limit:
            plan = plan.placed()
        return Candidate(plan, live, max(live, plan.elements), saving, options)


def with_option(options: Sequence[RecomputeOption], new: RecomputeOption) -> list[RecomputeOption]:
    """Some options and a new one; each step is cut into segments in one way only."""
    return [
        option
        for option in options
        if not (option.recompute and new.recompute and option.steps[0] is new.steps[0])
    ] + [new]


def _size(candidate: Candidate) -> tuple[int, int]:
    return candidate.elements, candidate.live


class Ranking:
    """Options in the order in which a run should take them, whatever its limit.

    Attributes:
        peaks:   elements after each of them, as the profile says; falling.
        profile: of the plan without any.
        waiting: all options.
    """

    def __init__(self, profile: LiveProfile, options: Sequence[RecomputeOption]) -> None:
        self.peaks: list[int] = []
        self._order: list[RecomputeOption] = []
        self.profile = profile
        self.waiting = list(options)
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
            chosen = with_option(chosen, new)
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
            profile.take(self.waiting[k])
            if profile.alive[entry] < peak and profile.peak[1] <= peak:
                self._enter(k)
                return True
            profile.take_back(mark)
        return False

    def _freed_at(self, entry: int) -> Array:
        freed = bincount(
            self._option_of, self.profile.freed_at(entry)[self._steps], len(self.waiting)
        )
        for k, option in self._segmented:
            freed[k] = self.profile.saved_by_segments(option, entry)
        freed[list(self._taken)] = 0
        return freed

    def _enter(self, number: int) -> None:
        self._taken.add(number)
        self._order.append(self.waiting[number])
        self.peaks.append(self.profile.peak[1])
