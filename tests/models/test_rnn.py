"""LSTM and GRU: PyTorch's values, states and gradients; batching; how few nodes they make."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.testing import check_batching, check_gradient
from tests.marks import exhaustive

LENGTHS = (5, 1, 9, 2)
SHAPES = [(kind, layers, both) for kind in ("LSTM", "GRU") for layers in (1, 3) for both in (0, 1)]
INPUT, HIDDEN = 4, 6


def build(kind, layers, both, **options):
    return getattr(models, kind)(INPUT, HIDDEN, layers, bool(both), **options)


def parts(state):
    return state if isinstance(state, tuple) else (state,)


def drawn_states(kind, count, rng):
    """For each layer and direction the parts of a state, (H,) each."""
    number = 2 if kind == "LSTM" else 1
    return rng.standard_normal((count, number, HIDDEN)).astype(np.float32)


def as_init(kind, nodes):
    return [tuple(of) if kind == "LSTM" else of[0] for of in nodes]


@pytest.mark.parametrize("starts", ["from zeros", "from given states"])
@pytest.mark.parametrize(("kind", "layers", "both"), SHAPES)
def test_values_states_and_gradients_equal_torch(kind, layers, both, starts):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    theirs = getattr(torch.nn, kind)(INPUT, HIDDEN, layers, bidirectional=bool(both))
    ours = build(kind, layers, both)
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    rng = np.random.default_rng(0)
    count = layers * (1 + both)
    sentences = [rng.standard_normal((length, INPUT)).astype(np.float32) for length in LENGTHS]
    states = [drawn_states(kind, count, rng) for _ in LENGTHS]
    weights = [rng.standard_normal((n, (1 + both) * HIDDEN)).astype(np.float32) for n in LENGTHS]
    last_weights = [drawn_states(kind, count, rng) for _ in LENGTHS]

    with db.Graph() as graph:
        xs = [F.input(graph, x).keep() for x in sentences]
        inits = [[[F.input(graph, v).keep() for v in one] for one in of] for of in states]
        losses, outputs, last_states = [], [], []
        for k, x in enumerate(xs):
            init = as_init(kind, inits[k]) if starts == "from given states" else None
            ys, last = ours(x, init, return_state=True)
            outputs.append(ys)
            flat = F.stack([part for state in last for part in parts(state)])
            last_states.append(flat)
            losses.append(F.sum(ys * F.input(graph, weights[k])))
            rows = last_weights[k].reshape(-1, HIDDEN)
            losses.append(F.sum(flat * F.input(graph, rows)))
        loss = F.sum(losses)
        values = [y.value for y in outputs], [flat.value for flat in last_states]
        graph.backward(loss)
        gradients = [x.gradient for x in xs]
        given = starts == "from given states"
        state_gradients = (
            [[[v.gradient for v in one] for one in of] for of in inits] if given else []
        )

    total = torch.tensor(0.0)
    tensors = [torch.tensor(x, requires_grad=True) for x in sentences]
    starting = [torch.tensor(of.swapaxes(0, 1).copy(), requires_grad=True) for of in states]
    for k, x in enumerate(tensors):
        begin = None
        if given:
            begin = tuple(starting[k]) if kind == "LSTM" else starting[k][0]
        ys, last = theirs(x, begin)
        last = torch.stack(parts(last))  # (parts, count, H)
        assert np.allclose(values[0][k], ys.detach(), atol=1e-5)
        expected = last.detach().numpy().swapaxes(0, 1).reshape(-1, HIDDEN)
        assert np.allclose(values[1][k], expected, atol=1e-5)
        total = total + (ys * torch.tensor(weights[k])).sum()
        total = total + (last * torch.tensor(last_weights[k].swapaxes(0, 1).copy())).sum()
    total.backward()
    for found, x in zip(gradients, tensors, strict=True):
        assert np.allclose(found, x.grad, atol=1e-5)
    for found, start in zip(state_gradients, starting, strict=False):
        assert np.allclose(np.array(found).swapaxes(0, 1), start.grad, atol=1e-5)
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert np.allclose(parameter.grad, expected[name].grad, rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize(("kind", "layers", "both"), [("LSTM", 2, 1), exhaustive("GRU", 2, 1)])
@pytest.mark.parametrize("most", [3, exhaustive(20)])
def test_gradients_equal_differences(kind, layers, both, most):
    model = build(kind, layers, both, rng=0)

    def outputs_and_states(graph, x, *starts):
        init = [tuple(starts)] * 4 if kind == "LSTM" else list(starts) * 4
        ys, last = model(x, init, return_state=True)
        return [ys, *[part for state in last for part in parts(state)]]

    shapes = [(3, INPUT), *[(HIDDEN,)] * (2 if kind == "LSTM" else 1)]
    check_gradient(outputs_and_states, shapes=shapes, parameters=model, most=most)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_mini_batch_equals_its_sentences_alone(kind):
    model = build(kind, 2, 1, rng=0)

    def outputs_and_states(graph, x):
        ys, last = model(x, return_state=True)
        return [ys, *[part for state in last for part in parts(state)]]

    shapes = [[(length, INPUT)] for length in (4, 0, 1, 11)]
    check_batching(outputs_and_states, shapes=shapes, parameters=model)


def test_an_empty_sentence_gives_no_outputs_and_its_initial_state():
    model = models.GRU(INPUT, HIDDEN)
    with db.Graph() as graph:
        start = F.input(graph, np.arange(HIDDEN))
        ys, (h,) = model(F.constant(graph, 0.0, (0, INPUT)), [start], return_state=True)
        assert ys.value.shape == (0, HIDDEN)
        assert h.value.tolist() == list(range(HIDDEN))


def test_a_sentence_of_a_bidirectional_tagger_is_six_nodes():
    embed, lstm = models.Embedding(10, INPUT), models.LSTM(INPUT, HIDDEN, bidirectional=True)
    project = models.Linear(2 * HIDDEN, 3)
    with db.Graph() as graph:
        F.cross_entropy(project(lstm(embed(graph, [1, 2, 3]))), [0, 1, 2])
        # lookup, two scans, concat, linear (folded into the next), cross-entropy
        assert len(graph) == 6


def test_two_directions_and_all_sentences_run_in_one_batch_each():
    lstm = models.LSTM(INPUT, HIDDEN, layers=2, bidirectional=True)
    with db.Graph() as graph:
        outputs = [lstm(F.constant(graph, 1.0, (length, INPUT))) for length in LENGTHS]
        graph.forward()
        assert len(outputs) == 4
        # inputs; for each layer the scans of a direction, and what joins them
        assert graph.statistics.batches == 1 + 2 * 3


def test_dropout_lies_between_layers_and_only_while_training():
    lstm = models.LSTM(INPUT, HIDDEN, layers=2, dropout=1.0, rng=0)
    with db.Graph() as graph:
        one, other = [F.input(graph, np.full((3, INPUT), v)) for v in (1.0, 2.0)]
        training = [lstm(one).value, lstm(other).value]
        lstm.eval()
        assert not np.allclose(lstm(one).value, lstm(other).value)
    # All that the second layer sees is dropped; its own outputs are not.
    assert np.array_equal(*training) and np.abs(training[0]).max() > 0


def test_a_state_dict_has_the_names_and_shapes_of_torch():
    shapes = {name: p.shape for name, p in models.GRU(4, 6, 2, True).named_parameters()}
    assert shapes["weight_ih_l0_reverse"] == (18, 4)
    assert shapes["weight_ih_l1"] == (18, 12)
    assert shapes["weight_hh_l1_reverse"] == (18, 6)
    assert shapes["bias_hh_l1"] == (18,)
    assert len(shapes) == 16


def test_initial_values_are_uniform_within_one_over_the_root_of_the_hidden_size():
    for _, parameter in models.LSTM(8, 25, 2, True, rng=1).named_parameters():
        assert 0.15 < np.abs(parameter.value).max() <= 0.2


def test_another_number_of_initial_states_is_refused():
    lstm = models.LSTM(INPUT, HIDDEN, layers=2)
    with db.Graph() as graph:
        h = F.constant(graph, 0.0, (HIDDEN,))
        with pytest.raises(ShapeError, match="1 initial states") as caught:
            lstm(F.constant(graph, 0.0, (3, INPUT)), [(h, h)])
    assert "one for each layer and direction, here 2" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "fix"),
    [(models.GRU, "init=[state], each of width"), (models.LSTM, "init=[state], each (h, c) of")],
)
def test_a_state_alone_is_told_to_stand_in_a_list(kind, fix):
    with db.Graph() as graph, pytest.raises(ShapeError) as caught:
        kind(INPUT, HIDDEN)(F.constant(graph, 0.0, (3, INPUT)), F.constant(graph, 0.0, HIDDEN))
    assert fix in str(caught.value)


def test_an_initial_state_of_another_width_is_refused():
    gru = models.GRU(INPUT, HIDDEN)
    with db.Graph() as graph, pytest.raises(ShapeError):
        gru(F.constant(graph, 0.0, (3, INPUT)), [F.constant(graph, 0.0, (HIDDEN + 1,))])


def test_a_model_in_float64_runs_in_float64():
    lstm = models.LSTM(INPUT, HIDDEN).astype(np.float64)
    with db.Graph(dtype="float64") as graph:
        assert lstm(F.constant(graph, 1.0, (2, INPUT))).value.dtype == np.float64
