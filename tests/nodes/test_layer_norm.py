import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.layer_norm import lost_columns
from dynbatch.nodes.batch import Batch
from dynbatch.testing import check_batching, check_gradient
from tests.torch_parity import assert_equals_torch, import_torch

SENTENCES = [(length, 6) for length in (3, 0, 1, 20)]


def weights(width=6):
    generator = np.random.default_rng(0)
    return [db.Parameter(generator.standard_normal(width), name) for name in ("weight", "bias")]


@pytest.mark.parametrize("width", [2, 6, 300])
def test_equals_torch(width):
    torch = import_torch()
    assert_equals_torch(
        lambda x, weight, bias: F.layer_norm(x, weight, bias, eps=1e-3),
        lambda x, weight, bias: torch.layer_norm(x, (width,), weight, bias, 1e-3),
        [(3, width), (0, width), (1, width), (20, width), (width,)],
        parameters=[(width,), (width,)],
    )
    assert_equals_torch(
        F.layer_norm, lambda x: torch.layer_norm(x, (width,)), [(3, width), (1, width)]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 6, 300])
def test_rms_norm_equals_torch(width, dtype):
    torch = import_torch()
    rms_norm = torch.nn.functional.rms_norm
    assert_equals_torch(
        lambda x, weight: F.rms_norm(x, weight, eps=1e-3),
        lambda x, weight: rms_norm(x, (width,), weight, 1e-3),
        [(3, width), (0, width), (1, width), (20, width), (width,)],
        parameters=[(width,)],
        dtype=dtype,
    )
    assert_equals_torch(
        F.rms_norm,
        lambda x: rms_norm(x, (width,), None, 1e-6),
        [(3, width), (1, width)],
        dtype=dtype,
    )


def test_rms_norm_batches_and_differentiates():
    weight, _ = weights()

    def full(graph, x):
        return F.rms_norm(x, weight)

    check_batching(full, shapes=[[s] for s in [*SENTENCES, (6,)]], parameters=[weight])
    for shape in [*SENTENCES[:3], (6,)]:
        check_gradient(full, shapes=[shape], parameters=[weight])
        check_gradient(lambda graph, x: F.rms_norm(x), shapes=[shape])


def test_rms_norm_saves_one_number_a_token_and_of_zeros_makes_zeros():
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    with db.Graph(dtype="float64") as graph:
        node = F.rms_norm(F.input(graph, x), eps=0.5)
        batch = Batch([node], np.dtype("float64"))
        assert type(node).saved(batch) == {"rstd": (2, 1)}
        assert np.array_equal(node.value, [x[0] / np.sqrt(13), [0, 0]])


def test_batches_and_differentiates():
    weight, bias = weights()

    def full(graph, x):
        return F.layer_norm(x, weight, bias)

    check_batching(full, shapes=[[s] for s in [*SENTENCES, (6,)]], parameters=[weight, bias])
    for shape in [*SENTENCES[:3], (6,)]:
        check_gradient(full, shapes=[shape], parameters=[weight, bias])
    for given in ([None, None], [weight, None], [None, bias]):
        used = [parameter for parameter in given if parameter is not None]
        check_gradient(
            lambda graph, x, given=given: F.layer_norm(x, *given), shapes=[(3, 6)], parameters=used
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_that_the_output_does_not_show_have_their_gradients(dtype):
    weight = np.array([0.0, 1e-30, 0.01, -0.5, 1.0, 3.0])
    bias = np.array([1.0, 0.0, 5.0, 4.1, -7.9, 100.0])
    torch = import_torch()
    assert lost_columns(weight, bias, 6).tolist() == [0, 1, 2, 3, 5]
    x, dy = np.random.default_rng(0).standard_normal((2, 20, 6))
    leaves = [torch.tensor(a.astype(dtype), requires_grad=True) for a in (x, weight, bias)]
    torch.layer_norm(leaves[0], (6,), *leaves[1:]).backward(torch.tensor(dy.astype(dtype)))
    parameters = [db.Parameter(a.astype(dtype)) for a in (weight, bias)]
    with db.Graph(dtype=dtype) as graph:
        nodes = [F.input(graph, part.astype(dtype)).keep() for part in (x[:3], x[3:])]
        y = [F.layer_norm(node, *parameters) for node in nodes]
        graph.backward(y, gradient=[dy[:3].astype(dtype), dy[3:].astype(dtype)])
        found = [np.concatenate([node.gradient for node in nodes]), *[p.grad for p in parameters]]
    for gradient, leaf in zip(found, leaves, strict=True):
        tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype] * np.abs(leaf.grad.numpy()).max()
        assert np.abs(gradient - leaf.grad.numpy()).max() <= tolerance


def test_a_layer_between_linear_maps_keeps_one_matrix_a_sentence():
    weight, bias = [db.Parameter(p.value.astype(np.float32)) for p in weights(64)]
    matrices = [db.Parameter(np.ones((64, 64), np.float32)) for _ in range(2)]
    with db.Graph() as graph:
        h = F.linear(F.input(graph, np.ones((8, 64), np.float32)), matrices[0])
        loss = F.sum(F.linear(F.layer_norm(h, weight, bias), matrices[1]))
        stages = graph.estimate(loss).stages
    matrix, number = 8 * 64 * 4, 4
    begins = [label for label, _ in stages].index("backward LinearMap")
    activations = stages[begins][1]["activations"]
    assert activations == 2 * matrix + number  # the first input, what lies between, and the loss
    assert stages[begins][1]["kept for backward"] == 8 * number


def test_frozen_parameters_get_no_gradient():
    weight, bias = weights()
    weight.frozen = True
    check_gradient(
        lambda graph, x: F.layer_norm(x, weight, bias), shapes=[(3, 6)], parameters=[weight, bias]
    )


def test_parameters_get_gradients_where_the_input_needs_none():
    weight, bias = [db.Parameter(p.value.astype(np.float32)) for p in weights()]
    with db.Graph() as graph:
        y = F.layer_norm(F.input(graph, np.arange(12.0).reshape(2, 6)), weight, bias)
        graph.backward(F.sum(y))
    assert bias.grad.tolist() == [2] * 6
    assert weight.grad == pytest.approx(2 * (np.arange(6) - 2.5) / np.std(np.arange(6)), rel=1e-4)


def test_used_twice_a_parameter_adds_up():
    weight, bias = weights()
    check_gradient(
        lambda graph, x: F.layer_norm(F.layer_norm(x, weight, bias) * 2.0, weight, bias),
        shapes=[(3, 6)],
        parameters=[weight, bias],
    )


def test_a_constant_row_becomes_the_bias():
    weight, bias = [db.Parameter(p.value.astype(np.float32)) for p in weights()]
    with db.Graph() as graph:
        y = F.layer_norm(F.input(graph, np.full((2, 6), 7.0)), weight, bias).value
    assert y == pytest.approx(np.stack([bias.value] * 2), abs=1e-5)


def test_wrong_parameters_are_refused():
    weight, bias = [db.Parameter(p.value.astype(np.float32)) for p in weights(5)]
    of_double = weights()
    for parameter in of_double:
        parameter.settle()  # as one that a float64 graph has read
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 6)))
        with pytest.raises(ShapeError, match=r"differ in D \(6 != 5\)"):
            F.layer_norm(x, weight)
        with pytest.raises(ShapeError, match=r"differ in D \(6 != 5\)"):
            F.layer_norm(x, None, bias)
        with pytest.raises(ShapeError, match="x has shape"):
            F.layer_norm(F.sum(x))
        with pytest.raises(DtypeError, match="float64"):
            F.layer_norm(x, *of_double)
        with pytest.raises(ShapeError, match=r"differ in d \(6 != 5\)"):
            F.rms_norm(x, weight)
        with pytest.raises(ShapeError, match="x has shape"):
            F.rms_norm(F.sum(x))
        with pytest.raises(DtypeError, match="float64"):
            F.rms_norm(x, of_double[0])
