"""`check_gradient`: backward against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.backend import Array
from dynbatch.debugging.difference import element
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node, Shape
from dynbatch.parameter import Parameter
from dynbatch.testing.pool import NanPool
from dynbatch.testing.precision import Parameters, dense_gradient, in_float64
from dynbatch.testing.probe import (
    Build,
    backward,
    gradient_of,
    outputs_of,
    probe,
    random_like,
    require_finite,
    variable,
)


def check_gradient(
    build: Build,
    *,
    shapes: Sequence[Shape] | None = None,
    inputs: Sequence[ArrayLike] | None = None,
    parameters: Parameters = (),
    seed: int = 0,
    step: float = 1e-5,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    most: int = 100,
) -> None:
    """Check gradients of all inputs and parameters of a function of one sentence.

    The loss is Σ ⟨r, y⟩ for random r, so backward makes a random vector-Jacobian product. It is
    compared, element by element, with (loss(x + step) - loss(x - step)) / (2 step).

    Args:
        build:      (graph, *input nodes) -> a node or several: the function to check.
        shapes:     shapes of the inputs, which are then drawn from a standard normal.
        inputs:     their arrays, instead of shapes, where the function needs a range of its own.
        parameters: parameters, or a module, that `build` uses. Float64 while the check runs.
        most:       elements checked of each array, drawn at random where it has more.

    Raises:
        AssertionError: some gradient differs by more than atol + rtol · |expected|, or a frozen
            parameter got one; names the array, the element and both numbers.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> db.testing.check_gradient(lambda graph, x: F.tanh(x), shapes=[(5, 3)])
    """
    generator = np.random.default_rng(seed)
    if inputs is None:
        inputs = [generator.standard_normal(shape) for shape in shapes or ()]
    arrays = [np.array(x, np.float64) for x in inputs]
    with in_float64(parameters) as distinct:
        trained = [p for p in distinct if not p.frozen]
        gradients = _backward(build, arrays, distinct, seed)
        gradients += [dense_gradient(p) for p in trained]
        names = [f"input {k}" for k in range(len(arrays))]
        names += [f"parameter {p.name!r}" for p in trained]
        varied = arrays + [p.value for p in trained]
        rows = [None] * len(arrays) + [p.trained_rows for p in trained]
        with _losses(build, arrays, varied, seed, step) as loss:
            for name, array, gradient, some in zip(names, varied, gradients, rows, strict=True):
                elements = np.arange(array.size)
                if some is not None:
                    elements = elements.reshape(array.shape)[some].reshape(-1)
                if elements.size > most:
                    elements = np.sort(generator.choice(elements, most, replace=False))
                expected = np.array([_difference(loss, array, e, step) for e in elements.tolist()])
                _compare(name, gradient, elements, expected, rtol, atol)


def _backward(
    build: Build, arrays: Sequence[Array], parameters: Sequence[Parameter], seed: int
) -> list[Array]:
    """Gradients of the inputs; those of the parameters are left in `grad`."""
    with Graph(dtype="float64", seed=seed, grad=False, pool=NanPool()) as graph:
        nodes = [variable(graph, x, k) for k, x in enumerate(arrays)]
        outputs = outputs_of(build, graph, nodes)
        require_finite("check_gradient", {f"output {i}": y for i, y in enumerate(outputs)})
    with Graph(dtype="float64", seed=seed, pool=NanPool()) as graph:
        nodes = [variable(graph, x, k) for k, x in enumerate(arrays)]
        outputs = outputs_of(build, graph, nodes)
        backward(graph, probe(outputs, random_like(outputs, seed)))
        gradients = [gradient_of(node) for node in nodes]
    for parameter in parameters:
        if parameter.frozen and parameter.grad is not None:
            raise AssertionError(
                f"check_gradient: parameter {parameter.name!r} is frozen, yet got a gradient.\n"
                "  rule: a frozen parameter's grad stays None"
            )
    return gradients


@contextmanager
def _losses(
    build: Build, arrays: Sequence[Array], varied: Sequence[Array], seed: int, step: float
) -> Iterator[Callable[[], float]]:
    """A function that gives the loss for what the arrays and the parameters hold at its call.

    One graph runs again and again, in an eighth of the time of new ones. If `build` reads numbers
    and makes other nodes of them, a new graph differs when all that is varied has changed: then
    each loss is that of a new graph.
    """

    def built(graph: Graph) -> tuple[list[Node], Node]:
        nodes = [variable(graph, x, k) for k, x in enumerate(arrays)]
        outputs = outputs_of(build, graph, nodes)
        return nodes, probe(outputs, random_like(outputs, seed))

    def anew() -> float:
        with Graph(dtype="float64", seed=seed, grad=False, pool=NanPool()) as graph:
            return float(built(graph)[1].value)

    with Graph(dtype="float64", seed=seed, grad=False, pool=NanPool()) as kept:
        kept.advises = False  # one sentence has nothing to batch
        inputs, loss = built(kept)
        kept.forward()
        run = kept.repeated() if len(kept.plans) == 1 else None

        def again() -> float:
            assert run is not None
            for node, array in zip(inputs, arrays, strict=True):
                node.array[...] = array  # type: ignore[attr-defined]
            run.run()
            return float(loss.value)

        if run is not None and _agree(again, anew, varied, step, seed):
            yield again
        else:
            yield anew


def _agree(
    one: Callable[[], float], other: Callable[[], float], varied: Sequence[Array], step: float,
    seed: int,
) -> bool:  # fmt: skip
    """Whether two functions give the same loss, to the bit, when every element has changed."""
    generator, before = np.random.default_rng(seed), [array.copy() for array in varied]
    for array in varied:
        array[...] += step * generator.standard_normal(array.shape)
    try:
        return one() == other()
    finally:
        for array, values in zip(varied, before, strict=True):
            array[...] = values


def _difference(loss: Callable[[], float], array: Array, element: int, step: float) -> float:
    flat = array.reshape(-1)
    before = flat[element]
    flat[element] = before + step
    above = loss()
    flat[element] = before - step
    below = loss()
    flat[element] = before
    return (above - below) / (2 * step)


def _compare(
    name: str, gradient: Array, elements: Array, expected: Array, rtol: float, atol: float
) -> None:
    actual = gradient.reshape(-1)[elements]
    error = np.abs(actual - expected)
    wrong = ~(error <= atol + rtol * np.abs(expected))  # NaN is wrong too
    if not wrong.any():
        return
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error) * wrong))
    index = element(elements[worst], gradient.shape)
    raise AssertionError(
        f"check_gradient: {name} of shape {gradient.shape}, element {index}: backward gives "
        f"{actual[worst]:.9g}, central differences {expected[worst]:.9g}.\n"
        f"  {int(wrong.sum())} of {elements.size} elements checked differ by more than "
        f"{atol:g} + {rtol:g} * |expected|; this one differs most\n"
        "  rule: backward overwrites dx with Jᵀ dy, in every element"
    )
