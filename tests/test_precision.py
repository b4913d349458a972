"""`Graph(precision="bfloat16")`: rounded values, which lie in 16 bits from forward to backward."""

from functools import partial

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.execution import executor
from dynbatch.batcher.planning import memory_plan, narrowing, recompute_search
from dynbatch.batcher.planning.memory_plan import plan_lifetimes
from dynbatch.batcher.planning.stages import NO_SAVING
from dynbatch.cells.scan import prefix
from dynbatch.errors import ArgumentError, MemoryLimitError, NumericError
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime.precision import round_to
from dynbatch.testing.precision import dense_gradient
from tests.batcher.planning.random_plans import random_loss
from tests.reference_models import sentences

LAYERS = {
    "lstm": lambda: models.LSTM(12, 8, bidirectional=True),
    "loop": lambda: models.LSTM(12, 24),  # large enough for C
    "attending": lambda: Attending(),
    "transformer": lambda: models.TransformerEncoder(2, 12, 2, 24, dropout=0.25),
    "linear": lambda: models.Sequential(models.Linear(12, 16), F.gelu, models.Linear(16, 9)),
}


@pytest.fixture
def narrowing_of(monkeypatch):
    """Set how many elements are narrowed at least; then all are, smaller peak or not."""

    def everything(graph, in_place):
        return plan_lifetimes(graph, NO_SAVING, in_place).placed(), NO_SAVING

    def set_least(elements):
        monkeypatch.setattr(narrowing, "LEAST_NARROWED", elements)
        for module in (memory_plan, recompute_search):
            monkeypatch.setattr(module, "plan_narrow", everything)

    return set_least


@db.cell
def attending_step(x, state, model, memory):
    h, context = state
    h = F.tanh(model.inputs(x) + model.states(h) + model.contexts(context))
    context = F.tanh(model.attention.attend(h, memory))
    return h + context, (h, context)


class Attending(models.Module):
    """A loop whose steps attend to the words."""

    def __init__(self):
        self.inputs, self.states, self.contexts = [models.Linear(k, 24) for k in (12, 24, 24)]
        self.attention = models.AdditiveAttention(24, 12, 24)
        self.values = models.Linear(12, 24)

    def __call__(self, x):
        memory = self.attention.keys(x), self.values(x)
        return db.scan(attending_step, x, (24, 24), self, memory)[0]


class Tagger(models.Module):
    def __init__(self, kind):
        db.seed(0)
        self.table = models.Embedding(20, 12)
        self.encoder = LAYERS[kind]()
        width = {"lstm": 16, "loop": 24, "attending": 24, "transformer": 12, "linear": 9}[kind]
        self.output = models.Linear(width, 5)

    def loss(self, graph, words, tags):
        return F.cross_entropy(self.output(self.encoder(self.table(graph, words))), tags)


def gradients(model, batch, device="cpu", limit=None, reads=False, **settings):
    """The loss and gradients of a step, as bytes, and the graph."""
    model.to(device)
    for parameter in model.parameters():
        parameter.grad = None
    with db.Graph(device, precision="bfloat16", seed=0, **settings) as graph:
        losses = [model.loss(graph, *sentence) for sentence in batch]
        loss = F.sum(losses)
        if reads:
            _ = [each.value for each in losses]
        graph.backward(loss, memory_limit=limit)
        number = float(loss.value)
    found = [dense_gradient(parameter).tobytes() for parameter in model.parameters()]
    return [np.float32(number).tobytes(), *found], graph


def is_bfloat16(x):
    return not (np.ascontiguousarray(x, np.float32).view(np.uint32) & 0xFFFF).any()


def test_values_are_bfloat16_and_losses_float32(device):
    x = np.linspace(0.1, 3, 12, dtype=np.float32).reshape(3, 4)
    weight = db.Parameter(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)).to(device)
    with db.Graph(device, precision="bfloat16") as graph:
        node = F.input(graph, x)
        values = [node, F.tanh(node), F.linear(node, weight), F.sum(node, dim=0), node[1] * node[2]]
        tokens = F.log_softmax(values[2])
        exact = [F.sum(node), tokens, tokens * 0.3, F.concat([tokens, tokens], dim=0)]
        exact += [F.parameter(graph, weight), F.mean([F.sum(node), F.sum(node)]) * 0.1]
        values, exact = [[x.numpy() for x in nodes] for nodes in (values, exact)]
    assert all(map(is_bfloat16, values))
    assert not any(map(is_bfloat16, exact))
    np.testing.assert_array_equal(values[1], round_to(np.tanh(values[0]), "bfloat16"))


def concat_of(graph, weight, number):
    """A parameter's row beside a value, or the row of an exact node; batched as one step."""
    x = F.input(graph, np.linspace(0.1, 1, 4, dtype=np.float32) + np.float32(number))
    row = F.log_softmax(x) if number % 2 else F.parameter(graph, weight)
    return F.concat([F.tanh(x), row])


def states_of(graph, weight, number):
    """The last states of a scan of one column, whose sentence may be empty."""
    xs = F.input(graph, np.full((number % 2 * 3, 1), 0.3, np.float32))
    first = F.parameter(graph, weight)[1:2]
    _, [(h, c)] = STATES(xs, [(first, first)], return_state=True)
    return F.concat([h, c])


STATES = models.LSTM(1, 1, rng=0)


@pytest.mark.parametrize("build", [concat_of, states_of])
def test_what_is_rounded_does_not_depend_on_the_sentences_beside_one(build):
    weight = db.Parameter(np.linspace(-1, 1.1, 4, dtype=np.float32))

    def values(numbers):
        with db.Graph(precision="bfloat16", grad=False) as graph:
            nodes = [build(graph, weight, number) for number in numbers]
            return [node.numpy().tobytes() for node in nodes]

    assert values(range(4)) == [values([number])[0] for number in range(4)]


@db.cell
def two_maps(x, h, weights):
    one, two = [F.linear(h, weight) for weight in weights]
    return one - 0.5 * two + x, one - 0.5 * two


@pytest.mark.parametrize("run", [two_maps, partial(db.scan, two_maps)], ids=["call", "scan"])
def test_weights_are_not_rounded_where_factors_are_not(run, device):
    weights = [db.Parameter(np.full((4, 4), 1 + 2**-10, np.float32)) for _ in range(2)]
    weights = [weight.to(device) for weight in weights]
    with db.Graph(device, precision="bfloat16", matmul="float32") as graph:
        x, h = F.input(graph, np.zeros((1, 4))), F.input(graph, np.ones(4)).keep()
        y, _ = run(x if run is not two_maps else x[0], h, weights)
        graph.backward(F.sum(y))
        assert (h.gradient == 2 * (1 + 2**-10)).all()


def stages_of(graph):
    return [label.split()[0] for label, _ in graph.memory_use.stages]


@pytest.mark.parametrize(
    ("kind", "rows"), [*[(kind, 384) for kind in LAYERS], ("loop", 2), ("attending", 2)]
)
def test_no_bit_depends_on_what_lies_in_16_bits(kind, rows, narrowing_of, device, monkeypatch):
    monkeypatch.setattr(prefix, "LEAST_ROWS", rows)  # so few in a chunk of backward
    model, batch = Tagger(kind), sentences([3, 0, 1, 7])
    narrowing_of(1 << 40)
    expected, graph = gradients(model, batch, device)
    assert "narrow" not in stages_of(graph)
    blocks = graph.memory_use.blocks_bytes
    narrowing_of(1)
    narrow, graph = gradients(model, batch, device)
    assert narrow == expected
    assert "narrow" in stages_of(graph)
    assert graph.memory_use.blocks_bytes == blocks
    assert gradients(model, batch, device, reads=True)[0] == expected


@pytest.mark.parametrize("kind", ["attention", "lstm"])
def test_a_step_that_comes_again_reads_what_was_widened(kind, narrowing_of, monkeypatch):
    db.seed(0)
    changes, grads = [], []
    change = executor.change_form
    monkeypatch.setattr(
        executor, "change_form", lambda *a: changes.append(len(grads)) or change(*a)
    )
    table, linear, lstm = models.Embedding(20, 8), models.Linear(8, 8), models.LSTM(8, 8)
    vector = db.Parameter(np.linspace(-1, 1, 8, dtype=np.float32))
    batch = sentences([3, 5, 7])

    def layer(x):
        y = F.tanh(linear(x))
        y = lstm(y) if kind == "lstm" else F.additive_attention(y, x, x, vector)
        return F.tanh(linear(F.tanh(y)))

    def steps():
        block = db.block(layer)
        grads.clear()
        changes.clear()
        for _ in range(5):  # from the fourth on, calls of C are those of the step before
            linear.weight.grad = vector.grad = table.weight.grad = None
            with db.Graph(precision="bfloat16") as graph:
                losses = [F.cross_entropy(block(table(graph, x)), tags) for x, tags in batch]
                graph.backward(F.sum(losses))
            parameters = linear.weight, vector, table.weight
            grads.append([dense_gradient(parameter).tobytes() for parameter in parameters])
        return stages_of(graph)

    narrowing_of(1 << 40)
    steps()
    expected = grads[0]
    narrowing_of(1)
    assert "widen" in steps()
    assert grads == [expected] * 5
    if not library.reason():
        assert max(changes) < 4  # recorded with the other calls


@pytest.mark.parametrize("kind", LAYERS)
def test_a_sentence_has_the_bits_that_it_has_alone(kind):
    model, batch = Tagger(kind).eval(), sentences([3, 0, 1, 7])

    def losses(batch):
        with db.Graph(precision="bfloat16", grad=False) as graph:
            return [model.loss(graph, *each).numpy().tobytes() for each in batch]

    assert losses(batch) == [losses([sentence])[0] for sentence in batch]


def test_a_check_rounds_what_forward_leaves_as_the_run_does():
    rng, gru = np.random.default_rng(40), models.GRU(1, 1)
    for parameter in gru.parameters():  # large: gates that are nearly 0 or 1 lose digits
        parameter.value[:] = rng.normal(size=parameter.shape) * 3
    with db.Graph(precision="bfloat16", check=True) as graph:
        x = F.input(graph, rng.normal(size=(3, 1)).astype(np.float32))
        graph.backward(F.sum(gru(F.linear(x, db.Parameter(np.ones((1, 1), np.float32))))))


def test_the_guard_looks_at_what_was_rounded(narrowing_of, device):
    linear = models.Linear(4, 4, rng=0).to(device)
    for least in (1, 1 << 40):  # in 16 bits between forward and backward, or in place
        narrowing_of(least)
        with db.Graph(device, precision="bfloat16", guard=True) as graph:
            x = F.input(graph, [[1.0, 0.5, 0.25, 0.125]])
            y = F.tanh(linear(x)) * 0 + np.float32(3.4e38)  # finite, and infinite in bfloat16
            with pytest.raises(NumericError, match=r"rounded to bfloat16, has 4 of 4 numbers"):
                graph.backward(F.sum(F.tanh(y * y)))


@pytest.mark.parametrize("seed", range(6))
def test_a_limit_changes_no_bit_and_the_peak_is_the_predicted_one(seed, narrowing_of):
    def step(limit):
        with db.Graph(precision="bfloat16", seed=0) as graph:
            loss = random_loss(graph, seed)
            predicted = graph.estimate(loss, memory_limit=limit).peak_bytes
            graph.backward(loss, memory_limit=limit)
            weights = {p.uid: p for node in graph._nodes for p in node.all_parameters()}
            found = [dense_gradient(p).tobytes() for p in weights.values()]
        assert graph.memory_use.peak_bytes == predicted == graph.statistics.peak_bytes
        return found, predicted

    narrowing_of(1)
    expected, peak = step(None)
    with pytest.raises(MemoryLimitError) as error:
        step(1)
    least = error.value.least_bytes
    for limit in (least, (least + peak) // 2):
        found, needed = step(limit)
        assert needed <= limit
        assert found == expected


def test_a_transformer_needs_less_memory():
    model, batch = Tagger("transformer"), sentences([30] * 16)
    _, graph = gradients(model, batch)
    with db.Graph(matmul="bfloat16", seed=0) as wide:
        wide.backward(F.sum([model.loss(wide, *sentence) for sentence in batch]))
    assert graph.memory_use.peak_bytes < 0.7 * wide.memory_use.peak_bytes


def test_a_network_of_many_steps_takes_few_plans(monkeypatch):
    monkeypatch.setattr(narrowing, "LEAST_NARROWED", 1)
    plans = []
    monkeypatch.setattr(
        memory_plan, "plan_lifetimes", lambda *a: plans.append(a) or plan_lifetimes(*a)
    )
    weight = db.Parameter(np.eye(8, dtype=np.float32))
    with db.Graph(precision="bfloat16") as graph:
        values = [F.input(graph, np.ones((16, 8), np.float32))]
        for _ in range(40):
            values.append(F.tanh(F.linear(values[-1], weight)))
        x = values[-1]
        for value in reversed(values):
            x = F.tanh(F.linear(x, weight) * value)
        graph.backward(F.sum(x))
    assert len(plans) < 16


def test_what_is_refused():
    with pytest.raises(ArgumentError, match="precision is 'float16'"):
        db.Graph(precision="float16")
    with pytest.raises(ArgumentError, match="for numbers of float64"):
        db.Graph(dtype="float64", precision="bfloat16")
    assert db.Graph(precision="bfloat16").matmul == "bfloat16"
    assert db.Graph(precision="bfloat16", matmul="float32").matmul == "float32"
