"""A model on a sentence's next rows, against the model on the whole sentence."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.steps.preparation import StepMaker
from dynbatch.errors import ArgumentError, GraphError
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.history import History
from dynbatch.generation.model import Continuation
from dynbatch.generation.pages import Caches
from dynbatch.kernels.c.runtime.library import reason
from dynbatch.memory import Pool
from tests.generation.companies import numbers, run, together
from tests.generation.tiny_models import MAKERS, VOCAB, logits_of, tiny

LENGTHS = (130, 64, 1, 80)
LONG = GenerationConfig(max_new_tokens=8)


def stepwise(model, sources, targets, rng, dtype="float32"):
    """The logits after rows that are read some at a time, and how many they are the last of."""
    continuation = Continuation(model)
    with db.Graph(dtype=dtype, grad=False) as graph:
        program = continuation.program(graph)
    pool = Pool()
    caches = Caches(program.slots, np.dtype(dtype), pool)
    histories = [History(caches) for _ in targets]
    if continuation.begins:
        with db.Graph(dtype=dtype, grad=False) as graph:
            histories = continuation.begin(graph, sources, caches)
    found = [[] for _ in targets]
    while any(h.length < len(t) for h, t in zip(histories, targets, strict=True)):
        rows, places = [], []
        for k, (history, target) in enumerate(zip(histories, targets, strict=True)):
            most = 8 if history.length else 90
            count = min(int(rng.integers(0, most)), len(target) - history.length)
            if count:
                history.reserve(count)
                ids = target[history.length : history.length + count]
                rows.append((ids, history))
                places.append(k)
        if rows:
            results = continuation.run(caches, rows)
            for k, result in zip(places, results, strict=True):
                found[k].append((histories[k].length - 1, result))
    continuation.forget_steps()
    for history in histories:
        history.close()
    assert caches.lent_bytes == 0 and pool.used_bytes == 0
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MAKERS)
def test_logits_from_a_cache_are_those_of_the_whole_sentence(name, dtype):
    rng = np.random.default_rng(1)
    model = tiny(name, scale=0.2).eval().astype(dtype)
    sources = [rng.integers(0, VOCAB, n) for n in (3, 70, 1, 20)]
    targets = [rng.integers(0, VOCAB, n) for n in LENGTHS]
    for k, rows in enumerate(stepwise(model, sources, targets, rng, dtype)):
        with db.Graph(dtype=dtype, grad=False) as graph:
            whole = logits_of(graph, model, sources[k], targets[k]).value
        for place, row in rows:
            # Where C runs, a row's bits do not depend on its company; a loop's are its own.
            if not reason() and name != "matrix states":
                assert row.tobytes() == whole[place].tobytes()
            else:
                np.testing.assert_allclose(row, whole[place], rtol=0, atol=1e-5)


def with_graphs(model):
    """A continuation, and the graphs that it makes."""
    continuation, graphs = Continuation(model), []
    make = continuation.graph

    def graph():
        graphs.append(make())
        return graphs[-1]

    continuation.graph = graph
    return continuation, graphs


def test_one_step_of_many_sentences_has_the_launches_of_one():
    model = tiny("gpt2").eval()
    continuation, graphs = with_graphs(model)
    with db.Graph(grad=False) as graph:
        program = continuation.program(graph)
    caches = Caches(program.slots, np.dtype("float32"), Pool())
    launches = []
    for lengths in [(1,), (1, 1, 1), (5, 1, 70, 2)]:
        histories = [History(caches) for _ in lengths]
        for history, length in zip(histories, lengths, strict=True):
            history.reserve(length)
        rows = [(np.arange(n) % VOCAB, h) for n, h in zip(lengths, histories, strict=True)]
        continuation.run(caches, rows)
        launches.append(graphs[-1].statistics.launches)
    assert launches[0] == launches[1] == launches[2]


@pytest.mark.parametrize("name", ["gpt2", "t5", "lstm", "writer"])
def test_a_step_is_prepared_once_and_runs_for_other_sentences_too(name, monkeypatch):
    rng, model = np.random.default_rng(0), tiny(name).eval()
    continuation, graphs = with_graphs(model)
    prepared, recorded = [], []
    prepare = StepMaker.prepare
    monkeypatch.setattr(StepMaker, "prepare", lambda *given: prepared.append(1) or prepare(*given))
    with continuation.graph() as graph:
        program = continuation.program(graph)
    pool = Pool()
    caches = Caches(program.slots, np.dtype("float32"), pool)
    histories = [History(caches) for _ in range(7)]
    if continuation.begins:
        with continuation.graph() as graph:
            sources = [rng.integers(0, VOCAB, 5) for _ in histories]
            histories = continuation.begin(graph, sources, caches)
    before, steps = len(prepared), 12
    for number in range(steps):
        chosen = rng.permutation(7)[: 3 if number % 2 else 5]
        for k in chosen:
            histories[k].reserve(1)
        continuation.run(caches, [(np.array([number]), histories[k]) for k in chosen])
        recorded.append(sum([len(graph) for graph in graphs]))
    assert len(prepared) - before == 2
    assert recorded[1:] == [recorded[1]] * (steps - 1)
    for history in histories:
        history.close()
    continuation.forget_steps()
    assert pool.used_bytes == 0


def test_logits_are_computed_for_last_rows_alone():
    model = tiny("gpt2").eval()
    with db.Graph(grad=False) as graph:
        program = Continuation(model).program(graph).program
    last = program.operators[program.results[0]]
    assert last.rows == (0, 1) and last.node.width == VOCAB
    rows_of_maps = [op.rows for op in program.operators if type(op.node).__name__ == "LinearMap"]
    # Of the last layer, what comes behind attention and the output; the rest for every row.
    assert rows_of_maps == [(1, 0)] * 5 + [(0, 1)] * 4


class NotCausal(models.Module):
    """Refused: attention sees rows that have not come."""

    def __init__(self):
        self.embedding, self.attention = models.Embedding(9, 8), models.MultiHeadAttention(8, 2)

    def __call__(self, graph, ids):
        return self.attention(self.embedding(graph, ids))


class Featured(NotCausal):
    """Refused: features of the pairs of all tokens."""

    def __init__(self):
        super().__init__()
        self.table = db.Parameter(np.zeros((2, 2), np.float32))

    def __call__(self, graph, ids):
        same = np.equal(ids[:, None], ids).astype(np.int64)
        bias = F.feature_bias(self.table, same)
        return self.attention(self.embedding(graph, ids), causal=True, bias=bias)


class Meant(NotCausal):
    """Refused: the mean of all rows."""

    def __call__(self, graph, ids):
        x = self.embedding(graph, ids)
        return x + F.expand(F.mean(x, dim=0), x.shape)


class Reversed(NotCausal):
    """Refused: rows in reverse."""

    def __call__(self, graph, ids):
        return F.reverse(self.embedding(graph, ids))


class Bidirectional(NotCausal):
    """Refused: half of the states are of a scan in reverse."""

    def __init__(self):
        self.embedding, self.lstm = models.Embedding(9, 8), models.LSTM(8, 4, bidirectional=True)

    def __call__(self, graph, ids):
        return self.lstm(self.embedding(graph, ids))


class LastRow(NotCausal):
    """Refused: logits after the last id alone."""

    def __call__(self, graph, ids):
        return self.embedding(graph, ids)[-1]


class Deciding(NotCausal):
    """Refused: it builds other operators for longer sentences."""

    def __call__(self, graph, ids):
        x = self.embedding(graph, ids)
        return F.tanh(x) if len(ids) > 10 else F.relu(x)


class Listed(NotCausal):
    """Refused: a list of what it computes."""

    def __call__(self, graph, ids):
        return [self.embedding(graph, ids)]


class Paired(NotCausal):
    """A tuple of its logits alone."""

    def __call__(self, graph, ids):
        return (self.embedding(graph, ids),)


def test_logits_in_a_tuple_are_those_in_none():
    model = Paired()
    paired = db.generate(model, [[1, 2]], max_new_tokens=3)
    assert paired == db.generate(model.embedding, [[1, 2]], max_new_tokens=3)


@pytest.mark.parametrize(
    ("maker", "fix"),
    [
        (Listed, "it returns a list, not a node or several"),
        (NotCausal, "fix:  causal=True, if it is attention"),
        (Featured, "fix:  a bias by distance"),
        (Meant, "fix:  write it without len"),
        (Reversed, "fix:  causal=True, if it is attention"),
        (Bidirectional, "fix:  leave reverse and bidirectional out"),
        (LastRow, r"logits are \(T, V\), a row for each id"),
        (Deciding, "fix:  write it without len"),
    ],
)
def test_what_cannot_go_on_is_refused(maker, fix):
    with db.Graph(grad=False) as graph, pytest.raises(GraphError, match=fix):
        Continuation(maker().eval()).program(graph)


@pytest.mark.parametrize("name", ["window", "lstm", "writer"])
def test_a_parameter_that_is_replaced_holds_from_the_next_step_on(name):
    def results(change):
        model = tiny(name)
        engine = Engine(model, LONG)
        added = [engine.add(prompt) for prompt in ([1, 2, 3], [4])]
        for _ in range(3):
            engine.step()
        change(model.output)
        list(engine.run())
        return numbers([engine.results(number) for number in added])

    def replace(output):
        output.weight = db.Parameter(-output.weight.numpy())

    replaced = results(replace)
    assert replaced == results(lambda output: output.weight.assign(-output.weight.numpy()))
    assert replaced != results(lambda _: None)


def test_a_part_of_other_widths_is_refused_while_an_engine_lives():
    model = tiny("window")
    engine = Engine(model, LONG)
    number = engine.add([1, 2, 3])
    for _ in range(3):
        engine.step()
    output, model.output = model.output, models.Linear(32, VOCAB + 1)
    (event,) = engine.step()
    assert isinstance(event.error, GraphError) and engine.caches.lent_bytes == 0
    with pytest.raises(GraphError, match="fix:  make an engine of the changed model"):
        engine.results(number)
    model.output = output
    assert run(engine, [[4]]) == together(model, LONG, [[4]])


class Misspelled(models.Linear):
    def logits(self, graph, ids):
        return self.embed(graph, ids)


@pytest.mark.parametrize(
    ("model", "error", "said"),
    [
        (Misspelled(2, 2), AttributeError, "has no attribute 'embed'"),
        (models.Module(), ArgumentError, r"it has no logits(.|\n)*logits\(graph, ids\)"),
    ],
)
def test_a_model_that_cannot_write_says_why_itself(model, error, said):
    with pytest.raises(error, match=said):
        db.generate(model, [[1, 2]])


class Scaled(models.Module):
    """A layer after a table that was made of NumPy's numbers, which are float64."""

    def __init__(self):
        self.table = db.Parameter(np.ones((VOCAB, 4)))
        self.output = models.Linear(4, VOCAB, rng=0)

    def __call__(self, graph, ids):
        return self.output(F.lookup(graph, self.table, ids))


def test_a_model_of_float64_numbers_that_no_graph_has_read_writes_in_float32():
    model = Scaled()
    first, second = [db.generate(model, [[1, 2]], max_new_tokens=3) for _ in range(2)]
    assert first == second and model.table.dtype == np.float32
