"""`drive`: what instances get, how many runs serve them, and what the failure of one does."""

import gc
import inspect
import pickle
import weakref

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.driver import NAMED_FAILURES, PATIENCE
from dynbatch.errors import CheckError, DriveError, DtypeError, GraphError, OutOfMemory, ShapeError
from tests.cuda import devices


def doubling(graph, number, rounds):
    """`number` · 2^rounds, one decision at a time."""
    x = F.input(graph, number)
    for _ in range(rounds):
        x = F.input(graph, float((yield x)) * 2)
    return float((yield x))


def line_of(function, text):
    """The number of the line of a function that has this text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(k for k, line in enumerate(lines) if text in line)


# What instances get -------------------------------------------------------------------------------


def test_results_come_in_order_whatever_the_lengths():
    with db.Graph() as graph:
        assert db.drive(graph, [doubling(graph, k + 1.0, k) for k in (3, 0, 5, 1)]) == [
            32.0,
            1.0,
            192.0,
            4.0,
        ]


def test_no_instance_no_result_and_no_run():
    with db.Graph() as graph:
        assert db.drive(graph, []) == []
        assert graph.plans == []


def test_an_instance_that_never_waits_ends_without_a_run():
    def instance(graph):
        return F.tanh(F.input(graph, [1.0]))
        yield

    with db.Graph() as graph:
        (node,) = db.drive(graph, [instance(graph)])
        assert graph.plans == []
        assert node.value.shape == (1,)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_value_has_its_nodes_shape_and_is_the_instances_own(device, length):
    def instance(graph, number, rows):
        value = yield rows * number
        assert type(value) is np.ndarray and value.dtype == np.float32
        assert value.shape == (length, 2)
        value[...] = -1
        again = yield rows * number
        return again.tolist()

    with db.Graph(device=device) as graph:
        rows = F.input(graph, np.ones((length, 2)))
        found = db.drive(graph, [instance(graph, number, rows) for number in (2.0, 3.0)])
        assert found == [[[2, 2]] * length, [[3, 3]] * length]


def test_what_is_yielded_comes_back_in_its_form():
    def instance(graph):
        x, y = F.input(graph, 1.0), F.input(graph, [2.0, 3.0])
        pair = yield x, y
        assert type(pair) is tuple and (pair[0], pair[1].tolist()) == (1, [2, 3])
        both = yield [y, y]
        assert type(both) is list and both[0] is not both[1] and both[1].tolist() == [2, 3]
        named = yield {"x": x, 7: y}
        assert list(named) == ["x", 7] and named["x"] == 1
        assert (yield ()) == () and (yield []) == [] and (yield {}) == {}
        return "done"

    with db.Graph() as graph:
        assert db.drive(graph, (instance(graph) for _ in range(3))) == ["done"] * 3


def test_a_list_that_others_change_meanwhile_is_read_when_it_was_yielded():
    shared = {}

    def asks(graph):
        shared["x"] = F.input(graph, 1.0)
        values = yield shared
        return {name: float(value) for name, value in values.items()}

    def meddles(graph):
        shared["y"] = None
        yield F.input(graph, 2.0)

    with db.Graph() as graph:
        assert db.drive(graph, [asks(graph), meddles(graph)]) == [{"x": 1.0}, None]


def test_generators_inside_generators():
    def total(graph, numbers):
        value = 0.0
        for number in numbers:
            value += yield from doubling(graph, number, 1)
        return value

    with db.Graph() as graph:
        found = db.drive(graph, [total(graph, [1.0, 2.0]), total(graph, [3.0])])
        assert found == [6.0, 6.0]
        assert len(graph.plans) == 4


def test_an_instance_may_drive_others():
    def outer(graph):
        inner = db.drive(graph, [doubling(graph, 1.0, 2), doubling(graph, 5.0, 2)])
        x = yield F.input(graph, inner)
        return x.tolist()

    with db.Graph() as graph:
        assert db.drive(graph, [outer(graph), doubling(graph, 1.0, 1)]) == [[4, 20], 2]


def test_an_instance_may_wait_for_another():
    done = []

    def waits():
        while not done:
            yield ()
        return done[0]

    def works(graph):
        done.append((yield from doubling(graph, 1.0, 3)))

    with db.Graph() as graph:
        assert db.drive(graph, [waits(), works(graph)]) == [8.0, None]


# How many runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["by_agenda", "by_depth", "one_by_one"])
@pytest.mark.parametrize("count", [1, 7, 64])
def test_runs_are_rounds_whatever_the_number_of_instances(count, policy):
    def instance(graph, weight, number):
        h = F.input(graph, [float(number), 1.0])
        for _ in range(5):
            h = F.tanh(F.linear(h, weight))
            value = yield h
            h = h * 2.0 if value[0] > 0 else h - 1.0
        return h

    weight = db.Parameter(np.eye(2, dtype=np.float32), "weight")
    with db.Graph(policy=policy) as graph:
        db.drive(graph, [instance(graph, weight, k - 3) for k in range(count)])
        assert len(graph.plans) == 5


def test_runs_are_those_of_the_instance_with_most_decisions():
    with db.Graph() as graph:
        db.drive(graph, [doubling(graph, 1.0, k) for k in (0, 9, 2)])
        assert len(graph.plans) == 10


def test_each_run_is_one_batch_of_all_that_wait():
    def instance(graph, weight, number):
        h = F.input(graph, [number])
        while (yield (h := F.linear(h, weight))) < 8:
            pass

    weight = db.Parameter(np.full((1, 1), 2, np.float32), "weight")
    with db.Graph() as graph:
        db.drive(graph, [instance(graph, weight, number) for number in (1.0, 1.0, 4.0)])
        sizes = [[len(step.nodes) for step in plan.steps] for plan in graph.plans]
        assert sizes == [[3, 3], [2], [2]]  # inputs and products, then who goes on


def test_only_what_is_asked_for_runs():
    def instance(graph):
        x = F.input(graph, [1.0])
        unasked = F.exp(x)
        assert (yield F.tanh(x)) == pytest.approx(np.tanh(1))
        return unasked

    with db.Graph() as graph:
        (unasked,) = db.drive(graph, [instance(graph)])
        assert "Exp" not in graph.explain()
        assert unasked.value == pytest.approx(np.e)


def test_a_known_value_costs_a_round_and_no_run():
    def instance(graph):
        x = F.input(graph, 3.0)
        return float((yield x)) + float((yield x))

    with db.Graph() as graph:
        assert db.drive(graph, [instance(graph)]) == [6]
        assert len(graph.plans) == 1


def test_a_run_waits_once_for_the_device(cuda):
    with db.Graph(device="cuda") as graph:
        if devices.has_gpu():
            pytest.skip("the waits of a real GPU are not counted")
        gc.collect()  # memory of the stand-in waits where it is freed: none of earlier tests inside
        with devices.waits() as waits:
            assert db.drive(graph, [doubling(graph, 1.0, 3) for _ in range(5)]) == [8] * 5
        assert len(graph.plans) == len(waits) == 4


def test_values_of_no_element_and_known_ones_come_from_the_device(cuda):
    def instance(graph, length):
        x = F.input(graph, np.ones((length, 3)))
        first = yield x
        second = yield x, F.sum(x)
        return first.shape, second[0].shape, float(second[1])

    with db.Graph(device="cuda") as graph:
        assert db.drive(graph, [instance(graph, 0)]) == [((0, 3), (0, 3), 0)]
        assert db.drive(graph, [instance(graph, 0), instance(graph, 2)])[1] == ((2, 3), (2, 3), 6)


# Backward, sampling, parsing ----------------------------------------------------------------------


class Parser:
    """Shift or reduce, as the sign of a score of stack and buffer says; a tanh composes."""

    def __init__(self, dtype="float64", seed=0):
        generator = np.random.default_rng(seed)

        def parameter(name, *shape):
            return db.Parameter(generator.standard_normal(shape).astype(dtype), name)

        self.table = parameter("table", 10, 3)
        self.compose = parameter("compose", 3, 6)
        self.score = parameter("score", 2, 6)

    def parameters(self):
        return [self.table, self.compose, self.score]

    def logits(self, stack, rows, place):
        return F.linear(F.concat([stack[-1][0], rows[place]]), self.score)

    def parse(self, graph, words):
        """The loss of the chosen actions, and the tree, as its choices make it."""
        rows = F.lookup(graph, self.table, words)
        return (yield from self.moves(rows, words))

    def moves(self, rows, words):
        stack, place, losses = [(rows[0], words[0])], 1, []
        while place < len(words) or len(stack) > 1:
            shift = place < len(words)
            if shift and len(stack) > 1:
                logits = self.logits(stack, rows, place)
                shift = int(np.argmax((yield logits)))
                losses.append(F.cross_entropy(F.unsqueeze(logits, 0), [shift]))
            if shift:
                stack.append((rows[place], words[place]))
                place += 1
            else:
                (left, a), (right, b) = stack[-2:]
                parent = F.tanh(F.linear(F.concat([left, right]), self.compose))
                stack[-2:] = [(parent, (a, b))]
        return F.sum([*losses, F.sum(stack[0][0])]), stack[0][1]


def gradients(model):
    found = []
    for parameter in model.parameters():
        grad = parameter.grad
        if grad is None:
            grad = np.zeros(parameter.shape)
        found.append(grad.dense() if isinstance(grad, db.RowSparse) else np.copy(grad))
        parameter.zero_grad()
    return found


def sentences(lengths):
    generator = np.random.default_rng(3)
    return [generator.integers(0, 10, length).tolist() for length in lengths]


def alone(model, words, **settings):
    """One sentence by itself, reading `value` as it goes: loss, tree and gradients."""
    with db.Graph(dtype="float64", **settings) as graph:
        instance = model.parse(graph, words)
        value = None
        try:
            while True:
                value = instance.send(value).value
        except StopIteration as stop:
            loss, tree = stop.value
        graph.backward(loss)
    return float(loss.value), tree, gradients(model)


@pytest.mark.usefixtures("dead_memory_is_nan")
@pytest.mark.parametrize("policy", ["by_agenda", "by_depth", "one_by_one"])
def test_parsers_together_are_parsers_alone_in_values_trees_and_gradients(policy):
    model, batch = Parser(), sentences([5, 1, 2, 9, 7, 3])
    expected = [alone(model, words) for words in batch]
    assert len({str(tree).count("((") for _, tree, _ in expected}) > 2  # they do decide
    with db.Graph(dtype="float64", policy=policy) as graph:
        parsed = db.drive(graph, [model.parse(graph, words) for words in batch])
        for (loss, tree), (value, own_tree, _) in zip(parsed, expected, strict=True):
            assert tree == own_tree
            loss.keep()
            np.testing.assert_allclose(loss.value, value, rtol=1e-12)
        graph.backward(F.sum([loss for loss, _ in parsed]))
    for k, found in enumerate(gradients(model)):
        total = np.sum([grads[k] for _, _, grads in expected], axis=0)
        np.testing.assert_allclose(found, total, rtol=1e-10, atol=1e-13)


def test_parsers_on_a_device_are_those_on_the_host(cuda):
    model, batch = Parser("float32"), sentences([5, 1, 4])

    def train(device):
        for parameter in model.parameters():
            parameter.to(device)
        with db.Graph(device=device) as graph:
            parsed = db.drive(graph, [model.parse(graph, words) for words in batch])
            graph.backward(F.sum([loss for loss, _ in parsed]))
            runs = len(graph.plans)
        for parameter in model.parameters():
            parameter.to("cpu")
        return [tree for _, tree in parsed], runs, gradients(model)

    trees, runs, expected = train("cpu")
    found_trees, found_runs, found = train("cuda")
    assert (found_trees, found_runs) == (trees, runs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_every_run_may_be_checked():
    model, batch = Parser(), sentences([5, 3])
    with db.Graph(dtype="float64", check=True) as graph:
        parsed = db.drive(graph, [model.parse(graph, words) for words in batch])
        graph.backward(F.sum([loss for loss, _ in parsed]))
    assert [tree for _, tree in parsed] == [alone(model, words)[1] for words in batch]


def sample(model, graph, seed, limit=20):
    """Words until word 0, each drawn from the distribution that the last one gives."""
    draws, word, words = np.random.default_rng(seed), 1, []
    while word and len(words) < limit:
        row = F.lookup(graph, model.table, [word])[0]
        logits = F.linear(F.linear(row, model.compose_to), model.table)
        probabilities = yield F.softmax(logits)
        word = int(draws.choice(10, p=probabilities / probabilities.sum()))
        words.append(word)
    return words


def test_samples_depend_on_their_own_seed_and_on_nobody_else():
    model = Parser()
    model.compose_to = db.Parameter(np.eye(3) * 0.3, "to")

    def samples(seeds):
        with db.Graph(dtype="float64", grad=False) as graph:
            found = db.drive(graph, [sample(model, graph, seed) for seed in seeds])
            assert len(graph.plans) == max(map(len, found))
        return dict(zip(seeds, found, strict=True))

    everyone = samples(range(12))
    assert len({len(words) for words in everyone.values()}) > 3
    assert samples([7, 2]) == {seed: everyone[seed] for seed in (7, 2)}


def test_early_exit_leaves_the_layers_that_nobody_needs():
    layers = [db.Parameter(np.full((1, 1), 2, np.float32), f"layer{k}") for k in range(6)]

    def instance(graph, number):
        h = F.input(graph, [number])
        for depth, layer in enumerate(layers):
            h = F.linear(h, layer)
            if (yield h) > 10:
                return depth + 1
        return len(layers)

    with db.Graph() as graph:
        assert db.drive(graph, [instance(graph, x) for x in (9.0, 2.0, 0.0, 4.0)]) == [1, 3, 6, 2]
        batches = [len(step.nodes) for plan in graph.plans for step in plan.steps]
        assert batches == [4, 4, 3, 2, 1, 1, 1]


# Failures -----------------------------------------------------------------------------------------


def failing(graph, number):
    value = yield F.input(graph, number)
    if number < 0:
        raise ValueError(f"{value} is negative")
    other = yield F.input(graph, float(value) + 1)
    return float(other)


def test_a_failure_names_its_instance_and_line_and_leaves_the_others_results():
    with db.Graph() as graph:
        with pytest.raises(DriveError, match="2 of 4 instances failed") as caught:
            db.drive(graph, [failing(graph, x) for x in (1.0, -1.0, 2.0, -3.0)])
        assert F.input(graph, 1.0).value == 1  # the graph is usable
    error = caught.value
    assert error.results == [2.0, None, 3.0, None]
    assert list(error.failures) == [1, 3]
    assert error.exceptions == tuple(error.failures.values())
    assert str(error.failures[3]) == "-3.0 is negative"
    line = f"{__file__}:{line_of(failing, 'raise')} in failing"
    assert f"instance 1, at {line}: ValueError: -1.0 is negative" in str(error)
    assert error.failures[3].__notes__ == [f"in instance 3, at {line}"]
    assert error.failures[1].__traceback__.tb_frame.f_code.co_name == "failing"


@pytest.mark.usefixtures("dead_memory_is_nan")
def test_what_the_others_return_has_its_gradients():
    model, batch = Parser(), sentences([5, 2, 7])

    def broken(graph):
        yield F.lookup(graph, model.table, [1])
        raise KeyError("broken")

    def parsers(graph):
        return [model.parse(graph, words) for words in batch]

    with db.Graph(dtype="float64") as graph:
        graph.backward(F.sum([loss for loss, _ in db.drive(graph, parsers(graph))]))
    expected = gradients(model)
    with db.Graph(dtype="float64") as graph:
        with pytest.raises(DriveError) as caught:
            db.drive(graph, [broken(graph), *parsers(graph), broken(graph)])
        graph.backward(F.sum([found[0] for found in caught.value.results if found]))
    for found, gradient in zip(gradients(model), expected, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-10, atol=1e-13)


def test_a_failure_is_at_the_innermost_generators_line():
    def outer(graph):
        yield from inner(graph)

    def inner(graph):
        yield F.input(graph, 1.0)
        np.zeros(3).reshape(2)  # fails in another's code

    with db.Graph() as graph, pytest.raises(DriveError) as caught:
        db.drive(graph, [outer(graph)])
    assert f"at {__file__}:{line_of(inner, 'reshape')} in inner" in str(caught.value)


def test_a_failure_before_the_first_yield_and_a_shape_error():
    def instance(graph):
        yield F.matmul(F.input(graph, [[1.0]]), F.input(graph, [[1.0], [2.0]]))

    with db.Graph() as graph, pytest.raises(DriveError) as caught:
        db.drive(graph, [instance(graph), failing(graph, 1.0)])
    assert isinstance(caught.value.failures[0], ShapeError)
    assert caught.value.results == [None, 2.0]


def test_failures_are_taken_apart_by_kind_and_travel():
    def raises(graph, error):
        yield F.input(graph, 1.0)
        raise error

    def drive():
        with db.Graph() as graph:
            errors = (KeyError("a"), ValueError("b"), KeyError("c"))
            db.drive(graph, [raises(graph, error) for error in errors])

    rest = None
    try:
        try:
            drive()
        except* KeyError as group:
            assert list(group.failures) == [0, 2] and group.results == [None] * 3
    except DriveError as error:
        rest = error
    assert list(rest.failures) == [1]
    again = pickle.loads(pickle.dumps(rest))
    assert again.results == [None] * 3 and str(again.failures[1]) == "b"


def test_many_failures_are_not_all_listed():
    with db.Graph() as graph, pytest.raises(DriveError) as caught:
        db.drive(graph, [failing(graph, -1.0) for _ in range(NAMED_FAILURES + 5)])
    assert len(caught.value.failures) == NAMED_FAILURES + 5
    assert "… and 5 more" in str(caught.value)


def test_an_instance_whose_values_are_gone_fails_and_the_others_are_served():
    with db.Graph() as graph:
        x = F.tanh(F.input(graph, 1.0).keep())
        graph.backward(F.exp(x))

        def gone():
            yield x * 2.0

        def catches():
            try:
                yield x
            except GraphError:
                return "caught"

        with pytest.raises(DriveError) as caught:
            db.drive(graph, [doubling(graph, 1.0, 2), gone(), catches()])
    error = caught.value
    assert error.results == [4.0, None, "caught"] and list(error.failures) == [1]
    assert "the value was freed" in str(error)
    assert f"{__file__}:{line_of(gone, 'yield')} in gone" in str(error)


class Picky(db.Node):
    """A node type of the user's own that cannot compute some values."""

    __slots__ = ()

    def infer_shape(self, x):
        return x

    @classmethod
    def forward_batch(cls, batch, y, x):
        if (x.values < 0).any():
            raise ArithmeticError("below zero")
        np.copyto(y.values, x.values)


def test_a_run_that_fails_is_run_for_each_instance_alone():
    def instance(graph, number):
        value = yield Picky(F.input(graph, [number]))
        return float((yield F.input(graph, value + 1))[0])

    with db.Graph() as graph, pytest.raises(DriveError) as caught:
        instances = [instance(graph, number) for number in (1.0, -1.0, 3.0)]
        db.drive(graph, [*instances, asks_for_a_number()])
    assert caught.value.results == [2, None, 4, None]
    assert str(caught.value.failures[1]) == "below zero"
    assert "yielded float" in str(caught.value.failures[3])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutOfMemory, CheckError])
def test_what_ends_a_run_ends_all_and_closes_every_instance(error, monkeypatch):
    closed = []

    def instance(graph, number):
        try:
            yield F.input(graph, number)
        finally:
            closed.append(number)

    def values(nodes):
        raise error("stop")

    with db.Graph() as graph:
        monkeypatch.setattr(graph, "values", lambda nodes: nodes and values(nodes))
        with pytest.raises(error, match="stop"):
            db.drive(graph, [instance(graph, k) for k in range(3)])
    assert sorted(closed) == [0, 1, 2]


def test_an_interrupt_in_one_instance_closes_the_others():
    closed = []

    def waits(graph):
        try:
            yield F.input(graph, 1.0)
        finally:
            closed.append(True)

    def interrupted(graph):
        yield F.input(graph, 1.0)
        raise KeyboardInterrupt

    def late(graph):
        yield from waits(graph)

    with db.Graph() as graph, pytest.raises(KeyboardInterrupt):
        db.drive(graph, [interrupted(graph), waits(graph), late(graph)])
    assert closed == [True, True]


def test_nothing_of_a_graph_survives_a_failure_that_is_let_go():
    collects = gc.isenabled()
    gc.disable()
    try:
        with db.Graph() as graph:
            with pytest.raises(DriveError) as caught:
                db.drive(graph, [failing(graph, x) for x in (1.0, -1.0)] + [asks_for_a_number()])
            node = weakref.ref(F.input(graph, 1.0))
            nodes = [weakref.ref(one) for one in graph._nodes]
        del caught
        assert node() is None
        assert [one() for one in nodes] == [None] * len(nodes)
    finally:
        if collects:
            gc.enable()


# Bad input ----------------------------------------------------------------------------------------


def asks_for_a_number():
    yield 3.5


def asks_for_a_value(graph):
    yield F.input(graph, 1.0), F.input(graph, 1.0).value


def asks_for_nested(graph):
    yield [[F.input(graph, 1.0)]]


def asks_for_a_parameter():
    yield {"a": db.Parameter(np.zeros(2))}


def asks_for_nothing():
    yield


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (asks_for_a_number, "float"),
        (asks_for_a_value, "ndarray"),
        (asks_for_nested, "list"),
        (asks_for_a_parameter, "Parameter"),
        (asks_for_nothing, "NoneType"),
    ],
)
def test_what_is_no_node_is_an_error_at_its_yield(bad, kind):
    with db.Graph() as graph, pytest.raises(DriveError) as caught:
        given = [graph] if inspect.signature(bad).parameters else []
        db.drive(graph, [doubling(graph, 1.0, 2), bad(*given)])
    error = caught.value.failures[1]
    assert caught.value.results == [4, None]
    assert type(error) is DtypeError
    assert f"instance 1 yielded {kind}; a node expected" in str(error)
    assert f"yielded at {__file__}:{line_of(bad, 'yield')} in {bad.__name__}" in str(error)
    assert error.__traceback__.tb_lineno == line_of(bad, "yield")


def test_a_node_of_another_graph_is_an_error_at_its_yield():
    def instance(node):
        yield node

    def outer(node):
        yield from instance(node)

    with db.Graph() as closed:
        old = F.input(closed, 1.0)
    with db.Graph() as other, db.Graph() as graph:
        foreign = F.input(other, 1.0)
        with pytest.raises(DriveError) as caught:
            db.drive(graph, [outer(old), instance(foreign), doubling(graph, 1.0, 1)])
        assert other.plans == []
    assert caught.value.results == [None, None, 2]
    for number, error in caught.value.failures.items():
        assert type(error) is GraphError
        assert f"instance {number} yielded Input #0 () of another graph" in str(error)
        assert f"yielded at {__file__}:{line_of(instance, 'yield')} in instance" in str(error)


def test_an_instance_may_catch_what_it_did_wrong():
    def instance(graph):
        try:
            yield 3
        except DtypeError:
            value = yield F.input(graph, 3.0)
        return float(value)

    with db.Graph() as graph:
        assert db.drive(graph, [instance(graph)]) == [3]


def test_a_closed_graph_is_an_error_for_each_instance():
    def closes(graph):
        yield F.input(graph, 1.0)
        graph.close()
        yield ()

    with db.Graph() as graph, pytest.raises(DriveError, match="the graph is closed") as caught:
        db.drive(graph, [closes(graph), doubling(graph, 1.0, 3)])
    assert all(type(error) is GraphError for error in caught.value.failures.values())
    graph = db.Graph()
    instance = doubling(graph, 1.0, 1)
    graph.close()
    with pytest.raises(GraphError, match="drive: the graph is closed"):
        db.drive(graph, [instance])


def never_ends(node):
    while True:
        yield node


def swallows_everything():
    while True:
        try:
            yield "no node"
        except DtypeError:
            pass


def test_instances_that_wait_for_ever_are_told_so():
    with db.Graph() as graph:
        stuck = never_ends(F.input(graph, 1.0))
        others = [swallows_everything(), doubling(graph, 1.0, 4)]
        with pytest.raises(DriveError) as caught:
            db.drive(graph, [stuck, *others])
    assert caught.value.results == [None, None, 16]
    for number, bad in ((0, never_ends), (1, swallows_everything)):
        error = caught.value.failures[number]
        assert f"Instance {number} would wait for ever" in str(error)
        assert f"waits at {__file__}:{line_of(bad, 'yield')} in {bad.__name__}" in str(error)
    assert inspect.getgeneratorstate(stuck) == inspect.GEN_CLOSED


def test_reading_known_values_one_by_one_is_no_waiting_for_ever():
    def instance(graph):
        nodes = [F.input(graph, float(k)) for k in range(2 * PATIENCE)]
        yield nodes
        total = 0.0
        for node in nodes:
            total += float((yield node))
        return total

    with db.Graph() as graph:
        assert db.drive(graph, [instance(graph)]) == [sum(range(2 * PATIENCE))]
        assert len(graph.plans) == 1


def returns_a_node(graph):
    return F.input(graph, 1.0)


def test_a_function_that_is_no_generator_is_an_error_at_the_users_line():
    with db.Graph() as graph:
        for bad, pieces in (
            ([doubling], r"instance 0 is of type function.*call it: doubling\("),
            ([returns_a_node(graph)], "instance 0 is of type Input.*with `yield` in it"),
            ([doubling(graph, 1.0, 1), 7], "instance 1 is of type int.*with `yield` in it"),
            ([returns_a_node], "instance 0 is of type function.*with `yield` in it"),
            (doubling(graph, 1.0, 1), "instance 0 is of type Input.*a list, of one perhaps"),
            (returns_a_node(graph), "`instances` is of type Input.*a list, of one perhaps"),
            (None, "`instances` is of type NoneType.*a list, of one perhaps"),
        ):
            with pytest.raises(DtypeError, match="(?s)" + pieces) as caught:
                db.drive(graph, bad)
            assert f"made at {__file__}:" in str(caught.value)
        with pytest.raises(DtypeError, match="a graph expected, got list"):
            db.drive([], graph)
        assert graph.plans == []


def test_a_generator_is_driven_once():
    with db.Graph() as graph:
        twice, begun, ended = (doubling(graph, 1.0, 1) for _ in range(3))
        next(begun)
        db.drive(graph, [ended])
        for bad in ([twice, twice], [begun], [ended]):
            with pytest.raises(GraphError, match="a generator that is used already"):
                db.drive(graph, bad)
