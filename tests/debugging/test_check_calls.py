"""`Graph(check=True)` inlines calls of cells, one by one, and names the call of a fault."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.call_gathers import Gathers
from dynbatch.cells.calls import group_run
from dynbatch.cells.calls import stack as stack_calls
from dynbatch.cells.calls.group_run import HostGroupRun
from dynbatch.compiler.numpy.loop import NumpyLoop
from dynbatch.debugging import difference
from dynbatch.debugging.difference import magnitude
from dynbatch.testing.precision import dense_gradient
from tests.cells.calls.test_calls import (
    D,
    H,
    binary,
    branching,
    compose,
    leaf,
    tree_parameters,
    trees,
)
from tests.debugging.test_check import caught

every_tree = pytest.mark.parametrize("make", [binary, branching])


@every_tree
@pytest.mark.usefixtures("short_search")
@pytest.mark.parametrize("stacked", [True, False])
def test_trees_pass_and_compute_the_same(make, stacked):
    checked, plain = [trees(make, stacked=stacked, check=check) for check in (True, False)]
    for found, expected in zip(checked[0], plain[0], strict=True):
        assert np.array_equal(found, expected)


def test_several_phases_and_runs_pass():
    p = tree_parameters()
    with db.Graph(dtype="float64", check=True) as graph:
        losses = []
        for words in (3, 1, 2):
            xs = F.input(graph, np.random.default_rng(words).normal(size=(words, 3)))
            h, c = leaf(xs[0], p)
            above = compose((F.tanh(h), c), leaf(xs[words - 1], p), p)
            if words == 1:
                assert above[0].value.shape == (4,)
            h, c = compose(above, (4, 4), p)
            losses.append(F.sum(h * c))
        graph.backward(F.mean(losses))


def pairs(graph, p, count=3):
    """Two leaves and their composition, for each of some sentences: nodes 0, 3, 4, ... of each."""
    roots = []
    for k in range(count):
        xs = F.input(graph, [[0.1 * k, 1.0, -1.0], [0.3, 0.2, 0.1 * k]]).keep()
        roots.append(compose(leaf(xs[0], p), leaf(xs[1], p), p))
    return roots


def test_a_row_gathered_from_the_wrong_call(monkeypatch):
    of_argument = Gathers.of_argument

    def wrong(*args):
        found = of_argument(*args)
        if not found.ahead:
            found.table.rows[2] = found.table.rows[1]
        return found

    monkeypatch.setattr(Gathers, "of_argument", wrong)
    with db.Graph(dtype="float64", check=True) as graph:
        roots = pairs(graph, tree_parameters())
        caught(
            graph.forward,
            f"{roots[2].label()}, sentence 2: its result 0 is wrong.",
            "a  leaf #", "float64 (4,), (4,)",
            "element (0,) of shape (4,) is", "batched,", "one by one; 4 of 4 elements differ",
            "in forward of 2 batches of 9 calls of leaf, compose",
        )  # fmt: skip


def test_a_kernel_that_is_wrong_in_batches(monkeypatch):
    gather = group_run.gather

    def wrong(sources, table, first, end, out):
        gather(sources, table, first, end, out)
        if out.shape == (3, 4):
            out[1] += 1e-3

    monkeypatch.setattr(group_run, "gather", wrong)
    with db.Graph(dtype="float64", check=True) as graph:
        roots = pairs(graph, tree_parameters())
        caught(graph.forward, f"{roots[1].label()}, sentence 1: its result 0 is wrong.")
        monkeypatch.undo()
        graph.forward()  # the graph is as it was
        assert [graph.sentence(root) for root in roots] == [0, 1, 2]
        graph.backward(F.sum([F.sum(h * c) for h, c in roots]))
        assert graph.statistics.nodes == 13 + 7


def test_code_that_is_wrong_for_one_call_as_for_many(monkeypatch):
    bind = NumpyLoop.bind

    def wrong(self, way, arrays):
        forward = bind(self, way, arrays)

        def changed(steps):
            forward(steps)
            for name in arrays:
                if name.startswith("P"):
                    arrays[name][...] += 1e-3

        return changed

    monkeypatch.setattr(NumpyLoop, "bind", wrong)
    with db.Graph(dtype="float64", check=True) as graph:
        h, _ = leaf(F.input(graph, [0.1, 1.0, -1.0]), tree_parameters())
        caught(lambda: h.value, "leaf #", "its result 0 is wrong", "batched,", "one by one")


def test_a_gradient_that_comes_to_the_wrong_call(monkeypatch):
    give_back = group_run.give_back

    def wrong(dy, table, *args):
        rows = table.rows[::-1] if len(dy) == 3 else table.rows
        give_back(dy, table._replace(rows=rows), *args)

    monkeypatch.setattr(group_run, "give_back", wrong)
    with db.Graph(dtype="float64", check=True) as graph:
        roots = pairs(graph, tree_parameters())
        loss = F.sum([F.sum(h * c) for h, c in roots])
        right = roots[2].origin.columns[1][2]
        caught(
            lambda: graph.backward(loss),
            f"{right.label()}, sentence 2: its gradient of result 0, the sum over its readers, is",
            "in backward of 2 batches",
        )  # fmt: skip


def test_a_gradient_of_an_argument(monkeypatch):
    finish = HostGroupRun.finish

    def wrong(self, tasks):
        def change():
            self.arrays["dX2"][1] += 1e-3

        finish(self, tasks)
        if self.group.calls == 3:
            tasks.at_last(change)

    monkeypatch.setattr(HostGroupRun, "finish", wrong)
    with db.Graph(dtype="float64", check=True) as graph:
        roots = pairs(graph, tree_parameters())
        caught(
            lambda: graph.backward(F.sum([F.sum(h * c) for h, c in roots])),
            f"{roots[1].label()}, sentence 1: its gradient for argument 1[0] is wrong",
        )


def test_a_gradient_of_a_parameter(monkeypatch):
    add, seen = group_run.WeightGradients.add, []

    def lost(self, group, xs, dy):
        seen.append(group)
        add(self, group, xs, dy * (len(seen) > 1))

    monkeypatch.setattr(group_run.WeightGradients, "add", lost)
    p = tree_parameters()
    with db.Graph(dtype="float64", check=True) as graph:
        roots = pairs(graph, p)
        loss = F.sum([F.sum(h * c) for h, c in roots])
        caught(lambda: graph.backward(loss), "calls of leaf, compose: its gradient for parameter")


@pytest.mark.parametrize("when", ["value", "gradient"])
def test_rows_stacked_from_the_wrong_calls(monkeypatch, when):
    locate = stack_calls._locate

    def wrong(nodes):
        spaces, table = locate(nodes)
        return spaces, table._replace(rows=table.rows[::-1])

    with db.Graph(dtype="float64", check=True) as graph:
        h, _ = db.stack(pairs(graph, tree_parameters()))
        loss = F.sum(h * h)
        if when == "value":
            monkeypatch.setattr(stack_calls, "_locate", wrong)
            caught(
                graph.forward,
                f"{h.label()}", "its value is wrong", "a  compose #", "(4,), (4,)",
                "element (0, 0) of shape (3, 4)",
            )  # fmt: skip
        else:
            graph.forward()
            (step,) = [step for step in graph._executor.steps if h in step.nodes]
            step.batch.memo["rows"] = wrong(step.nodes)
            caught(
                lambda: graph.backward(loss),
                f"{h.label()}", "its gradient for calls of leaf, compose is wrong",
            )  # fmt: skip


def gated(x, h, p):
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U)) * p.v
    return h, h


def softened(x, h, p):
    scale = F.tanh(F.parameter(x.graph, p.v)) + F.constant(x.graph, 0.5, (H,))
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U)) * scale
    return h, h


def attending(x, h, p, memory):
    h = F.tanh(F.linear(x, p.W) + F.attention(h, F.linear(memory, p.U) * p.v))
    return h, h


BODIES = {body.__name__: db.cell(body) for body in (gated, softened, attending)}


def sentence_loss(graph, run, name, length, p):
    """A loss over the states of one sentence, made in one of three ways."""
    cell = BODIES[name]
    xs = F.input(graph, np.sin(np.arange(length * D)).reshape(length, D) + length)
    memory = [F.tanh(F.input(graph, np.cos(np.arange(3 * H)).reshape(3, H) * length))]
    memory = memory if name == "attending" else []
    if run == "scan":
        return F.sum(F.tanh(db.scan(cell, xs, H, p, *memory)[0]))
    state, states = F.constant(graph, 0.0, (H,)), []
    for t in range(length):
        y, state = cell(xs[t], state, p, *memory)
        states.append(y)
        if run == "calls of two phases" and t == 0:
            state = F.tanh(state)
    return F.sum(F.tanh(F.stack(states)))


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("run", ["calls", "calls of two phases", "scan"])
def test_a_memory_limit_and_checks_bear_each_other(run, name, frozen):
    """What reads parameters as values, run again in parts, checked, and guarded."""
    rng = np.random.default_rng(0)
    p = SimpleNamespace(
        W=db.Parameter(rng.normal(size=(H, D))),
        U=db.Parameter(rng.normal(size=(H, H))),
        v=db.Parameter(rng.normal(size=H)),
    )
    p.v.frozen = frozen

    def gradients(share=None, **options):
        for parameter in vars(p).values():
            parameter.zero_grad()
        with db.Graph(dtype="float64", **options) as graph:
            loss = F.mean([sentence_loss(graph, run, name, n, p) for n in (4, 1, 7, 2)])
            limit = share and int(share * graph.estimate(loss).peak_bytes)
            graph.backward(loss, memory_limit=limit)
        return [dense_gradient(parameter) for parameter in vars(p).values()]

    expected, limited = gradients(), 0
    for options in ({}, {"check": True}, {"guard": True}, {"check": True, "guard": True}):
        for share in (None, 0.9, 0.7):
            try:
                found = gradients(share, **options)
            except db.errors.MemoryLimitError:
                continue
            limited += share is not None
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert limited >= 3


def test_what_is_looked_at_grows_as_the_calls_do(monkeypatch):
    looked = [0]

    def counted(array):
        looked[0] += 1
        return magnitude(array)

    monkeypatch.setattr(difference, "magnitude", counted)
    p, counts = tree_parameters(), []
    for count in (10, 40):
        looked[0] = 0
        with db.Graph(dtype="float64", check=True) as graph:
            graph.backward(F.mean([F.sum(h * c) for h, c in pairs(graph, p, count)]))
        counts.append(looked[0])
    assert counts[1] < 4.5 * counts[0]
