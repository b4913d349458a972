"""`F.normalize` and `F.cosine_similarity` at zeros and small norms, as PyTorch has them."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError
from tests.messages import raised

SMALL = [[0.0, 0.0, 0.0], [1e-9, -2e-9, 1e-9], [1e-15, 0.0, 0.0], [3.0, 0.0, -4.0], [1e4, 1.0, 0.0]]
WEIGHTS = [[1.0, 2.0, 3.0], [0.5, -1.0, 2.0], [1.0, 1.0, 1.0], [2.0, 0.0, 1.0], [1.0, 5.0, 1.0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("eps", [1e-12, 1e-3])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0, np.inf])
def test_zeros_and_norms_below_eps_are_pytorchs(p, eps, dtype):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(SMALL, dtype=getattr(torch, dtype), requires_grad=True)
    expected = torch.nn.functional.normalize(tensor, p, eps=eps)
    (expected * torch.tensor(WEIGHTS, dtype=tensor.dtype)).sum().backward()
    with db.Graph(dtype=dtype) as graph:
        x = F.input(graph, SMALL).keep()
        y = F.normalize(x, p, eps=eps).keep()
        graph.backward(F.sum(y * F.input(graph, WEIGHTS)))
        tolerance = 1e-5 if dtype == "float32" else 1e-9
        np.testing.assert_allclose(y.value, expected.detach(), rtol=tolerance, atol=1e-7)
        np.testing.assert_allclose(x.gradient, tensor.grad, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, -1.0, np.inf, -np.inf])
def test_rows_with_nan_or_infinity_are_pytorchs(p):
    torch = pytest.importorskip("torch")
    rows = [[np.nan, 1.0, 2.0], [np.inf, 1.0, 0.0], [-np.inf, 2.0, 3.0], [1.0, 2.0, 2.0]]
    expected = torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), p)
    with db.Graph(dtype="float64") as graph:
        found = F.normalize(F.input(graph, rows), p).value
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_cosine_of_zeros_is_zero_and_its_gradients_are_pytorchs():
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (SMALL, WEIGHTS)]
    rows = [0, 3, 4]  # between 0 and eps PyTorch's gradient is not that of its own value
    expected = torch.cosine_similarity(*[t[rows] for t in tensors])
    expected.sum().backward()
    with db.Graph(dtype="float64") as graph:
        a, b = [F.input(graph, np.array(v)[rows]).keep() for v in (SMALL, WEIGHTS)]
        y = F.cosine_similarity(a, b).keep()
        graph.backward(F.sum(y))
        np.testing.assert_allclose(y.value[:, 0], expected.detach(), rtol=1e-12)
        for node, tensor in zip((a, b), tensors, strict=True):
            np.testing.assert_allclose(node.gradient, tensor.grad[rows], rtol=1e-9, atol=1e-12)


def test_a_vector_is_repeated_before_norms_over_tokens_are_taken():
    with db.Graph(dtype="float64") as graph:
        a, b = F.input(graph, WEIGHTS), F.input(graph, [3.0, -4.0, 5.0])
        found = F.cosine_similarity(a, b, 0).value
        columns = np.array(WEIGHTS)
        exact = columns.sum(0) * [1, -1, 1] / np.linalg.norm(columns, axis=0) / np.sqrt(5)
        np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_second_derivatives_are_those_of_the_formula():
    x = np.array([[0.4, -1.2, 2.0]])
    with db.Graph(dtype="float64") as graph:
        node = F.input(graph, x)
        first = db.grad(lambda v: F.sum(F.normalize(v) * F.input(graph, [[1.0, 2.0, 3.0]])))
        second = db.grad(lambda v: F.sum(first(v) * F.input(graph, [[0.3, -1.0, 0.5]])))(node).value
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(x, requires_grad=True)
    weights = [torch.tensor([v], dtype=tensor.dtype) for v in ([1.0, 2.0, 3.0], [0.3, -1.0, 0.5])]
    y = (torch.nn.functional.normalize(tensor) * weights[0]).sum()
    (of_first,) = torch.autograd.grad(y, tensor, create_graph=True)
    (exact,) = torch.autograd.grad((of_first * weights[1]).sum(), tensor)
    np.testing.assert_allclose(second, exact, rtol=1e-12)


def test_what_is_refused():
    with db.Graph() as graph:
        x = F.input(graph, SMALL)
        raised(ArgumentError, lambda: F.normalize(x, "2"), "normalize: p is '2'")
        raised(ArgumentError, lambda: F.normalize(x, eps=-1.0), "normalize: eps is -1.0", "rule:")
        raised(ArgumentError, lambda: F.cosine_similarity(x, x, eps=np.nan), "eps is nan")
        raised(ShapeError, lambda: F.normalize(x, dim=2), "normalize, sentence 0: ", "has no dim 2")
        raised(ShapeError, lambda: F.cosine_similarity(x, F.input(graph, [1.0, 2.0])))
