"""The ends of a checked graph: an input that can be varied, a loss with a random gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import FreedError, MemoryLimitError, NoGradientError
from dynbatch.nodes.inner_product import InnerProduct
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.sources import Input

Build = Callable[..., Node | Sequence[Node]]


class Variable(Input):
    """An input whose random stream depends on its number, not on its content.

    So dropout draws the same mask when one element of the input is varied.
    """

    __slots__ = ("number",)
    number: int

    def content(self) -> bytes:
        return self.number.to_bytes(4)


class Probe(InnerProduct):
    """loss = Σ_i ⟨w_i, x_i⟩ with random weights: no two elements of the outputs play the same part.

    So mistakes which a plain sum hides by symmetry show.

    Batches with:  every other Probe.
    """

    __slots__ = ()


def probe(outputs: Sequence[Node], weights: Sequence[Array]) -> Node:
    """The loss Σ ⟨weights_i, outputs_i⟩."""
    flat = np.concatenate([np.reshape(w, -1) for w in weights])
    return Probe(*outputs, weights=flat.astype(outputs[0].graph.dtype))


def variable(graph: Owner, array: Array, number: int) -> Node:
    """The array as an input of the graph, kept so that its gradient can be read."""
    return Variable(
        graph=graph, array=np.array(array, graph.dtype, order="C"), number=number
    ).keep()


def backward(graph: Any, loss: Node, share: float | None = None) -> None:
    """Run `graph.backward`; a loss through which no gradient can flow is not a mistake here.

    Args:
        share: of the memory that it takes without a limit, the limit; or the least that is needed.
    """
    with suppress(NoGradientError):
        limit = None
        if share is not None:
            limit = max(1, int(graph.estimate(loss).peak_bytes * share))
            try:
                graph.estimate(loss, limit)
            except MemoryLimitError as error:
                limit = error.least_bytes
        before = graph.peak_bytes
        graph.backward(loss, limit)
        if limit is not None and graph.peak_bytes > max(limit, before):
            raise AssertionError(f"{graph.peak_bytes} bytes where {limit} are the limit")


def gradient_of(node: Node) -> Array:
    """The gradient of a kept node; zeros if the loss does not depend on it."""
    try:
        return node.gradient
    except FreedError:
        return np.zeros(node.shape, node.graph.dtype)


def outputs_of(build: Build, graph: Owner, arguments: Sequence[Any]) -> list[Node]:
    built = build(graph, *arguments)
    return [built] if isinstance(built, Node) else list(built)


def require_finite(check: str, outputs: dict[str, Node]) -> None:
    """Raise `AssertionError`, naming the element, if some output is NaN or infinite."""
    for name, node in outputs.items():
        value = node.value
        if not np.isfinite(value).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
            raise AssertionError(
                f"{check}: {name}, element {index} is {value[index]}.\n"
                "  rule: forward writes every element of y; the memory is NaN until it does\n"
                "  fix:  write them all, or choose inputs for which the function is finite"
            )


def random_like(outputs: Sequence[Node], *seed: int) -> list[Array]:
    """A standard normal array for each output; the same for the same seed."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(node.shape) for node in outputs]
