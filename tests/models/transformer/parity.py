"""Cases of two sides with the same values, and what each of them computes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.testing.probe import gradient_of, probe

TOLERANCE = {"float64": 1e-10, "float32": 1e-5}  # in this order: float32 rounds the values


@dataclass
class Case:
    """A module, sentences, and how either side computes one of them.

    Args:
        model:     ours.
        sentences: inputs of each.
        ours:      the value of sentence k, of nodes.
        theirs:    likewise, of PyTorch's tensors.
        tensors:   the other side's parameters, by its names.
    """

    model: models.Module
    sentences: list[list[np.ndarray]]
    ours: Callable[[int, list[db.Node]], db.Node]
    theirs: Callable[[int, list[Any]], Any]
    tensors: dict[str, Any]


@dataclass
class Results:
    """Values of sentences, gradients of their inputs, gradients of parameters by name."""

    values: list[np.ndarray]
    inputs: list[np.ndarray]
    parameters: dict[str, np.ndarray]


def exact(rng: Any, shape: tuple[int, ...], scale: float = 1.0, mean: float = 0.0) -> np.ndarray:
    """Normally distributed numbers that are the same in both precisions."""
    return (mean + scale * rng.standard_normal(shape)).astype(np.float32).astype(np.float64)


def assert_parity(torch: Any, case: Case, seed: int) -> None:
    """Compare in both precisions: all sentences in one mini-batch, and each alone."""
    rng = np.random.default_rng(seed)
    weights = [exact(rng, shape) for shape in [given[0].shape for given in case.sentences]]
    theirs = _of_torch(torch, case, weights)
    everyone = range(len(case.sentences))
    for dtype, tolerance in TOLERANCE.items():
        singles = [_of_ours(case, dtype, [k], weights) for k in everyone]
        alone = Results(
            [value for single in singles for value in single.values],
            [gradient for single in singles for gradient in single.inputs],
            {
                name: np.sum([single.parameters[name] for single in singles], axis=0)
                for name in theirs.parameters
            },
        )
        for own in (_of_ours(case, dtype, everyone, weights), alone):
            assert own.parameters.keys() == theirs.parameters.keys()
            for k, pair in enumerate(zip(own.values, theirs.values, strict=True)):
                _assert_close(*pair, tolerance, f"value of sentence {k}")
            for k, pair in enumerate(zip(own.inputs, theirs.inputs, strict=True)):
                _assert_close(*pair, tolerance, f"gradient of input {k}")
            for name, gradient in own.parameters.items():
                _assert_close(gradient, theirs.parameters[name], tolerance, name)


def _assert_close(own: np.ndarray, theirs: np.ndarray, tolerance: float, what: str) -> None:
    scale = max(1.0, np.abs(theirs).max(initial=0))
    np.testing.assert_allclose(own, theirs, rtol=0, atol=tolerance * scale, err_msg=what)


def _of_torch(torch: Any, case: Case, weights: list[np.ndarray]) -> Results:
    values, inputs = [], []
    for k, given in enumerate(case.sentences):
        tensors = [torch.tensor(x, requires_grad=True) for x in given]
        y = case.theirs(k, tensors)
        y.backward(torch.tensor(weights[k]))
        values.append(y.detach().numpy())
        inputs += [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in tensors]
    parameters = {name: tensor.grad.numpy() for name, tensor in case.tensors.items()}
    for prefix, module in case.model._named_modules():
        module.own_names(parameters, prefix)
    return Results(values, inputs, parameters)


def _of_ours(case: Case, dtype: str, chosen: Any, weights: list[np.ndarray]) -> Results:
    case.model.astype(dtype)
    with db.Graph(dtype=dtype) as graph:
        given = [[F.input(graph, x).keep() for x in case.sentences[k]] for k in chosen]
        outputs = [case.ours(k, nodes).keep() for k, nodes in zip(chosen, given, strict=True)]
        graph.backward(probe(outputs, [weights[k] for k in chosen]))
        inputs = [gradient_of(x) for nodes in given for x in nodes]
        values = [y.value for y in outputs]
    parameters = {
        name: np.zeros(p.shape) if p.grad is None else p.grad.copy()
        for name, p in case.model.named_parameters()
    }
    return Results(values, inputs, parameters)
