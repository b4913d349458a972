"""Blocks are one node a sentence, and give what their functions give."""

import cProfile
import ctypes
import itertools
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.generation.generate import generate
from dynbatch.testing import load_graph

WIDTH = 8
LENGTHS = (3, 1, 7, 2, 7, 5, 12)
WITH_EMPTY = (0, *LENGTHS)


def weights(count, *shape):
    generator = np.random.default_rng(count)
    shape = shape or (WIDTH, WIDTH)
    return [
        db.Parameter(generator.standard_normal(shape) * 0.3, f"weight {k}") for k in range(count)
    ]


# Functions of users, none of them ours ------------------------------------------------------------


def attend(x, mask, w):
    """Attention of one's own, with a mask for each pair."""
    query, keys, values = [F.linear(x, weight) for weight in w[:3]]
    scores = F.where(mask, query @ keys.T * 0.25, -1e9)
    return F.softmax(scores) @ values


def gate(x, y, w):
    """A gated unit of two inputs, with a residual."""
    return F.sigmoid(F.linear(x, w[0])) * y + x


def select(x, mask, w):
    """A mask from data."""
    return F.where(mask[:, None] & np.ones((1, WIDTH), bool), x, F.linear(x, w[0]))


def residual(x, y, w):
    return F.layer_norm(x + F.linear(y, w[0]))


def pool(x, w):
    return F.concat([F.mean(x, dim=0), F.max(F.linear(x, w[0]), dim=0), x[-1]])


def heads(x, w):
    parts = []
    for first in range(0, WIDTH, 4):
        query, keys, values = [F.linear(x, weight)[:, first : first + 4] for weight in w]
        parts.append(F.softmax(query @ keys.T) @ values)
    return F.concat(parts, dim=1)


def pairs(x, w):
    """A row for each pair of tokens, and back."""
    n = len(x)
    column = F.reshape(F.linear(x, w[0]) @ x.T, (-1, 1))
    both = F.concat([column, F.tanh(column)]) @ F.parameter(x.graph, w[0])[:2, :2]
    return F.softmax(F.reshape(both[:, :1], (n, n))) @ F.reshape(both[:, 1:], (n, n)) @ x


def shifted(x, w):
    """A score for each of the 2 T - 1 distances of a query, then each brought to its key."""
    n = len(x)
    most = 2 * n - 1
    by_distance = x @ F.lookup(x.graph, w[0], np.arange(most) % 20).T
    flat = F.reshape(F.concat([by_distance, F.constant(x.graph, 0.0, (n, 1))]), -1)
    return F.softmax(F.reshape(flat[n - 1 : n - 1 + n * most], (n, most))[:, :n]) @ x


def embed(graph, ids, w):
    return F.lookup(graph, w[0], ids) + F.lookup(graph, w[0], np.arange(len(ids)) % 5)


def score(x, ids, w):
    return F.cross_entropy(F.linear(x, w[0]), ids)


def several(x, y, w):
    return x * 2, F.tanh(F.linear(y, w[0])), x


def constants(x, w):
    return x * F.parameter(x.graph, w[0]) + F.constant(x.graph, 0.5)


def cut(x, w):
    return F.linear(F.reverse(x)[1:6:2], w[0])


def slide(x, w):
    return F.linear(F.windows(x, 3), w[0])


def scale(x, w):
    return F.linear(x, w[0]) / x.rows


CASES = {
    "attend": (attend, "xp", LENGTHS, weights(3), 0),
    "gate": (gate, "xy", WITH_EMPTY, weights(1), 0),
    "select": (select, "xm", WITH_EMPTY, weights(1), 0),
    "residual": (residual, "xy", WITH_EMPTY, weights(1), 0),
    "pool": (pool, "x", LENGTHS, weights(1), 0),
    "heads": (heads, "x", WITH_EMPTY, weights(3), 0),
    "pairs": (pairs, "x", WITH_EMPTY, weights(1), 0),
    "shifted": (shifted, "x", LENGTHS, weights(1, 20, WIDTH), 0),
    "embed": (embed, "gi", WITH_EMPTY, weights(1, 20, WIDTH), 0),
    "score": (score, "xi", WITH_EMPTY, weights(1, 20, WIDTH), 0),
    "several": (several, "xy", WITH_EMPTY, weights(1), 1),
    "constants": (constants, "x", WITH_EMPTY, weights(1, WIDTH), 0),
    "cut": (cut, "x", WITH_EMPTY, weights(1), 0),
    "slide": (slide, "x", WITH_EMPTY, weights(1, WIDTH, 3 * WIDTH), 0),
    "scale": (scale, "x", LENGTHS, weights(1), 0),
}
every_case = pytest.mark.parametrize("name", CASES)


def arguments_of(graph, kinds, length, generator, inputs):
    for kind in kinds:
        if kind == "g":
            yield graph
        elif kind == "i":
            yield generator.integers(0, 20, length)
        elif kind == "m":
            yield generator.random(length) < 0.7
        elif kind == "p":
            yield generator.random((length, length)) < 0.7
        else:
            inputs.append(F.input(graph, generator.standard_normal((length, WIDTH))).keep())
            yield inputs[-1]


class Outcome:
    """The outcome of one mini-batch: values and gradients, and what it took."""

    def __init__(self, function, kinds, lengths, parameters, **settings):
        limit = settings.pop("memory_limit", None)
        generator = np.random.default_rng(0)
        for parameter in parameters:
            parameter.zero_grad()
        with db.Graph(dtype="float64", seed=3, **settings) as graph:
            inputs, losses = [], []
            for length in lengths:
                given = list(arguments_of(graph, kinds, length, generator, inputs))
                before = len(graph)
                returned = function(*given, parameters)
                self.nodes = len(graph) - before
                results = returned if isinstance(returned, tuple) else (returned,)
                losses += [F.sum(F.tanh(result)) for result in results]
            loss = F.sum(losses)
            graph.backward(loss, memory_limit=limit)
            self.notes = dict(graph.block_notes)
            self.batches, self.launches = graph.statistics.batches, graph.statistics.launches
            self.peak = graph.peak_bytes
            self.arrays = [loss.value, *[x.gradient for x in inputs]]
        self.arrays += [dense(parameter) for parameter in parameters]

    def equals(self, other):
        pairs = zip(self.arrays, other.arrays, strict=True)
        return all([np.array_equal(a, b) for a, b in pairs])

    def is_close_to(self, other):
        pairs = zip(self.arrays, other.arrays, strict=True)
        return all([np.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in pairs])


def dense(parameter):
    if parameter.grad is None:
        return np.zeros(parameter.shape)
    return np.array(parameter.grad.dense() if hasattr(parameter.grad, "dense") else parameter.grad)


@every_case
def test_a_block_gives_what_its_function_gives(name):
    function, kinds, lengths, parameters, _ = CASES[name]
    plain = Outcome(function, kinds, lengths, parameters)
    block = Outcome(db.block(function), kinds, lengths, parameters)
    assert block.equals(plain)
    assert not block.notes


@every_case
def test_a_block_is_one_node_and_one_for_each_further_result(name):
    function, kinds, lengths, parameters, further = CASES[name]
    assert Outcome(db.block(function), kinds, lengths, parameters).nodes == 1 + further


@every_case
def test_batches_and_launches_depend_neither_on_the_number_of_sentences_nor_on_lengths(name):
    function, kinds, _, parameters, _ = CASES[name]
    block = db.block(function)
    costs = set()
    for lengths in ((4, 9), (5, 5, 5, 5, 11, 2, 3), tuple(range(1, 40))):
        outcome = Outcome(block, kinds, lengths, parameters)
        costs.add((outcome.batches, outcome.launches))
    assert len(costs) == 1


@every_case
@pytest.mark.parametrize("policy", ["by_agenda", "by_depth", "one_by_one"])
def test_a_block_gives_the_same_under_every_policy(name, policy):
    function, kinds, lengths, parameters, _ = CASES[name]
    block = db.block(function)
    plain = Outcome(function, kinds, lengths, parameters)
    assert Outcome(block, kinds, lengths, parameters, policy=policy).is_close_to(plain)


@every_case
def test_check_and_guard_look_inside(name):
    function, kinds, lengths, parameters, _ = CASES[name]
    plain = Outcome(function, kinds, lengths, parameters)
    block = db.block(function)
    assert Outcome(block, kinds, lengths, parameters, check=True, guard=True).is_close_to(plain)


def test_a_memory_limit_recomputes_inside():
    class Layer(models.Module):
        def __init__(self):
            self.expand = models.Linear(WIDTH, 8 * WIDTH, rng=1)
            self.contract = models.Linear(8 * WIDTH, WIDTH, rng=2)

        def plain(self, x):
            return x + self.contract(F.gelu(self.expand(x)))

        __call__ = db.block(plain)

    layers = [Layer().astype("float64") for _ in range(4)]
    parameters = [p for layer in layers for p in layer.parameters()]

    def network(x, _):
        for layer in layers:
            x = layer(x)
        return x

    free = Outcome(network, "x", LENGTHS, parameters)
    limited = Outcome(network, "x", LENGTHS, parameters, memory_limit=int(free.peak * 0.7))
    assert limited.is_close_to(free)
    assert limited.peak <= free.peak * 0.7


def test_what_counts_as_features_and_follows_the_length_is_named():
    @db.block
    def repeated(x):
        return F.softmax(F.expand(F.sum(x), (len(x), 2 * len(x))))

    with db.Graph() as graph:
        for length in (2, 5):
            repeated(F.input(graph, np.ones((length, 4))))
        graph.forward()
        told = graph.explain().replace("\n        ", " ")
    assert (
        "repeated: 2 calls inlined, since it builds an Expand whose width follows from the" in told
    )


# Control flow -------------------------------------------------------------------------------------


def decides_on_length(x, w):
    return F.tanh(x) if len(x) > 10 else F.linear(x, w[0])


def decides_on_shape(x, w):
    return F.tanh(x) if x.shape[0] > 10 else F.linear(x, w[0])


def decides_on_shapes(x, w):
    return F.tanh(x) if x.shapes[0][0] > 10 else F.linear(x, w[0])


def decides_on_size(x, w):
    return F.tanh(x) if x.size(0) > 10 else F.linear(x, w[0])


def decides_on_number_of_elements(x, w):
    return F.tanh(x) if x.numel() > 10 * WIDTH else F.linear(x, w[0])


def decides_on_length_of_ids(x, ids, w):
    return F.tanh(x) if len(ids) > 10 else F.linear(x, w[0])


def decides_on_value(x, w):
    return F.tanh(x) if float(F.sum(x).value) > 0 else F.linear(x, w[0])


def decides_on_data(x, ids, w):
    return F.tanh(x) if 7 in ids else F.linear(x, w[0])


def decides_on_emptiness(x, w):
    return F.linear(x, w[0]) if x.rows else x


@pytest.mark.parametrize(
    "function, kinds, reason",
    [
        (decides_on_length, "x", "it builds other operators"),
        (decides_on_shape, "x", "it builds other operators"),
        (decides_on_shapes, "x", "it builds other operators"),
        (decides_on_size, "x", "it builds other operators"),
        (decides_on_number_of_elements, "x", "it builds other operators"),
        (decides_on_length_of_ids, "xi", "it builds other operators"),
        (decides_on_value, "x", "reads a value"),
        (decides_on_data, "xi", "it builds other operators"),
        (decides_on_emptiness, "x", "it builds other operators"),
    ],
)
def test_what_decides_is_inlined_and_the_reason_is_told(function, kinds, reason):
    parameters = weights(1)
    plain = Outcome(function, kinds, WITH_EMPTY, parameters)
    block = Outcome(db.block(function), kinds, WITH_EMPTY, parameters)
    assert block.is_close_to(plain)
    told = [what for name, what in block.notes if name == function.__name__]
    assert any([what.startswith("inlined") and reason in what for what in told])


def test_only_the_sentences_that_differ_are_inlined():
    block = Outcome(db.block(decides_on_length), "x", LENGTHS, weights(1))
    assert sum(block.notes.values()) == len([n for n in LENGTHS if n > 10])


def test_explain_tells_which_blocks_were_inlined():
    with db.Graph() as graph:
        F.sum(db.block(decides_on_value)(F.input(graph, np.ones((2, WIDTH))), [])).value  # noqa: B018
        assert "decides_on_value: 1 call inlined, since it reads a value" in graph.explain()


# Arguments ----------------------------------------------------------------------------------------


def test_settings_and_sizes_that_differ_make_other_programs():
    @db.block
    def power(x, exponent, *, shift=0.0):
        return x**exponent + shift

    with db.Graph() as graph:
        x = F.input(graph, [[2.0, 3.0]])
        values = [power(x, 2), power(x, 3, shift=1.0), power(x[:, :1], 2), power(x[0], 2)]
        found = [v.value.tolist() for v in values]
    assert found == [[[4, 9]], [[9, 28]], [[4]], [4, 9]]


def test_sizes_that_are_equal_by_chance_do_not_tie_a_block():
    @db.block
    def cross(x, y, w):
        return F.softmax(F.linear(x, w[0]) @ y.T) @ y

    parameters = weights(1)
    generator = np.random.default_rng(0)
    with db.Graph(dtype="float64") as graph:
        lengths = [(4, 4), (4, 9), (2, 1), (3, 3)]
        pairs = [
            [F.input(graph, generator.standard_normal((n, WIDTH))) for n in pair]
            for pair in lengths
        ]
        found = [cross(x, y, parameters) for x, y in pairs]
        expected = [cross.__wrapped__(x, y, parameters) for x, y in pairs]
        for a, b in zip(found, expected, strict=True):
            assert np.array_equal(a.value, b.value)
        assert len({node.sig for node in found}) == 1


def test_a_row_against_a_matrix_is_broadcast():
    @db.block
    def add(x, y):
        return x + y

    with db.Graph() as graph:
        x, y = F.input(graph, np.ones((3, 2))), F.input(graph, [[1.0, 2.0]])
        assert add(x, y).value.tolist() == [[2, 3]] * 3
        assert add(x, x).value.tolist() == [[2, 2]] * 3


def test_a_module_turned_to_evaluation_is_traced_again():
    class Noisy(models.Module):
        def __init__(self):
            self.dropout = models.Dropout(0.5)

        @db.block
        def __call__(self, x):
            return self.dropout(x)

    noisy = Noisy()
    with db.Graph(seed=1) as graph:
        assert 0 in noisy(F.input(graph, np.ones((8, 8)))).value
    with db.Graph() as graph:
        x = F.input(graph, np.ones((8, 8)))
        assert noisy(x) is not x
        noisy.eval()
        assert noisy(x) is x


def test_a_module_is_turned_to_evaluation_within_a_graph():
    class Inner(models.Module):
        def __init__(self):
            self.dropout = models.Dropout(0.5)

        @db.block
        def __call__(self, x):
            return self.dropout(x) + 1

    inner = Inner()
    with db.Graph(seed=1) as graph:
        x = F.input(graph, np.ones((8, 8)))
        training, evaluating, again = inner(x), inner.eval()(x), inner.train()(x)
        assert set(np.unique(training.value)) == set(np.unique(again.value)) == {1, 3}
        assert set(np.unique(evaluating.value)) == {2}


def test_blocks_within_blocks_are_one_node():
    @db.block
    def inner(x, w):
        return F.tanh(F.linear(x, w[0]))

    @db.block
    def outer(x, w):
        return inner(x, w) + inner(x * 2, w)

    assert Outcome(outer, "x", LENGTHS, weights(1)).nodes == 1


class Unit(models.Module):
    def __init__(self):
        self.read, self.kept = (
            models.Linear(WIDTH, WIDTH, rng=0),
            models.Linear(WIDTH, WIDTH, rng=1),
        )

    def next(self, x, h):
        return F.tanh(self.read(x) + self.kept(h))


def test_a_scan_inside_calls_the_modules_that_it_is_given():
    @db.cell
    def step(x, h, unit):
        h = unit.next(x, h)
        return h, h

    @db.block
    def run(x, unit):
        return db.scan(step, x, WIDTH, unit, return_state=False)

    unit = Unit()
    with db.Graph() as graph:
        xs = [F.constant(graph, 0.5, (n, WIDTH)) for n in (3, 5)]
        found = [run(x, unit).value for x in xs]
        wanted = [run.__wrapped__(x, unit).value for x in xs]
    for a, b in zip(found, wanted, strict=True):
        assert np.array_equal(a, b)
    unit.kept.weight = db.Parameter(np.zeros((WIDTH, WIDTH), np.float32))
    with db.Graph() as graph:  # what the cell has read is read by the block, too
        x = F.constant(graph, 0.5, (3, WIDTH))
        assert np.array_equal(run(x, unit).value, run.__wrapped__(x, unit).value)


def test_results_can_be_kept_and_read():
    @db.block
    def both(x):
        return F.tanh(x), x * x

    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [[0.5], [1.0]])
        y, z = [node.keep() for node in both(x)]
        graph.backward(F.sum(y) + F.sum(z * 3))
        assert np.allclose(y.value, np.tanh([[0.5], [1.0]]))
        assert np.array_equal(y.gradient, np.ones((2, 1)))
        assert np.array_equal(z.gradient, np.full((2, 1), 3.0))


def test_an_error_inside_names_the_users_shapes():
    @db.block
    def wrong(x, w):
        return F.linear(x, w[0])

    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((3, WIDTH + 1)))
        with pytest.raises(db.errors.ShapeError, match=rf"\(3, {WIDTH + 1}\)"):
            wrong(x, weights(1))


def test_an_id_outside_its_table_is_refused_when_the_block_is_called():
    table = weights(1, 20, WIDTH)
    block = db.block(embed)
    with db.Graph(dtype="float64") as graph:
        block(graph, [1, 2], table)
        with pytest.raises(db.errors.VocabularyError, match="id 20 at position 1"):
            block(graph, [1, 20], table)


def test_a_block_without_nodes_or_a_graph_is_refused():
    with pytest.raises(db.errors.ArgumentError, match="give it a node, or the graph"):
        db.block(lambda x: x)(3)


# Dropout ------------------------------------------------------------------------------------------


def masks(lengths, order, **settings):
    @db.block
    def drop(x, w):
        return F.dropout(F.dropout(x, 0.3) + 1.0, 0.5)

    generator = np.random.default_rng(4)
    arrays = [generator.standard_normal((n, WIDTH)) for n in lengths]
    with db.Graph(seed=2, **settings) as graph:
        nodes = {k: drop(F.input(graph, arrays[k]), []) for k in order}
        return {k: node.value for k, node in nodes.items()}


def test_masks_of_a_block_follow_from_the_sentence_alone():
    together = masks(LENGTHS, range(7))
    for order in ([3, 1, 0], [6, 5, 4, 3, 2, 1, 0], [2]):
        for k, value in masks(LENGTHS, order).items():
            assert np.array_equal(value, together[k])


def test_masks_of_equal_sentences_and_of_two_sites_differ():
    @db.block
    def twice(x):
        return F.dropout(x, 0.5), F.dropout(x, 0.5)

    with db.Graph(seed=2) as graph:
        values = [node.value for _ in range(2) for node in twice(F.input(graph, np.ones((20, 20))))]
    assert not any([np.array_equal(a, b) for a, b in itertools.combinations(values, 2)])


# Reports and files --------------------------------------------------------------------------------


@every_case
def test_a_dump_holds_the_operators_and_replays_to_the_same(name, tmp_path):
    function, kinds, lengths, parameters, _ = CASES[name]
    block = db.block(function)
    generator = np.random.default_rng(0)
    with db.Graph(dtype="float64", seed=3) as graph:
        inputs, losses = [], []
        for length in lengths:
            returned = block(*arguments_of(graph, kinds, length, generator, inputs), parameters)
            results = returned if isinstance(returned, tuple) else (returned,)
            losses += [F.sum(F.dropout(result, 0.3)).keep() for result in results]
        loss = F.sum(losses)
        graph.backward(loss)
        graph.dump(tmp_path / "graph.npz")
        values, gradients = [y.value for y in losses], [x.gradient for x in inputs]
        assert [node.index for node in graph.nodes] == list(range(len(graph)))
    loaded = load_graph(tmp_path / "graph.npz")
    kept = [node for node in loaded.nodes if node.index in loaded.graph._kept]
    loaded.graph.backward(loaded.losses[0])
    ours = [x for x in kept if not x.inputs], [x for x in kept if x.inputs]
    assert all(map(np.array_equal, gradients, [x.gradient for x in ours[0]]))
    assert all(map(np.array_equal, values, [x.value for x in ours[1]]))


def test_a_table_names_the_block_beside_its_operators():
    outcome = db.block(residual)
    parameters = weights(1)
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((3, WIDTH)))
        F.sum(outcome(x, x, parameters)).value  # noqa: B018
        kinds = [line.split()[1:3] for line in graph.explain().splitlines()[3:]]
    assert ["residual:", "LinearMap"] in kinds and ["residual:", "LayerNormalization"] in kinds


def after_the_block():
    """Nothing: its call shows that a profiler still runs."""


@contextmanager
def profiled_in_c():
    """The code whose calls a profiler in C has seen, whose object knows no way to go on."""
    seen = set()

    @ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.py_object] * 2, ctypes.c_int, ctypes.c_void_p)
    def profile(_, frame, event, argument):
        seen.add(frame.f_code)
        return 0

    watch = ctypes.PYFUNCTYPE(None, type(profile), ctypes.py_object)
    before = sys.getprofile()
    watch(("PyEval_SetProfile", ctypes.pythonapi))(profile, object())
    try:
        yield lambda: seen
    finally:
        sys.setprofile(before)


@contextmanager
def profiled_by_the_library():
    with cProfile.Profile() as profiler:
        yield lambda: {entry.code for entry in profiler.getstats()}


@contextmanager
def profiled_in_python():
    seen, before = set(), sys.getprofile()
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code))
    try:
        yield lambda: seen
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize(
    "profiled",
    [profiled_in_c, profiled_by_the_library, profiled_in_python],
    ids=lambda f: f.__name__,
)
def test_a_block_is_traced_while_a_profiler_runs_and_the_profiler_goes_on(profiled):
    tracer = sys.gettrace()
    model = models.GPT(9, longest=16, width=4, layers=1, heads=1)
    expected = generate(model, [[1, 2]], max_new_tokens=3)[0]
    outcome = db.block(lambda x: F.tanh(x) * len(x))
    with profiled() as seen:
        for rows in (3, 5):  # which decide: that they are read is seen
            with db.Graph(dtype="float64") as graph:
                y = outcome(F.input(graph, np.ones((rows, WIDTH)))).value
            np.testing.assert_array_equal(y, np.full((rows, WIDTH), np.tanh(1) * rows))
            assert "inlined" not in graph.explain()
        assert generate(model, [[1, 2]], max_new_tokens=3)[0] == expected
        after_the_block()
        assert after_the_block.__code__ in seen()
    assert sys.gettrace() is tracer
