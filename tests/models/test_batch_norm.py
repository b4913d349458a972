"""Batch norm: PyTorch's outputs, gradients and running statistics, once a run, and errors."""

import copy

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, NumericError, ShapeError
from tests.torch_parity import import_torch

SAME_SIZED = [(4, 3, 5)] * 6
IMAGES = [(4, 3, 5), (1, 2, 5), (7, 7, 5), (2, 9, 5)]
SENTENCES = [(4, 5), (1, 5), (0, 5), (9, 5)]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def arrays_of(shapes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [(3 * rng.standard_normal(shape) + 2).astype(dtype) for shape in shapes]


def pair(torch, dtype, **settings):
    """Our layer and PyTorch's, with one weight and bias."""
    theirs = torch.nn.BatchNorm1d(5, **settings).to(getattr(torch, dtype))
    if theirs.affine:
        torch.nn.init.normal_(theirs.weight)
        torch.nn.init.normal_(theirs.bias)
    ours = models.BatchNorm(5, **settings).astype(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def ours_of(norm, arrays, dtype, probes):
    with db.Graph(dtype=dtype) as graph:
        xs = [F.input(graph, x).keep() for x in arrays]
        ys = norm(graph, xs)
        values = graph.values(ys)
    with db.Graph(dtype=dtype) as graph:
        norm = copy.deepcopy(norm)
        xs = [F.input(graph, x).keep() for x in arrays]
        graph.backward(norm(graph, xs), gradient=probes)
        gradients = [x.gradient for x in xs]
    return values, gradients, [p.grad for p in norm.parameters() if not p.frozen]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shapes", [SAME_SIZED, IMAGES, SENTENCES, [(5,)] * 7])
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}],
)
def test_values_gradients_and_running_statistics_are_torchs(settings, shapes, dtype):
    torch = import_torch()
    ours, theirs = pair(torch, dtype, **settings)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    for turn, training in enumerate((True, True, False)):
        arrays = arrays_of(shapes, dtype, seed=turn)
        probes = arrays_of(shapes, dtype, seed=turn + 10)
        ours.train(training), theirs.train(training)
        values, gradients, of_parameters = ours_of(ours, arrays, dtype, probes)
        rows = torch.tensor(np.concatenate([x.reshape(-1, 5) for x in arrays]), requires_grad=True)
        y = theirs(rows)
        theirs.zero_grad()
        y.backward(torch.tensor(np.concatenate([p.reshape(-1, 5) for p in probes])))
        found = np.concatenate([value.reshape(-1, 5) for value in values])
        np.testing.assert_allclose(found, y.detach().numpy(), **close)
        found = np.concatenate([gradient.reshape(-1, 5) for gradient in gradients])
        np.testing.assert_allclose(found, rows.grad.numpy(), **close)
        for found, parameter in zip(of_parameters, theirs.parameters(), strict=True):
            scale = np.abs(parameter.grad.numpy()).max() + 1
            np.testing.assert_allclose(found / scale, parameter.grad.numpy() / scale, **close)
        state = theirs.state_dict()
        assert ours.state_dict().keys() == state.keys()
        for name, value in ours.state_dict().items():
            np.testing.assert_allclose(value, state[name].numpy().reshape(value.shape), **close)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_images_of_one_size_give_what_batch_norm_2d_gives(dtype):
    torch = import_torch()
    ours, theirs = models.BatchNorm(5).astype(dtype), torch.nn.BatchNorm2d(5)
    theirs.to(getattr(torch, dtype))
    arrays = arrays_of(SAME_SIZED, dtype)
    with db.Graph(dtype=dtype) as graph:
        values = graph.values(ours(graph, [F.input(graph, x) for x in arrays]))
    expected = theirs(torch.tensor(np.stack(arrays)).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(np.stack(values), expected.detach().numpy(), **close)
    np.testing.assert_allclose(ours.running_var.value, theirs.running_var.numpy(), **close)


def test_our_state_loads_into_torch():
    torch = import_torch()
    ours, theirs = models.BatchNorm(5), torch.nn.BatchNorm1d(5)
    with db.Graph() as graph:
        graph.values(ours(graph, [F.input(graph, x) for x in arrays_of(SENTENCES, np.float32)]))
    theirs.load_state_dict({k: torch.tensor(v) for k, v in ours.state_dict().items()})
    assert int(theirs.num_batches_tracked) == 1
    assert np.array_equal(theirs.running_mean.numpy(), ours.running_mean.value)


def test_building_a_graph_changes_nothing_and_a_run_once():
    norm = models.BatchNorm(5)
    with db.Graph() as graph:
        ys = norm(graph, [F.input(graph, x) for x in arrays_of(IMAGES, np.float32)])
        graph.estimate(F.sum([F.sum(y) for y in ys]))
        assert norm.num_batches_tracked.value[0] == 0
        graph.forward()
        once = norm.state_dict()
        graph.backward(F.sum([F.sum(y * y) for y in ys]))
        assert norm.num_batches_tracked.value[0] == 1
        assert all(np.array_equal(once[name], value) for name, value in norm.state_dict().items())


@pytest.mark.parametrize("settings", [{"check": True}, {"guard": True}])
def test_runs_that_compute_values_twice_count_once(settings):
    norm, plain = models.BatchNorm(5), models.BatchNorm(5)
    for one, given in ((norm, settings), (plain, {})):
        with db.Graph(**given) as graph:
            ys = one(graph, [F.input(graph, x) for x in arrays_of(IMAGES, np.float32)])
            graph.backward(F.sum([F.sum(y * y) for y in ys]))
    assert norm.num_batches_tracked.value[0] == 1
    assert np.array_equal(norm.running_mean.value, plain.running_mean.value)


def test_a_memory_limit_leaves_statistics_and_gradients_as_they_are():
    def run(limit_of=None):
        first, norm = models.Linear(5, 5, rng=0), models.BatchNorm(5)
        with db.Graph() as graph:
            xs = [F.input(graph, x) for x in arrays_of([(40, 5)] * 8, np.float32)]
            ys = norm(graph, [F.tanh(first(x)) for x in xs])
            loss = F.sum([F.sum(F.tanh(F.tanh(F.tanh(y)))) for y in ys])
            limit = limit_of and limit_of(graph.estimate(loss).peak_bytes)
            graph.backward(loss, memory_limit=limit)
            saving = graph.memory_use.saving
        return norm.state_dict(), first.weight.grad, saving

    state, gradient, _ = run()
    limited, limited_gradient, saving = run(lambda peak: peak * 9 // 10)
    assert saving
    assert limited["num_batches_tracked"][0] == 1
    for name, value in state.items():
        np.testing.assert_allclose(limited[name], value, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(limited_gradient, gradient, rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_not_finite_leaves_the_running_statistics():
    norm = models.BatchNorm(2)
    with db.Graph() as graph:
        (y,) = norm(graph, [F.input(graph, np.full((3, 2), np.nan, np.float32))])
        with pytest.raises(NumericError):
            graph.backward(F.sum(y))
    assert norm.running_mean.value.tolist() == [0, 0]
    assert norm.num_batches_tracked.value[0] == 0


def test_in_evaluation_no_sentence_sees_another_and_nothing_is_tracked():
    norm = models.BatchNorm(5).eval()
    norm.running_mean.assign(np.arange(5.0))
    arrays = arrays_of(IMAGES, np.float32)
    with db.Graph() as graph:
        together = graph.values(norm(graph, [F.input(graph, x) for x in arrays]))
        alone = [norm(graph, [F.input(graph, x)])[0].value for x in arrays]
    for left, right in zip(together, alone, strict=True):
        assert np.array_equal(left, right)
    assert norm.num_batches_tracked.value[0] == 0


def test_another_sentence_changes_the_others_in_training():
    norm = models.BatchNorm(5)
    arrays = arrays_of(IMAGES, np.float32)
    with db.Graph() as graph:
        xs = [F.input(graph, x) for x in arrays]
        assert not np.allclose(norm(graph, xs)[0].value, norm(graph, xs[:2])[0].value)


def test_many_sentences_take_as_many_launches_as_two():
    def launches(count, training):
        norm = models.BatchNorm(5).train(training)
        with db.Graph() as graph:
            xs = [F.input(graph, np.ones((2 + k % 3, 4, 5), np.float32)) for k in range(count)]
            for y in norm(graph, xs):
                y.keep()
            graph.forward()
            return graph.statistics.launches

    assert launches(12, True) == launches(2, True)
    assert launches(12, False) == launches(2, False)


def test_an_image_is_one_node_of_a_norm():
    def nodes(count):
        with db.Graph() as graph:
            xs = [F.input(graph, np.ones((2 + k, 4, 5), np.float32)) for k in range(count)]
            _ = [y.keep() for y in models.BatchNorm(5)(graph, xs)]
            graph.forward()
            return graph.statistics.nodes - count

    assert nodes(12) - nodes(2) == 10


def test_gradients_of_gradients_of_images_are_those_of_their_rows():
    arrays = arrays_of(IMAGES, "float64")

    def second(*xs):
        norm = models.BatchNorm(5).astype("float64")

        def bent(x):
            ys = norm(x.graph, [x, *[F.input(x.graph, other) for other in xs[1:]]])
            return F.sum([F.sum(F.reshape(F.tanh(y) * y, (-1,))) for y in ys])

        with db.Graph(dtype="float64") as graph:
            x = F.input(graph, xs[0])
            return db.hvp(bent)(x, F.input(graph, np.cos(xs[0]))).value.copy()

    products = second(*arrays)
    assert np.array_equal(products.reshape(-1, 5), second(*[x.reshape(-1, 5) for x in arrays]))
    assert np.abs(products).max() > 1e-3


def test_optimizers_and_unfreezing_leave_buffers_alone():
    norm = models.BatchNorm(5)
    for parameter in norm.parameters():
        parameter.frozen = False
    assert norm.num_parameters() == 10
    norm.eval()
    with db.Graph() as graph:
        (y,) = norm(graph, [F.input(graph, np.ones((2, 5), np.float32))])
        graph.backward(F.sum(y * y))
    before = norm.running_mean.numpy()
    optim.SGD(norm, lr=0.1).step()
    assert norm.running_mean.grad is None
    assert np.array_equal(norm.running_mean.value, before)
    assert norm.bias.value[0] != 0


def test_wrong_calls_say_what_to_write():
    norm = models.BatchNorm(5)
    with db.Graph() as graph:
        x = F.input(graph, np.ones((1, 5), np.float32))
        with pytest.raises(ArgumentError, match="the list of all sentences"):
            norm(graph, x)
        with pytest.raises(ArgumentError, match="1 rows in all, while training"):
            norm(graph, [x])
        with pytest.raises(ShapeError, match=r"x\.shape\[-1\] == 5"):
            norm(graph, [F.input(graph, np.ones((2, 4), np.float32))])
        assert norm(graph, []) == []

        @db.cell
        def step(x, state, params):
            return norm(x.graph, [F.reshape(x, (1, 5))] * 2)[0], state

        with pytest.raises(ArgumentError, match="which sees one sentence"):
            db.scan(step, x, F.constant(graph, 0.0, (5,)))[0].value  # noqa: B018


def test_a_block_that_calls_it_runs_without_a_program():
    norm = models.BatchNorm(5)

    @db.block
    def layer(graph, x):
        return norm(graph, [x, x])[0]

    with db.Graph() as graph:
        x = F.input(graph, arrays_of([(4, 5)], np.float32)[0])
        assert np.array_equal(layer(graph, x).value, norm(graph, [x, x])[0].value)
    assert norm.num_batches_tracked.value[0] == 2
