"""Steps of a closed graph that run again in the next one like it: as if they were new."""

import gc
import weakref

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.execution import executor
from dynbatch.batcher.execution.recorded_stages import RecordedStages
from dynbatch.batcher.planning import resting_run
from dynbatch.batcher.planning.resting_run import RestingRun
from dynbatch.errors import NumericError
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import parallel
from dynbatch.memory import Pool

TOKENS = 9
REPORTED = (
    "kind", "planned", "nodes", "rows", "width", "copied_bytes", "launches", "batches",
    "lower_bound", "flops", "flops_backward", "padded_rows", "bytes", "products", "node_names",
)  # fmt: skip


def gpt(dropout=0.0):
    return models.GPT(TOKENS, longest=8, width=8, layers=2, heads=2, dropout=dropout)


def loss_of(model, graph, sentences, scale=1.0):
    return F.sum([model.loss(graph, ids) for ids in sentences]) * scale


@pytest.fixture
def runs(monkeypatch):
    """The number of runs that were bound to new nodes, in a list."""
    count, of = [0], RestingRun.of

    def counted(self, nodes):
        count[0] += 1
        return of(self, nodes)

    monkeypatch.setattr(RestingRun, "of", counted)
    monkeypatch.setattr(resting_run, "_seen", type(resting_run._seen)(64))
    return count


def batches(count, sentences=3, length=6):
    return np.random.default_rng(0).integers(0, TOKENS, (count, sentences, length))


def trained(model, sentences, change=lambda number, model: None):
    """Losses, counters and gradients of a graph for each mini-batch, and what each reports."""
    seen = []
    for number, batch in enumerate(sentences):
        change(number, model)
        with db.Graph(seed=number) as graph:
            loss = loss_of(model, graph, batch)
            graph.backward(loss)
        s = graph.statistics
        counts = [s.nodes, s.batches, s.launches, s.copied_bytes, s.activation_bytes, s.peak_bytes]
        rows = [[getattr(row, name) for name in REPORTED] for row in graph._record().rows]
        gradients = [
            None if p.grad is None else getattr(p.grad, "values", p.grad).tobytes()
            for p in model.parameters()
        ]
        seen.append((loss.value.tobytes(), counts, rows, gradients))
        for p in model.parameters():
            p.zero_grad()
    return seen


def never(*_):
    return None


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_steps_that_run_again_do_what_new_ones_do(runs, monkeypatch, dropout):
    sentences = batches(5)
    again = trained(gpt(dropout), sentences)
    assert runs == [3]  # the first is seen, the second is kept
    monkeypatch.setattr(executor, "key_of", never)
    assert again == trained(gpt(dropout), sentences)


def another_array(number, model):
    if number == 5:
        weight = model.encoder.norm.weight
        weight.value = weight.value[::-1].copy()


def a_weight_of_zero(number, model):
    """Normals do not follow from the output, from the fifth step on."""
    if number >= 5:
        model.encoder.norm.weight.value[:3] = 0


def other_threads(number, model):
    db.set_num_threads(2 if number == 5 else 1)


def a_buffer_of_its_own(number, model):
    if number == 5:
        model.encoder.norm.weight.keep_gradient_in(None)


def as_before(number, model):
    model.encoder.norm.weight.value[0] = number


@pytest.mark.parametrize(
    ("change", "count"),
    [(as_before, 4), (another_array, 3), (a_weight_of_zero, 3), (other_threads, 3),
     (a_buffer_of_its_own, 3)],
)  # fmt: skip
def test_calls_of_c_are_made_again_where_all_lies_as_it_lay(runs, monkeypatch, change, count):
    again, recorded = [], RecordedStages._again
    monkeypatch.setattr(RecordedStages, "_again", lambda *args: again.append(1) or recorded(*args))
    sentences, threads = batches(7), parallel.num_threads()
    result = trained(gpt(), sentences, change)
    monkeypatch.setattr(executor, "key_of", never)
    assert result == trained(gpt(), sentences, change)
    db.set_num_threads(threads)
    assert len(again) == (0 if library.reason() else count)


def frozen(number, model):
    model.tokens.weight.frozen = number == 3


def with_gradient(number, model):
    if number == 3:
        weight = model.encoder.norm.weight
        weight.grad = np.ones_like(weight.value)


@pytest.mark.parametrize("change", [frozen, with_gradient])
def test_parameters_in_another_state_are_planned_anew(runs, monkeypatch, change):
    sentences = batches(6)
    again = trained(gpt(), sentences, change)
    assert runs[0] < 4
    monkeypatch.setattr(executor, "key_of", never)
    assert again == trained(gpt(), sentences, change)


def test_other_lengths_are_planned_anew(runs, monkeypatch):
    sentences = [*batches(3), *batches(1, length=5), *batches(1)]
    again = trained(gpt(), sentences)
    assert runs == [2]
    monkeypatch.setattr(executor, "key_of", never)
    assert again == trained(gpt(), sentences)


def test_graphs_that_are_open_at_once_have_steps_of_their_own(runs):
    model = gpt()
    expected = [one[0] for one in trained(gpt(), batches(6))]
    trained(model, batches(2))
    for first, second in ((2, 3), (4, 5)):
        with db.Graph(seed=first) as a, db.Graph(seed=second) as b:
            losses = [loss_of(model, g, batches(6)[n]) for g, n in ((a, first), (b, second))]
            for graph, loss in zip((a, b), losses, strict=True):
                graph.backward(loss)
                for p in model.parameters():
                    p.zero_grad()
        assert [loss.value.tobytes() for loss in losses] == [expected[first], expected[second]]
    assert runs[0] > 3


def test_a_run_that_fails_leaves_the_next_ones_right(runs):
    model, sentences = gpt(), batches(6)
    expected = [one[0] for one in trained(gpt(), sentences)]
    trained(model, sentences[:3])
    with db.Graph() as graph:
        bad = loss_of(model, graph, sentences[3])
        model.encoder.norm.weight.value[...] *= np.float32(np.inf)
        with pytest.raises(NumericError):
            graph.backward(bad)
    assert all(p.grad is None for p in model.parameters())
    model.encoder.norm.weight.assign(np.ones(8))
    assert [one[0] for one in trained(model, sentences)] == expected


def test_kept_values_and_gradients_of_closed_graphs_stay(runs):
    model, seen = gpt(), []
    for batch in batches(4):
        with db.Graph(seed=0) as graph:
            features = [model.features(graph, ids).keep() for ids in batch]
            graph.backward(F.sum([F.sum(x * x) for x in features]))
        seen.append((features, [x.value for x in features], [x.gradient for x in features]))
    assert runs == [2]
    for features, values, gradients in seen:
        for x, value, gradient in zip(features, values, gradients, strict=True):
            assert np.array_equal(x.value, value) and np.array_equal(x.gradient, gradient)
            assert np.array_equal(gradient, 2 * value)


def test_values_read_after_backward_and_a_second_backward_need_no_rest(runs):
    model = gpt()
    for batch in batches(4):
        with db.Graph(seed=0) as graph:
            loss = loss_of(model, graph, batch)
            graph.backward(loss)
            graph.backward(loss_of(model, graph, batch[:1]))
    assert runs == [0]


@pytest.mark.usefixtures("young_heap")
def test_nothing_of_a_closed_graph_is_kept_alive(runs):
    model, pool = gpt(), Pool()
    for batch in batches(4):
        with db.Graph(pool=pool) as graph:
            loss = loss_of(model, graph, batch)
            graph.backward(loss)
        gone = [weakref.ref(graph), weakref.ref(loss), weakref.ref(loss.inputs[0])]
        del graph, loss
        gc.collect()
        assert [one() for one in gone] == [None, None, None]
        assert pool.used_bytes == 0
    assert runs == [2]


@pytest.mark.usefixtures("young_heap")
def test_a_closed_graph_keeps_no_recorded_calls_alive(runs, monkeypatch):
    recordings, make = [], RecordedStages.__init__

    def noted(self, *args):
        recordings.append(weakref.ref(self))
        make(self, *args)

    monkeypatch.setattr(RecordedStages, "__init__", noted)
    model, graphs = gpt(), []
    for batch in batches(4):
        with db.Graph() as graph:
            graph.backward(loss_of(model, graph, batch))
        graphs.append(graph)
    call_of(model, batch[0]).resting.clear()
    gc.collect()
    assert [one() for one in recordings] == [None] * (not library.reason())


def test_a_program_keeps_few_runs(runs):
    model = gpt()
    for length in range(3, 9):
        trained(model, batches(2, length=length))
    (call,) = {call_of(model, ids) for ids in batches(1)[0]}
    assert len(call.resting) == resting_run.MOST


def call_of(model, ids):
    with db.Graph() as graph:
        return model.features(graph, ids).program
