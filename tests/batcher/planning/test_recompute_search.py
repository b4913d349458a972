"""The search for a limit changes a plan; it makes few."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.planning import memory_plan, recompute_search
from dynbatch.batcher.planning.live_profile import LiveProfile
from dynbatch.batcher.planning.memory_plan import plan_lifetimes
from dynbatch.batcher.planning.recompute import freed_after_forward, options_of
from dynbatch.batcher.planning.recompute_search import STEPS_PLANNED, Ranking, RecomputeSearch
from dynbatch.batcher.planning.stages import MemorySaving
from dynbatch.errors import MemoryLimitError
from tests.batcher.planning.random_plans import least_found
from tests.marks import exhaustive

LENGTHS = (4, 9, 30)
H = 8


class Stepwise(models.Module):
    """A recurrent layer written as a loop over the words, whose sentences cannot run in parts."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.table = db.Parameter(generator.standard_normal((20, H)).astype(np.float32), "table")
        self.forget, self.input = models.Linear(H, H), models.Linear(H, H)
        self.weight = db.Parameter(np.linspace(-1, 1, H, dtype=np.float32), "weight")

    def loss(self, graph):
        losses = []
        for length in LENGTHS:
            x = F.lookup(graph, self.table, [k % 20 for k in range(length)])
            forgets, inputs = self.forget(x), self.input(x)
            weight, c = F.parameter(graph, self.weight), F.input(graph, np.zeros(H, np.float32))
            for t in range(length):
                f = F.sigmoid(forgets[t] + weight * c)
                c = f * c + (1.0 - f) * F.tanh(inputs[t])
            losses.append(F.sum(c * c))
        return F.log(F.sum(losses))


@pytest.fixture
def counted(monkeypatch):
    """Counts of plans made, and of searches for offsets."""
    counts = {"plans": 0, "offsets": 0}

    def count(module, name, what):
        function = getattr(module, name)

        def counting(*arguments):
            counts[what] += bool(arguments[0])
            return function(*arguments)

        monkeypatch.setattr(module, name, counting)

    count(recompute_search, "plan_lifetimes", "plans")
    count(memory_plan, "assign_offsets", "offsets")
    return counts


def test_a_search_makes_few_plans_of_many_batches(counted):
    model = Stepwise()
    with db.Graph() as graph:
        loss = model.loss(graph)
        peak = graph.estimate(loss).peak_bytes
        options = 100
        for share in (0.95, 0.9, 0.85, 0.1):
            counted.update(plans=0, offsets=0)
            try:
                use = graph.estimate(loss, memory_limit=int(share * peak))
                assert use.saving.startswith("recompute") and use.peak_bytes <= share * peak
            except MemoryLimitError as error:
                assert share == 0.1 and error.least_bytes < 0.9 * peak
                most = 2 * (4 + np.log2(options)) + 3 + STEPS_PLANNED / options
                assert 20 < counted["plans"] <= most
                continue
            assert counted["plans"] <= 4 + np.log2(options)
            assert counted["offsets"] <= counted["plans"] + 1
        graph.forward()
        assert len(graph.plans[0].steps) > options


def test_a_descent_stops_when_its_steps_are_planned(monkeypatch, counted):
    with db.Graph() as graph:
        loss = Stepwise().loss(graph)
        plans = []
        for steps in (0, 2_000):
            monkeypatch.setattr(recompute_search, "STEPS_PLANNED", steps)
            counted.update(plans=0)
            with pytest.raises(MemoryLimitError):
                graph.estimate(loss, memory_limit=1)
            plans.append(counted["plans"])
        graph.forward()
        steps = len(graph.plans[0].steps)
    assert plans[1] - plans[0] == 2_000 // steps


@pytest.fixture
def searched(monkeypatch):
    """The searches of a test."""
    found = []
    fit = RecomputeSearch.fit

    def noted(search, **settings):
        found.append(search)
        return fit(search, **settings)

    monkeypatch.setattr(RecomputeSearch, "fit", noted)
    return found


def alive(plan):
    """Elements at each stage."""
    rows = [(block.size, block.first, block.last) for block in plan.intervals]
    return [sum(n for n, a, b in rows if a <= k <= b) for k in range(len(plan.stages))]


def profiled(search):
    """The plan of a search's run without a saving, and its profile."""
    plan = plan_lifetimes(search._graph, MemorySaving(), True)
    freed = freed_after_forward(plan)
    return plan, freed, LiveProfile(plan, freed)


def test_a_profile_is_that_of_the_plan_and_near_it_with_each_option(searched):
    model = Stepwise()
    with db.Graph() as graph:
        loss = model.loss(graph)
        graph.estimate(loss, memory_limit="1MiB")
        (search,) = searched
        plan, freed, profile = profiled(search)
        before = profile.alive.copy()
        assert before[: 2 * len(plan.stages) : 2].tolist() == alive(plan)
        for option in options_of(search._graph, search._parts, freed):
            profile.take(option)
            saving = MemorySaving(freed | set(option.steps))
            _, live = plan_lifetimes(search._graph, saving, True).fullest()
            assert abs(profile.peak[1] - live) <= 0.1 * live
            profile.take_back()
            np.testing.assert_array_equal(profile.alive, before)


def test_a_ranking_lowers_the_peak_with_each_option_and_does_not_know_the_limit(searched):
    model = Stepwise()
    with db.Graph() as graph:
        loss = model.loss(graph)
        graph.estimate(loss, memory_limit="1MiB")
        (search,) = searched
        _, freed, profile = profiled(search)
        before = profile.alive.copy()
        ranking = Ranking(profile, options_of(search._graph, search._parts, freed))
        np.testing.assert_array_equal(profile.alive, before)
        assert len(ranking.peaks) > 5
        assert ranking.peaks == sorted(ranking.peaks, reverse=True)
        chosen = ranking.options(len(ranking.peaks))
        assert profile.peak_with(chosen) == ranking.peaks[-1] < 0.95 * before.max()


@pytest.mark.parametrize("seed", [22, *map(exhaustive, range(40))])
def test_no_random_plan_is_smaller_than_what_is_said_to_be_the_least(seed):
    least, smallest = least_found(seed, 200)
    assert least <= smallest
