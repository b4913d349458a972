"""Ctrl-C may come at any line: three steps after it are right to the bit, and no memory is lost.

Each step of `STEPS` is broken off at each of its lines by a KeyboardInterrupt, and then taken three
times undisturbed. `tests/train/test_signals.py` sends real signals instead.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import MemoryLimitError, NumericError
from dynbatch.memory import Pool
from tests.interruptions import broken_off
from tests.marks import quick

SHARED = (
    "memory/pool.py", "memory/arena.py", "memory/resource.py", "steps/parameter_gradients.py",
    "execution/run.py", "dynbatch/gc_pause.py", "dynbatch/recent.py", "runtime/parallel.py",
    "runtime/workers.py", "nodes/signature.py", "schedule/schedule.py", "planning/resting_run.py",
    "execution/recorded_stages.py", "runtime/tasks.py",
)  # fmt: skip
"""Files with tables that outlive a step."""


def numbers(*lengths, width=4):
    draws = np.random.default_rng(0)
    return [draws.standard_normal((length, width)).astype(np.float32) for length in lengths]


def gradients_of(losses, *modules, limit=None, lengths=(3, 5, 2), pool=None):
    """A step: the losses of some sentences, and the gradients of a model."""
    pool = Pool() if pool is None else pool
    parameters = [one for module in modules for _, one in module.named_parameters()]
    sentences = numbers(*lengths)

    def step():
        for parameter in parameters:
            parameter.zero_grad()
        with db.Graph(pool=pool, seed=1) as graph:
            loss = F.sum([losses(F.input(graph, rows)) for rows in sentences])
            graph.backward(loss, limit)
            found = [loss.value]
        return [one.tobytes() for one in (*found, *[each.grad for each in parameters])]

    return step, pool


def plain():
    db.seed(0)
    inner, outer = models.Linear(4, 8), models.Linear(8, 1)
    return gradients_of(lambda x: F.sum(F.tanh(outer(F.tanh(inner(x))))), inner, outer)


def growing():
    """Mini-batches that need more memory from time to time, so that regions come and go."""
    db.seed(0)
    inner, pool = models.Linear(4, 8), Pool()

    def loss(x):
        return F.sum(F.tanh(inner(x)))

    steps = [
        gradients_of(loss, inner, lengths=lengths, pool=pool)[0]
        for lengths in ((3, 2), (90, 70), (400, 3))
    ]

    def step():
        pool.release()
        with db.Graph(pool=pool) as graph:  # in use meanwhile: regions cannot become one
            F.tanh(F.input(graph, numbers(300)[0])).value  # noqa: B018
            return [one for take in steps for one in take()]

    return step, pool


def limited():
    db.seed(0)
    inner, outer = models.Linear(4, 16), models.Linear(16, 1)

    def loss(x):
        return F.sum(F.tanh(outer(F.tanh(inner(x)))))

    with db.Graph() as graph:
        need = graph.estimate(F.sum([loss(F.input(graph, rows)) for rows in numbers(30, 20, 25)]))
    return gradients_of(loss, inner, outer, limit=int(need.peak_bytes * 0.6), lengths=(30, 20, 25))


def calls():
    """Cells called on nodes, which run as regions."""
    weights = SimpleNamespace(W=db.Parameter(np.full((4, 4), 0.25, np.float32)))

    @db.cell
    def node(x, h, p):
        return F.tanh(F.linear(h, p.W) + x)

    def loss(x):
        left = node(x[0], 4, weights)
        return F.sum(node(x[1], left + node(x[2], left, weights), weights))

    holder = SimpleNamespace(named_parameters=lambda: [("W", weights.W)])
    return gradients_of(loss, holder, lengths=(3, 5, 4))


def scans():
    db.seed(0)
    model = models.LSTM(4, 4)
    return gradients_of(lambda x: F.sum(model(x)[0]), model)


def blocks():
    db.seed(0)
    inner, outer = models.Linear(4, 8), models.Linear(8, 1)

    @db.block
    def loss(x):
        return F.sum(F.tanh(outer(F.tanh(inner(x)))))

    return gradients_of(loss, inner, outer)


def not_finite():
    """A loss that is refused, in one part and in several, which is undone."""
    db.seed(0)
    inner, pool = models.Linear(4, 8), Pool()
    step, _ = gradients_of(lambda x: F.sum(F.tanh(inner(x))), inner, pool=pool)

    def failing():
        with db.Graph(pool=pool) as graph, pytest.raises(NumericError):
            graph.backward(F.sum(F.log(inner(F.input(graph, np.zeros((2, 4)))) * 0 - 1)))
        with db.Graph(pool=pool) as graph, pytest.raises(MemoryLimitError):
            graph.backward(F.sum(inner(F.input(graph, np.ones((9, 4))))), 64)
        return step()

    return failing, pool


STEPS = {
    each.__name__: each for each in (plain, growing, limited, calls, scans, blocks, not_finite)
}

EVERY = tuple([str(path) for path in Path(db.__file__).parent.rglob("*.py")])


def broken(make, files, callers, every=1, first=0):
    """The number of interrupted lines, and where one of three steps after it was not right."""
    made = [make()]
    step, pool = made[-1]
    expected = [step() for _ in range(3)]
    assert expected[1:] == expected[:-1]
    wrong, count = {}, 0
    for line, error in broken_off(lambda: made[-1][0](), files, callers, every, first=first):
        count += 1
        said = [] if isinstance(error, KeyboardInterrupt) else [f"the interrupt became {error!r}"]
        step, pool = made[-1]
        try:
            said += [f"step {k} has other bits" for k in range(3) if step() != expected[0]]
        except Exception as failed:
            said.append(f"a step after it: {failed!r}")
        if pool.used_bytes:
            said.append(f"lost: {pool.on_loan()}")
        if said:
            wrong[line] = said
            made.append(make())
    return count, wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["plain"], STEPS))
def test_steps_are_right_after_an_interrupt_at_any_line_that_changes_a_shared_table(name):
    count, wrong = broken(STEPS[name], SHARED, callers=1)
    assert not wrong
    assert count > 200


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(8))  # in eighths, which run side by side
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_right_after_an_interrupt_at_any_line(name, first):
    count, wrong = broken(STEPS[name], EVERY, callers=2, every=8, first=first)
    assert not wrong
    assert count > 100
