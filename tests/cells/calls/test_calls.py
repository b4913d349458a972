"""Cells called on nodes: one node a call, equal to the cell's function, whatever the structure."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.ancestors import Needed
from dynbatch.batcher.schedule.policies import POLICIES, by_agenda
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells import sum_tree
from dynbatch.cells.calls.late import LateCalls
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.errors import (
    ArgumentError,
    DriveError,
    DtypeError,
    EmptyBatchError,
    FreedError,
    GraphError,
    ShapeError,
)
from dynbatch.kernels.trees import Tree
from dynbatch.testing.precision import dense_gradient
from tests.cells.cell_cases import CASES
from tests.cells.step_by_step import assert_equal_outcomes, outcome, step_by_step
from tests.interruptions import broken_off
from tests.marks import exhaustive, quick
from tests.poison import poisoned_memory

D, H = 3, 4
TOLERANCE = {"cpu": 1e-12, "cuda": 1e-11}
LATE = "calls/together.py", "calls/late.py"
every_cell = pytest.mark.parametrize("name", CASES)


def called(cell, xs, init, params=None, memory=None, reverse=False):
    """The cell, called token by token."""
    state, outputs = init, []
    if not xs.rows:
        return step_by_step(cell, xs, init, params, memory, reverse)
    memories = [] if memory is None else [memory]
    for t in reversed(range(xs.rows)) if reverse else range(xs.rows):
        y, state = cell(xs[t], state, params, *memories)
        outputs.append(y if y.ndim else F.unsqueeze(y))
    return F.stack(outputs[::-1] if reverse else outputs), state


def counted(function, calls):
    """The function, which notes that it was called."""

    def noted(*arguments, **named):
        calls.append(arguments)
        return function(*arguments, **named)

    return noted


@every_cell
def test_calls_equal_the_function(name, place, monkeypatch):
    case = CASES[name]
    batch = case.batch()
    expected = outcome(step_by_step, case.cell, batch, device="cpu")
    runs = []
    monkeypatch.setattr(RegionNode, "__init__", counted(RegionNode.__init__, runs))
    with poisoned_memory():
        found = outcome(called, case.cell, batch, device=place)
    assert_equal_outcomes(found, expected, TOLERANCE[place])
    assert runs


@pytest.mark.parametrize("name", quick(list(CASES)[2::3], CASES))
def test_values_are_the_same_before_backward(name, place):
    case = CASES[name]
    batch = case.batch()
    expected = outcome(step_by_step, case.cell, batch, before_backward=True, device="cpu")
    found = outcome(called, case.cell, batch, before_backward=True, device=place)
    assert_equal_outcomes(found, expected, TOLERANCE[place])


# Trees -------------------------------------------------------------------------------------------


@db.cell
def leaf(x, p):
    i, o, u = F.chunk(F.linear(x, p.W, p.b), 3)
    c = F.sigmoid(i) * F.tanh(u)
    return F.sigmoid(o) * F.tanh(c), c


@db.cell
def compose(left, right, p):
    (h_left, c_left), (h_right, c_right) = left, right
    gates = F.linear(h_left, p.L) + F.linear(h_right, p.R) + p.d
    i, f, g, o, u = F.chunk(gates, 5)
    c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(f) * c_left + F.sigmoid(g) * c_right
    return F.sigmoid(o) * F.tanh(c), c


@db.cell
def remember(x, child, p):
    h, c = child
    f = F.sigmoid(F.linear(x, p.V) + F.linear(h, p.U))
    return h, f * c


@db.cell
def child_sum(x, below, p):
    h, c = below
    i, o, u = F.chunk(F.linear(x, p.W, p.b) + F.linear(h, p.S), 3)
    c = F.sigmoid(i) * F.tanh(u) + c
    return F.sigmoid(o) * F.tanh(c), c


def tree_parameters(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {
        "W": (3 * H, D), "b": (3 * H,), "L": (5 * H, H), "R": (5 * H, H), "d": (5 * H,),
        "V": (H, D), "U": (H, H), "S": (3 * H, H),
    }  # fmt: skip
    arrays = {name: db.Parameter(rng.normal(0, 0.4, shape)) for name, shape in shapes.items()}
    return SimpleNamespace(**arrays)


def random_pairs(rng, words):
    roots, pairs = list(range(words)), []
    while len(roots) > 1:
        k = int(rng.integers(len(roots) - 1))
        pairs.append((roots[k], roots[k + 1]))
        roots[k : k + 2] = [words + len(pairs) - 1]
    return pairs


def binary(p, xs, rng, function):
    """States of a random binary tree's nodes."""
    word, pair = (leaf.function, compose.function) if function else (leaf, compose)
    states = [word(xs[k], p) for k in range(xs.rows)]
    for left, right in random_pairs(rng, xs.rows):
        states.append(pair(states[left], states[right], p))
    return states


def grown(p, xs, rng, function):
    """States of the trees of `binary`, some or all of whose calls are made together: `WAYS`."""
    if function:
        return binary(p, xs, rng, function)
    pairs = random_pairs(rng, xs.rows)
    way = WAYS[xs.rows % len(WAYS)]
    words = [leaf(xs[k], p) for k in range(xs.rows)] if "words" in way else leaf.each(xs, p)
    states = compose.tree(words, pairs[: len(pairs) // 2] if "half" in way else pairs, p)
    for left, right in pairs[len(states) - xs.rows :]:
        states = [*states, compose(states[left], states[right], p)]
    return states


WAYS = ["all", "words by hand", "half of the pairs", "words by hand, and half of the pairs"]


def branching(p, xs, rng, function):
    """States of a random tree of any branching, the root last; child-sum."""
    edge, node = (remember.function, child_sum.function) if function else (remember, child_sum)
    heads = [int(rng.integers(k + 1, xs.rows)) for k in range(xs.rows - 1)]
    states = []
    for k in range(xs.rows):
        below = [edge(xs[k], states[j], p) for j in range(k) if heads[j] == k]
        zeros = tuple([F.constant(xs.graph, 0.0, (H,))] * 2) if function else (H, H)
        states.append(node(xs[k], db.total(below) if below else zeros, p))
    return states


def summed(p, xs, rng, function):
    """States of the trees of `branching`, whose calls are made together."""
    if function:
        return branching(p, xs, rng, function)
    heads = [int(rng.integers(k + 1, xs.rows)) for k in range(xs.rows - 1)]
    children = [[j for j in range(k) if heads[j] == k] for k in range(xs.rows)]
    tree = Tree.of_children(range(xs.rows), children)
    return sum_tree(child_sum, remember, tree, (H, H), xs, p)


def trees(make, function=False, stacked=True, lengths=(4, 1, 7, 2), **graph_options):
    """Loss, gradients and statistics of a few random trees."""
    rng, p = np.random.default_rng(3), tree_parameters()
    with db.Graph(**{"dtype": "float64"} | graph_options) as graph:
        losses, inputs = [], []
        for words in lengths:
            xs = F.input(graph, rng.normal(size=(words, D))).keep()
            states = make(p, xs, rng, function)
            if stacked:
                h, c = db.stack(states)
                losses += [F.sum(h * h), F.sum(F.tanh(c))]
            else:
                losses += [F.sum(h * h) + F.sum(F.tanh(c)) for h, c in states]
            inputs.append(xs)
        loss = F.sum(losses)
        graph.backward(loss)
        found = [loss.value, *[xs.gradient for xs in inputs]]
    found += [dense_gradient(parameter) for parameter in vars(p).values()]
    return found, graph


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [binary, branching, grown, summed])
def test_trees_equal_their_functions_under_every_policy(make, policy, stacked):
    expected, _ = trees(make, function=True)
    with poisoned_memory():
        found, _ = trees(make, stacked=stacked, policy=policy)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [binary, branching])
def test_batches_of_trees_are_the_fewest(make):
    _, graph = trees(make)
    assert graph.statistics.batches == graph.lower_bound


@pytest.mark.parametrize("make", [binary, branching])
def test_levels_of_trees_are_the_batches_of_any_policy_bit_for_bit(make):
    expected, asked = trees(make, policy=lambda structure: by_agenda(structure))
    values, graph = trees(make)
    assert all(map(np.array_equal, values, expected))
    assert graph.statistics.batches == asked.statistics.batches


def test_batches_of_a_tree_are_its_height():
    _, graph = trees(binary, lengths=(8,))
    (region,) = [row for row in graph._record().rows if row.kind == "calls of leaf, compose"]
    assert region.batches == region.lower_bound
    assert region.nodes == 15


def test_rows_of_a_sentence_are_read_where_they_lie():
    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, np.ones((3, D)))
        p = tree_parameters()
        h, _ = db.stack([leaf(xs[k], p) for k in range(3)])
        assert h.value.shape == (3, H)
        assert graph.statistics.copied_bytes == 0
        assert graph.statistics.nodes == 2 + 3 + 1  # the input and a bias; calls; one stack


# Calls made together ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["by_bound", "one_by_one"])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(("by_loop", "by_table"), [(binary, grown), (branching, summed)])
def test_calls_made_together_are_those_of_a_loop_bit_for_bit(
    monkeypatch, by_loop, by_table, asked, policy
):
    lengths, made = (4, 1, 7, 2, 9, 3, 12, 5), []
    expected, loop = trees(by_loop, lengths=lengths, policy=policy)
    if asked:  # every call becomes a node before the run
        begin = db.Graph.backward
        monkeypatch.setattr(
            db.Graph, "backward", lambda g, y: (made.append(g.nodes[:]), begin(g, y))
        )
    found, graph = trees(by_table, lengths=lengths, policy=policy)
    assert all(map(np.array_equal, found, expected))
    assert len(graph) == len(loop) or by_table is summed  # where each edge has its row of xs
    assert graph.statistics.launches == loop.statistics.launches
    assert graph.statistics.batches == loop.statistics.batches
    assert all([node.index == k for nodes in made for k, node in enumerate(nodes)])


@pytest.mark.parametrize(("by_loop", "by_table"), [(binary, grown), (branching, summed)])
def test_masks_behind_calls_made_together_are_those_of_a_loop_and_make_no_nodes(by_loop, by_table):
    def streams(make):
        rng, p = np.random.default_rng(3), tree_parameters()
        with db.Graph(dtype="float64", seed=1) as graph:
            sentences = [F.input(graph, rng.normal(size=(words, D))) for words in (4, 1, 7, 2, 9)]
            states = [make(p, xs, rng, False) for xs in sentences]
            stacked = [db.stack(each)[0] for each in states]
            read = [h[:, :D] * F.sum(each[-1][0]) for h, each in zip(stacked, states, strict=True)]
            stacked += [db.stack(make(p, xs, rng, False))[0] for xs in read]  # trees on trees
            numbers = [F.dropout(h, 0.5).stream for h in stacked]
            return numbers, {type(call) for table in graph.tables for call in table.calls}

    numbers, calls = streams(by_table)
    assert numbers == streams(by_loop)[0] and len({*numbers}) == 10
    assert LateCalls in calls


@pytest.mark.parametrize("make", [grown, summed])
def test_an_interrupted_search_for_a_mask_is_made_again(make):
    p, rows, keys, stopped = tree_parameters(), np.ones((5, D)), [], []

    def ask():
        with db.Graph(dtype="float64") as graph:
            for _ in range(2):  # the first call of all makes the table
                h, _ = db.stack(make(p, F.input(graph, rows), np.random.default_rng(3), False))
            try:
                graph._streams.key(h.index)
            except KeyboardInterrupt:
                stopped.append(len(keys))
            keys.append(graph._streams.key(h.index))

    ask()
    files = "nodes/stream.py", *LATE
    raised = [error for _, error in broken_off(ask, files, callers=None, every=11)]
    assert not [error for error in raised if isinstance(error, Exception)]
    assert len(stopped) > 5 and len({*keys}) == 1


def test_a_part_of_a_call_and_calls_made_together_are_arguments_of_one_batch():
    double, pair = db.cell(lambda x: 2 * x), db.cell(lambda x: (3 * x, 5 * x))
    with db.Graph() as graph:
        xs = F.input(graph, [[1.0], [2.0]])
        _, part = pair(xs[0])
        values = db.stack([double(part), *double.each(double.each(xs))]).value
        assert values.ravel().tolist() == [10, 4, 8]


@db.cell
def node_of(a, b, c, x, shared, zeros, p):
    return F.tanh(F.linear(a + b * c, p.U) + F.linear(x, p.V) + zeros) * shared


def test_rows_wide_nodes_and_what_all_calls_share():
    p, found = tree_parameters(), []
    rng = np.random.default_rng(5)
    xs, hs = rng.normal(size=(3, D)), rng.normal(size=(5, H))
    children = np.array([(0, 1, 2), (5, 3, 3), (6, 4, 5)])
    for way in ("loop", "together", "of parts"):
        for parameter in vars(p).values():
            parameter.zero_grad()
        with db.Graph(dtype="float64") as graph:
            x, h = F.input(graph, xs).keep(), F.input(graph, hs).keep()
            shared = mix(h[0], (h[1], h[2]), p)[0]
            if way == "loop":
                states = [mix(h[k], (h[k], h[0]), p)[0] for k in range(5)]
                for k, (a, b, c) in enumerate(children):
                    states.append(node_of(states[a], states[b], states[c], x[k], shared, H, p))
            else:
                states = [mix(h[k], (h[k], h[0]), p)[0] for k in range(5)]
                states = node_of.tree(states, children.tolist(), x, shared, H, p)
            if way == "of parts":
                states = [states[k] for k in range(8)]
            loss = F.sum(db.stack(states)) + F.sum(F.tanh(states[-1]))
            graph.backward(loss)
            found.append([loss.value, x.gradient, h.gradient, dense_gradient(p.U)])
    for others in found[1:]:
        assert all(map(np.array_equal, others, found[0]))


def test_calls_made_together_wait_for_earlier_ones_of_their_own_table():
    link = db.cell(lambda x, below: F.tanh(x + below))
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((3, H)))
        once = link.each(x, H)
        twice = link.each(x, once)
        last = link.each(x, twice[-1])
        values = np.tanh(1 + np.tanh(1 + np.tanh(np.ones((3, H)))))
        np.testing.assert_allclose(db.stack(last).value, values)
        none = link.each(F.input(graph, np.ones((0, H))), H)
        assert len(none) == len(link.each(none, none)) == 0


def test_cells_that_are_operators_are_called_row_by_row():
    noisy = db.cell(lambda x: F.dropout(x, 0.5))
    with db.Graph(seed=1) as graph:
        x = F.input(graph, np.ones((2, H)))
        noised = noisy.each(x)
        rows = [y.value for y in noised]
        assert len(rows) == 2 and set(np.concatenate(rows).tolist()) == {0.0, 2.0}
        both = db.cell(lambda x, y: x + y).each(x, noised)  # as results of other cells
        assert np.array_equal(db.stack(both).value, db.stack(noised).value + 1)


def test_calls_made_together_are_operators_where_gradients_are_differentiated():
    cube, product = db.cell(lambda x: x * x * x), db.cell(lambda x, y: x * y)
    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, [[1.0, 2.0], [3.0, 4.0]])
        slopes = db.grad(lambda xs: F.sum(db.stack(product.each(xs, cube.each(xs)))))(xs)
        np.testing.assert_allclose(slopes.value, 4 * xs.value**3)


def test_errors_of_calls_made_together():
    p = tree_parameters()
    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, np.ones((3, D)))
        words = leaf.each(xs, p)
        with pytest.raises(ShapeError, match="inner node 1, which makes state 4, is given state 4"):
            compose.tree(words, [(0, 1), (2, 4)], p)
        with pytest.raises(ShapeError, match="is given state -1"):
            compose.tree(words, [(0, -1)], p)
        for children in ([(0, 1), (2,)], [(0.5, 1)], 3, [(), ()]):
            with pytest.raises(ShapeError, match=r"not \(K, N\) integers"):
                compose.tree(words, children, p)
        with pytest.raises(ShapeError, match="inner node 1, which makes state 4, is given state 7"):
            compose.tree(words, iter([(0, 1), (2, 7)]), p)
        with (
            db.Graph(dtype="float64") as other,
            pytest.raises(GraphError, match="different graphs"),
        ):
            compose.tree([words[0], leaf(F.input(other, np.ones(D)), p)], [(0, 0), (2, 1)], p)
        wide = db.cell(lambda x: (F.concat([x, x]), F.concat([x, x])))(F.input(graph, np.ones(H)))
        with pytest.raises(ShapeError):
            compose.tree([words[0], wide], [(0, 0), (2, 1)], p)
        with pytest.raises(ShapeError, match="arguments of 1 and 3 rows"):
            node_of.tree(words, [(0, 1, 2)], xs, p)
        with pytest.raises(ShapeError, match="no rows"):
            leaf.each(xs[0], p)
        with pytest.raises(ShapeError, match="differ in I"):
            leaf.each(F.input(graph, np.ones((2, D + 1))), p)
        with pytest.raises(ArgumentError, match=r"compose\.tree: states is None"):
            compose.tree(None, [(0, 1)], p)
        assert len(compose.tree(iter(words), [(0, 1), (2, 3)], p)) == 5  # nothing is lost
        assert np.isfinite(db.stack(words)[0].value).all()


# What a call can be given ------------------------------------------------------------------------


@db.cell
def mix(a, b, p):
    h, c = b
    return F.tanh(F.linear(a, p.U) + h) * c, h


def test_arguments_from_many_places():
    p = tree_parameters()
    values = []
    for function in (True, False):
        for parameter in vars(p).values():
            parameter.zero_grad()
        cell = mix.function if function else mix
        with db.Graph(dtype="float64") as graph:
            x = F.input(graph, np.linspace(0, 1, 2 * H).reshape(2, H)).keep()
            y = F.tanh(F.input(graph, np.linspace(1, -1, H)))
            zeros = F.constant(graph, 0.0, (H,)) if function else H
            a, b = cell(x[0], (x[1], y), p), cell(y, (y, zeros), p)
            c = cell(a[0], (b[1], a[1]), p)  # parts of two calls
            d = cell(c[1], (c[0], x[-1]), p)
            e = cell(d[0], tuple(d), p)  # unpacked, and packed again
            f = cell(F.tanh(e[0]), e, p)  # an ordinary node between
            g = cell(f[0], db.total([e, f, f]), p)  # one of them twice
            loss = F.sum(g[0] * g[1])
            early = c[0].value  # read in the middle
            h = cell(g[0], (c[0], g[1]), p)
            graph.backward(loss + F.sum(h[0]))
            values.append([loss.value, early, x.gradient, dense_gradient(p.U)])
    for a, b in zip(*values, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


@pytest.mark.parametrize("link", ["mixed", "total"])
def test_a_chain_whose_links_are_tuples_or_sums_runs_in_order(link):
    p, found = tree_parameters(), []
    for function in (True, False):
        cell = mix.function if function else mix
        with db.Graph(dtype="float64") as graph, poisoned_memory():
            x = F.input(graph, np.linspace(-1, 1, H))
            state = other = cell(x, (x, x), p)
            for _ in range(4):
                below = (state[1], other[0]) if link == "mixed" else db.total([state, other])
                state, other = cell(x, below, p), state
            found.append(F.sum(state[0]).value)
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_kept_call_has_its_value_and_gradient():
    p = tree_parameters()
    found = []
    for function in (True, False):
        with db.Graph(dtype="float64") as graph:
            xs = F.input(graph, np.linspace(0, 1, 2 * D).reshape(2, D))
            row = xs[1].keep()
            word = leaf.function if function else leaf
            pair = compose.function if function else compose
            states = [word(xs[0], p), word(row, p)]
            h, c = pair(*states, p)
            inner = states[0][0].keep()
            h.keep()
            graph.backward(F.sum(h * c))
            found.append([inner.value, inner.gradient, h.gradient, row.gradient])
        found[-1] += [h.value, row.value]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


def test_calls_that_nothing_reads_do_not_run():
    p = tree_parameters()
    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, np.ones((3, D)))
        broken = F.input(graph, np.full(D, np.nan))
        states = [leaf(xs[k], p) for k in range(3)]
        compose(states[0], leaf(broken, p), p)
        h, _ = compose(states[0], states[1], p)
        loss = F.sum(h)
        graph.backward(loss)
        assert graph.statistics.nodes == 3 + 3  # calls; the input, the sum, a parameter
    assert np.isfinite(dense_gradient(p.L)).all()


def test_every_call_runs_in_forward():
    with db.Graph(dtype="float64") as graph:
        leaf(F.input(graph, np.ones(D)), tree_parameters())
        graph.forward()
        assert graph.statistics.nodes == 2


def test_calls_of_different_dropout_are_operators():
    @db.cell
    def dropping(x, p):
        return F.dropout(x, p.rate)

    with db.Graph(dtype="float64") as graph:
        y = dropping(F.constant(graph, 1.0, (8,)), SimpleNamespace(rate=0.5))
        assert not isinstance(y, RegionNode)
        assert set(y.value.tolist()) <= {0.0, 2.0}


def test_parameters_may_come_before_and_behind_the_values():
    @db.cell
    def less(a, b):
        a, b = [getattr(x, "scale", x) for x in (a, b)]
        return a * 2.0 - b

    with db.Graph(dtype="float64") as graph:
        x, p = F.input(graph, [1.0, 5.0]), SimpleNamespace(scale=3.0)
        assert less(x, p).value.tolist() == [-1, 7]
        assert less(p, x).value.tolist() == [5, 1]
        assert less(x, p).value.tolist() == [-1, 7]


def test_calls_know_parameters_by_what_was_read():
    p = tree_parameters()
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones(D))
        for _ in range(3):
            leaf(x, SimpleNamespace(W=p.W, b=p.b))
        graph.forward()
        assert graph.statistics.batches == 2  # the input, and all calls
        leaf(x, tree_parameters(seed=1))
        graph.forward()
        assert graph.statistics.batches == 3


@pytest.mark.parametrize("long", [4_000, exhaustive(20_000)])
def test_a_long_chain_needs_no_recursion(place, long):
    length = long if place == "cpu" else 200

    @db.cell
    def add(x, total):
        return x + total

    with db.Graph(dtype="float64") as graph:
        one, total = F.input(graph, [1.0]).keep(), 1
        for _ in range(length):
            total = add(one, total)
        graph.backward(F.sum(total))
        assert total.graph is graph
        assert one.gradient == length


def test_calls_that_do_not_wait_for_each_other_are_one_batch_in_later_runs_too():
    """A parser: sentences of different lengths so far go on with a call each."""
    p, found = tree_parameters(), []
    for function in (True, False):
        word, pair = (leaf.function, compose.function) if function else (leaf, compose)
        with db.Graph(dtype="float64") as graph:
            xs = F.input(graph, np.linspace(-1, 1, 5 * D).reshape(5, D))
            words, states = [word(xs[k], p) for k in range(5)], []
            for k in range(5):
                states.append(words[k])
                for _ in range(k):
                    states[k] = pair(states[k], words[k], p)
            graph.forward()
            before = graph.statistics.batches
            states = [pair(state, word, p) for state, word in zip(states, words, strict=True)]
            last = pair(states[0], states[4], p)
            phase = pair((F.tanh(states[1][0]), states[1][1]), states[3], p)
            graph.forward()
            if not function:
                assert graph.statistics.batches - before == 4  # two, then tanh, then one
            found.append(np.concatenate([last[0].value, phase[0].value]))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_phases_that_have_run_are_not_looked_at_again(monkeypatch):
    visited, add_calls = [], Needed.add_calls
    monkeypatch.setattr(
        Needed, "add_calls", lambda self, phase: (visited.append(phase), add_calls(self, phase))
    )
    p = tree_parameters()
    with db.Graph(dtype="float64", grad=False) as graph:
        x = F.input(graph, np.ones(H))
        for _ in range(10):
            x = F.tanh(mix(x, (x, H), p)[0])
            assert np.isfinite(x.value).all()
    assert visited == list(range(1, 11))


def test_runs_for_values_do_not_look_at_earlier_runs(monkeypatch):
    looked, blocks = [], StepRun.blocks
    seen = property(lambda step: looked.append(step) or blocks.__get__(step), blocks.__set__)
    monkeypatch.setattr(StepRun, "blocks", seen)
    p, counts = tree_parameters(), []
    with db.Graph(dtype="float64", grad=False) as graph:
        x = F.input(graph, np.ones(H))
        for _ in range(6):
            x = mix(x, (x, H), p)[0]
            looked.clear()
            assert np.isfinite(x.value).all()
            counts.append(len(looked))
    assert counts[5] == counts[2]


def test_scratch_of_runs_for_values_does_not_stay():
    """A parser reads a value after each decision: the packed weights of each run are not kept."""
    p = tree_parameters()
    with db.Graph(dtype="float64", grad=False) as graph:
        xs = F.input(graph, np.ones((40, D)))
        state, peaks = leaf(xs[0], p), []
        for k in range(1, 40):
            state = compose(state, leaf(xs[k], p), p)
            assert np.isfinite(state[0].value).all()
            peaks.append(graph.peak_bytes)
    weights = 8 * (p.L.size + p.R.size)
    assert (peaks[-1] - peaks[9]) / 29 < weights / 2


# Errors ------------------------------------------------------------------------------------------


def test_errors_of_calls():
    p = tree_parameters()
    with db.Graph(dtype="float64") as graph, db.Graph(dtype="float64") as other:
        x = F.input(graph, np.ones(D))
        state = leaf(x, p)
        with pytest.raises(DtypeError, match="no node among its arguments"):
            leaf(3, p)
        with pytest.raises(DtypeError, match="are not values"):
            mix(x, np.ones(3), p)
        with pytest.raises(DtypeError, match=r"F.parameter\(graph, p\), and lists tuples"):
            mix(x, [p.b, p.b], p)
        with pytest.raises(GraphError, match="different graphs"):
            compose(state, leaf(F.input(other, np.ones(D)), p), p)
        with pytest.raises(ShapeError, match="zeros of width 0"):
            compose(state, (0, H), p)
        with pytest.raises(ShapeError, match="differ in I"):
            leaf(F.input(graph, np.ones(D + 1)), p)
        with pytest.raises(DtypeError, match="stands for 2 values"):
            F.tanh(state)
        with pytest.raises(DtypeError, match="stands for 2 values"):
            state.keep()
        with pytest.raises(IndexError, match="returned 2 values"):
            state[2]
        with pytest.raises(
            EmptyBatchError, match=r"total: the list .*\n.*\n.* if below else \(64, 64\)"
        ):
            db.total([])
        with pytest.raises(
            EmptyBatchError, match=r"stack: the list .*\n.*\n.*stack\(states, like=h\)"
        ):
            db.stack([])
        with pytest.raises(ShapeError, match="different forms"):
            db.total([state, state[0]])
        elsewhere = leaf(F.input(other, np.ones(D)), p)
        for combine in (db.total, db.stack):
            with pytest.raises(GraphError, match="belong to different graphs"):
                combine([state, elsewhere])
        assert np.isfinite(state[0].value).all()  # the graph is as it was
    with pytest.raises(GraphError, match="closed"):
        leaf(x, p)
    with pytest.raises(GraphError, match="closed"):
        compose(state, state, p)


def test_a_graph_whose_call_was_interrupted_has_the_right_values_or_refuses_to_run():
    weight = db.Parameter(np.array([[0.5, -1.0], [2.0, 0.25]], np.float32))
    step = db.cell(lambda a, b: F.tanh(F.linear(a - b, weight)))
    results = []

    def build():
        with db.Graph() as graph:
            a, b = F.input(graph, [1.0, 2.0]), F.input(graph, [-1.0, 0.5])
            first = step(a, b)
            try:
                step(b, first)
            except KeyboardInterrupt:
                pass
            other = step(a, first)
            results.append(step(b, other).value.tolist())

    build()
    (right,) = results
    raised = [error for _, error in broken_off(build, ("calls of 2 values",), callers=None)]
    errors = [error for error in raised if isinstance(error, GraphError)]
    assert errors and all("in the middle of a call" in str(error) for error in errors)
    assert all(result == right for result in results)


@pytest.mark.parametrize("asks_first", [False, True])
@pytest.mark.parametrize("way", ["each", "sum_tree"])
def test_calls_made_together_are_interrupted_like_others(way, asks_first):
    step = db.cell(lambda a, b, p: F.tanh(a - p.two * b))
    edge = db.cell(lambda a, b, p: a * b)
    p, tree, results = (
        SimpleNamespace(two=db.Parameter([2.0])),
        Tree.of_children([2, 0, 1], [[2], [0], []]),
        [],
    )

    def build():
        with db.Graph() as graph:
            xs, ys = F.input(graph, [[1.0], [2.0], [3.0]]), F.input(graph, [[4.0], [5.0], [6.0]])
            first, calls = step(xs[0], edge(xs[0], step(ys[0], 1, p), p), p), []
            try:
                if way == "each":
                    calls = step.each(xs, ys, p)
                else:
                    calls = sum_tree(step, edge, tree, 1, xs, p)
                _ = calls[1]
            except KeyboardInterrupt:
                pass
            if asks_first:
                assert all([node.index == k for k, node in enumerate(graph.nodes)])
            last = db.stack([*calls, step(xs[1], first, p)]).value
            results.append((len(calls), last.tolist()))
            assert all([node.index == k for k, node in enumerate(graph.nodes)])

    build()
    ((_, right),) = results
    raised = [error for _, error in broken_off(build, LATE, callers=None)]
    errors = [error for error in raised if isinstance(error, Exception)]  # some came later on
    assert errors and all("in the middle of a call" in str(error) for error in errors)
    assert all([values == right[-1 - count :] for count, values in results])


def test_zeros_of_width_0_are_an_error_where_scalars_are_known_too():
    @db.cell
    def scaled(x, factor):
        return x * factor

    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        scaled(x, F.sum(x))
        with pytest.raises(ShapeError, match="zeros of width 0"):
            scaled(x, 0)


def test_after_the_block_there_are_no_further_parts_and_rows():
    p = tree_parameters()
    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, np.ones((2, D))).keep()
        state, states = leaf(xs[0], p), leaf.each(xs, p)
        h = state[0].keep()
        graph.backward(F.sum(h))
    assert h.value.shape == (H,)
    for part in (lambda: state[0], lambda: tuple(state), lambda: xs[1], lambda: states[1]):
        with pytest.raises(GraphError, match="the graph is closed"):
            part()


def test_an_instance_asks_for_what_a_call_returned():
    p, found = tree_parameters(), []

    def instance(x):
        h, c = yield leaf(x, p)
        return h, c

    def wrong(x):
        yield [leaf(x, p)]

    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, np.linspace(0, 1, 2 * D).reshape(2, D))
        found = db.drive(graph, [instance(xs[0]), instance(xs[1])])
        for (h, c), state in zip(found, [leaf(xs[0], p), leaf(xs[1], p)], strict=True):
            np.testing.assert_allclose([h, c], [state[0].value, state[1].value], rtol=1e-12)
        with pytest.raises(DriveError, match="yielded Call; a node expected"):
            db.drive(graph, [wrong(xs[0])])


def test_a_cell_that_builds_something_else_each_time():
    flips = iter([True, False] * 4)

    @db.cell
    def moody(x):
        return F.tanh(x) if next(flips) else F.sigmoid(x)

    with db.Graph() as graph, pytest.raises(GraphError, match="other operators"):
        moody(F.input(graph, [1.0]))


@pytest.mark.parametrize(
    ("body", "error", "match"),
    [
        (lambda x: [x], ShapeError, "a cell returns a vector"),
        (lambda x: x.value, GraphError, "before there are values"),
        (lambda x: F.unsqueeze(x), ShapeError, "matrix"),
        (lambda x, p: setattr(p, "x", x), GraphError, "sets x"),
    ],
)
def test_cells_that_break_their_rules(body, error, match):
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        arguments = (x,) if body.__code__.co_argcount == 1 else (x, SimpleNamespace(x=1.0))
        with pytest.raises(error, match=match):
            db.cell(body)(*arguments)
        assert F.tanh(x).value.shape == (2,)


def test_a_node_from_outside():
    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        outside = F.tanh(x)
        with pytest.raises(GraphError, match="outside"):
            db.cell(lambda a: outside)(x)
        with pytest.raises(GraphError, match="different graphs"):
            db.cell(lambda a: a + outside)(x)


def test_a_freed_call_says_so():
    p = tree_parameters()
    with db.Graph(dtype="float64") as graph:
        h, c = leaf(F.input(graph, np.ones(D)), p)
        graph.backward(F.sum(h))
        with pytest.raises(FreedError, match="freed"):
            c.value  # noqa: B018


def test_a_cell_keeps_nothing_of_a_closed_graph():
    @db.cell
    def twice(x):
        return x + x

    gc.disable()
    try:
        with db.Graph() as graph:
            (twice(F.input(graph, [1.0])) * 1).value  # noqa: B018
            tables = [weakref.ref(table) for table in graph.tables]
        assert [table() for table in tables] == [None]
    finally:
        gc.enable()
