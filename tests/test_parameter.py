"""Copies of parameters are parameters of their own."""

import copy
import pickle
import threading

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.errors import DtypeError
from dynbatch.kernels.runtime import transfer


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_model_and_its_copy_keep_apart_in_one_graph(copied):
    model = models.Linear(3, 2)
    other = copied(model)
    assert np.array_equal(other.weight.value, model.weight.value)
    for parameter in other.parameters():
        parameter.value[...] = 0

    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (2, 3))
        found, zeros = model(x).value, other(x).value
    assert found.any() and not zeros.any()
    both = optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    assert len(list(both.named_parameters())) == 4


def test_a_copy_keeps_name_gradient_and_frozen_and_ties():
    model = models.Linear(3, 2)
    model.again = model.weight
    model.bias.frozen = True
    model.weight.grad = np.ones((2, 3), np.float32)
    other = copy.deepcopy(model)
    assert other.again is other.weight and other.bias.frozen
    assert other.weight.name == model.weight.name
    assert np.array_equal(other.weight.grad, model.weight.grad)
    assert other.weight.grad is not model.weight.grad


# Devices ------------------------------------------------------------------------------------------


def matrix(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def test_a_parameter_and_its_gradient_move_to_a_device_and_back(cuda):
    value = matrix(3, 2)
    parameter = db.Parameter(value, name="w")
    parameter.grad = value + 1
    buffer = parameter.gradient_buffer()
    assert parameter.to("cuda") is parameter and parameter.device.is_cuda
    assert not isinstance(parameter.value, np.ndarray) and "cuda" in repr(parameter)
    assert not isinstance(parameter.grad, np.ndarray)
    assert parameter.gradient_buffer() is not buffer
    kept = parameter.value
    assert parameter.to("cuda").value is kept
    assert np.array_equal(parameter.numpy(), value)
    parameter.to("cpu")
    assert np.array_equal(parameter.value, value) and np.array_equal(parameter.grad, value + 1)


def test_a_parameter_of_a_device_array_keeps_it(cuda):
    array = cuda.asarray(matrix(2, 3))
    parameter = db.Parameter(array)
    assert parameter.value is array and parameter.shape == (2, 3)
    turned = db.Parameter(array.T)
    assert turned.value.flags.c_contiguous and np.array_equal(turned.numpy(), matrix(2, 3).T)
    with pytest.raises(db.errors.DtypeError, match="int32"):
        db.Parameter(cuda.asarray(np.zeros(3, np.int32)))


def test_numpy_gives_a_copy(device):
    parameter = db.Parameter(matrix(2, 2)).to(device)
    parameter.numpy()[...] = 7
    assert np.array_equal(parameter.numpy(), matrix(2, 2))


def test_a_copy_of_a_model_is_on_its_device(cuda):
    model = models.Linear(3, 2).to("cuda")
    model.weight.grad = cuda.asarray(np.ones((2, 3), np.float32))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.weight.device.is_cuda and other.weight.value is not model.weight.value
        assert np.array_equal(other.weight.numpy(), model.weight.numpy())
        assert other.weight.grad.get().tolist() == [[1] * 3] * 2


def test_a_model_moves_and_its_state_stays_on_the_host(device):
    model = models.LSTM(3, 4)
    before = model.state_dict()
    assert model.to(device) is model
    assert all(p.device.name == device for p in model.parameters())
    after = model.state_dict()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    arrays = [p.value for p in model.parameters()]
    model.load_state_dict({name: value + 1 for name, value in before.items()})
    assert all(p.value is array for p, array in zip(model.parameters(), arrays, strict=True))
    after = model.state_dict()
    assert all(np.array_equal(after[name], value + 1) for name, value in before.items())


def test_a_model_changes_its_dtype_anywhere(device):
    model = models.Linear(3, 2).to(device)
    before = model.state_dict()
    model.astype("float64")
    assert model.weight.dtype == np.float64 and model.weight.device.name == device
    assert all(np.array_equal(model.state_dict()[name], value) for name, value in before.items())


def test_an_unknown_device_moves_nothing():
    with pytest.raises(db.errors.BackendError, match="'gpu' is unknown"):
        models.Linear(3, 2).to("gpu")


WAYS = {
    "linear": lambda graph, model: model(F.constant(graph, 1.0, (2, 3))),
    "parameter": lambda graph, model: F.parameter(graph, model.bias),
    "lookup": lambda graph, model: F.lookup(graph, model.weight, [0]),
    "scan": lambda graph, model: db.scan(step, F.constant(graph, 1.0, (2, 3)), 2, model),
}


@db.cell
def step(x, state, params):
    state = state + F.linear(x, params.weight)
    return state, state


@pytest.mark.parametrize("what", WAYS)
def test_a_parameter_of_another_device_is_refused(cuda, what):
    model = models.Linear(3, 2)
    with db.Graph() as graph:
        WAYS[what](graph, model)
    for theirs, own in (("cuda", "cpu"), ("cpu", "cuda")):
        model.to(own)
        with db.Graph(device=theirs) as graph, pytest.raises(db.errors.BackendError) as caught:
            WAYS[what](graph, model)
        name = "bias" if what == "parameter" else "weight"
        for words in (
            f"{what}: parameter '{name}' is on the {own}, the graph on {theirs}",
            f"fix:  model.to('{theirs}')",
            "test_parameter.py",
        ):
            assert words in str(caught.value)


@pytest.mark.parametrize("shape", [(17, 0), (0,)])
def test_a_parameter_without_columns_is_refused_where_it_is_made(shape):
    with pytest.raises(db.errors.ShapeError, match=r"is 0 where\n        heads > width") as caught:
        db.Parameter(np.zeros(shape, np.float32), name="table")
    assert "Parameter 'table'" in str(caught.value)
    assert f"made at {__file__}:" in str(caught.value)
    assert db.Parameter(np.zeros((0, 3), np.float32)).shape == (0, 3)


def reading(parameter, dtype):
    """Value and gradient after a step in a graph of this dtype."""
    with db.Graph(dtype=dtype) as graph:
        x = F.input(graph, np.ones(parameter.shape))
        graph.backward(F.sum(x * F.parameter(graph, parameter)))
    return parameter.dtype, parameter.grad.dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "numbers",
    [np.ones((2, 3)), np.ones((2, 3), np.float32), [[1.0, 2.0]], np.ones((2, 6))[:, ::2]],
    ids=["float64", "float32", "a list", "a view"],
)
def test_numbers_take_the_dtype_of_the_first_graph_as_an_input_does(numbers, dtype):
    parameter = db.Parameter(numbers)
    assert reading(parameter, dtype) == (np.dtype(dtype),) * 2
    np.testing.assert_array_equal(parameter.value, numbers)
    other = "float64" if dtype == "float32" else "float32"
    parameter.zero_grad()
    for _ in range(2):  # it keeps its dtype
        with pytest.raises(DtypeError, match=f"is {dtype}, the graph {other}"):
            reading(parameter, other)
    assert parameter.dtype == dtype


def test_an_array_of_the_graph_s_dtype_is_kept_and_another_copied():
    for dtype, is_kept in (("float64", True), ("float32", False)):
        array = np.ones((2, 3))
        parameter = db.Parameter(array)
        reading(parameter, dtype)
        assert np.shares_memory(parameter.value, array) == is_kept


def test_what_something_else_shares_or_sets_keeps_its_dtype():
    exported, converted = db.Parameter(np.ones(3)), models.Linear(2, 3)
    np.from_dlpack(exported)
    converted.astype("float64")
    with_gradient = db.Parameter(np.ones(3))
    with_gradient.grad = np.ones(3)
    for parameter in (exported, converted.bias, with_gradient):
        with pytest.raises(DtypeError, match="is float64, the graph float32"):
            reading(parameter, "float32")
        assert parameter.dtype == np.float64


def test_a_copy_is_as_fresh_as_what_it_was_copied_from():
    fresh, read = db.Parameter(np.ones(3)), db.Parameter(np.ones(3))
    reading(read, "float64")
    read.zero_grad()
    assert reading(copy.deepcopy(fresh), "float32") == (np.dtype("float32"),) * 2
    with pytest.raises(DtypeError, match="is float64, the graph float32"):
        reading(copy.deepcopy(read), "float32")


def test_a_check_in_float64_counts_as_no_graph():
    parameter = db.Parameter(np.ones((2, 3)))
    db.testing.check_gradient(
        lambda graph, x: F.linear(x, parameter), shapes=[(4, 3)], parameters=[parameter]
    )
    assert reading(parameter, "float32") == (np.dtype("float32"),) * 2


def test_an_optimizer_a_mean_and_a_checkpoint_made_before_the_first_graph_follow(tmp_path):
    def run(numbers, epochs, resumed):
        model = models.Linear.of(db.Parameter(numbers.copy()))
        optimizer = optim.Adam(model, lr=0.1)
        average = optim.Average(model, decay=0.5)
        batches = train.SentenceBatches([1.0, 2.0, 3.0], batch_size=1)
        trainer = train.Trainer(
            model, optimizer, lambda graph, model, x: F.sum(model(F.input(graph, [[x, 1.0]]))),
            batches, average=average, checkpoint_path=tmp_path / f"{resumed}.safetensors",
            show_progress=False,
        )  # fmt: skip
        trainer.resume()
        trainer.fit(epochs)
        assert model.weight.dtype == np.float32
        return model.weight.numpy()

    numbers = np.random.default_rng(0).standard_normal((3, 2))
    whole = run(numbers, 4, False)
    run(numbers, 2, True)
    np.testing.assert_array_equal(run(numbers, 4, True), whole)
    np.testing.assert_array_equal(run(numbers.astype(np.float32), 4, "float32"), whole)


def test_of_threads_that_read_a_parameter_first_one_decides_its_dtype(monkeypatch):
    weight = db.Parameter(np.ones((2, 3), np.float32))
    outcomes = []

    def read(dtype):
        try:
            with db.Graph(dtype=dtype) as graph:
                outcomes.append(F.parameter(graph, weight).value.dtype.name)
        except DtypeError:
            outcomes.append("refused")

    meanwhile = threading.Thread(target=read, args=["float32"])
    convert = transfer.convert

    def converting(value, dtype):
        meanwhile.start()
        meanwhile.join(0.05)  # it must wait for what is being decided here
        return convert(value, dtype)

    monkeypatch.setattr(transfer, "convert", converting)
    read("float64")
    meanwhile.join()
    assert sorted(outcomes) == ["float64", "refused"]
