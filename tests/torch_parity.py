"""Values and gradients of a function of one sentence, batched, against PyTorch's."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.probe import gradient_of, probe, random_like

Shape = tuple[int, ...]


def import_torch() -> Any:
    """PyTorch, or skip the test."""
    return pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")


def assert_equals_torch(
    build: Callable[..., Any],
    reference: Callable[..., Any],
    sentences: Sequence[Any],
    parameters: Sequence[Shape] = (),
    seed: int = 0,
    dtype: str = "float32",
) -> None:
    """Compare to 1e-5, or to 1e-10 in float64: outputs and gradients, parameters' over sentences.

    `sentences` are shapes (one input each), or lists of shapes or of arrays. `build` gets nodes and
    parameters, `reference` tensors; both may return several outputs.
    """
    torch = import_torch()
    generator = np.random.default_rng(seed)
    arrays = [_arrays(given, generator, dtype) for given in sentences]
    shared = [generator.standard_normal(shape).astype(dtype) for shape in parameters]
    ours = [db.Parameter(value.copy(), f"parameter {k}") for k, value in enumerate(shared)]
    theirs = [torch.tensor(value, requires_grad=True) for value in shared]
    tensors = [[torch.tensor(x, requires_grad=True) for x in given] for given in arrays]
    with db.Graph(dtype=dtype, seed=seed) as graph:
        inputs = [[F.input(graph, x).keep() for x in given] for given in arrays]
        outputs = [_listed(build(*given, *ours)) for given in inputs]
        flat = [y for found in outputs for y in found]
        weights = [w.astype(dtype) for w in random_like(flat, seed, 1)]
        graph.forward()
        values = [y.value for y in flat]
        graph.backward(probe(flat, weights))
        gradients = [[gradient_of(x) for x in given] for given in inputs]
    expected = [y for given in tensors for y in _listed(reference(*given, *theirs))]
    for y, w in zip(expected, weights, strict=True):
        if y.requires_grad:
            y.backward(torch.tensor(w).reshape(y.shape), retain_graph=True)
    for found, y in zip(values, expected, strict=True):
        _assert_close(found, y)
    for found_of, given in zip(gradients, tensors, strict=True):
        for found, x in zip(found_of, given, strict=True):
            _assert_close(found, torch.zeros_like(x) if x.grad is None else x.grad)
    for parameter, tensor in zip(ours, theirs, strict=True):
        _assert_close(dense_gradient(parameter), tensor.grad)


def _arrays(given: Any, generator: np.random.Generator, dtype: str) -> list[Any]:
    if isinstance(given, tuple):
        given = [given]
    return [
        (generator.standard_normal(x) if isinstance(x, tuple) else x).astype(dtype) for x in given
    ]


def _listed(built: Any) -> list[Any]:
    return list(built) if isinstance(built, list | tuple) else [built]


def _assert_close(found: Any, expected: Any) -> None:
    expected = expected.detach().numpy()
    assert found.dtype == expected.dtype
    tolerance = 1e-5 if expected.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
