"""`predict`: what a function of a model gives for many examples, mini-batch by mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from dynbatch.arguments import function as require_function
from dynbatch.arguments import size
from dynbatch.backend import Array
from dynbatch.data_set import DataSet, in_order
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.evaluating import evaluating
from dynbatch.named_parameters import graph_dtype
from dynbatch.nodes.node import Node


def predict(
    model: Any,
    function: Callable[[Graph, Any], Node],
    examples: Iterable[Any] | DataSet[Any],
    *,
    batch_size: int = 64,
    matmul: str | None = None,
    precision: str = FULL,
) -> list[Array]:
    """The value of function(graph, example) for each example, without gradients.

    The examples run `batch_size` at a time, in their order, each at its own length, on the model's
    device and in the dtype that its parameters keep, or float32 before a graph has read one. The
    model is in evaluation mode meanwhile.

    Args:
        model:      a `models.Module`.
        function:   function(graph, example) -> node, such as `model.logits`; it is the model's
                    own, or calls the model.
        examples:   what the function takes: a list, a data set, or an iterator that ends, of which
                    one mini-batch is read at a time.
        batch_size: examples in a graph. The memory of their values is freed before the next.
        matmul, precision: what factors of products with weights, and values, are rounded to, as in
                    `Graph`, which raises what it refuses.

    Raises:
        ArgumentError: `function` is not one, or takes other arguments; `examples` has keys or is
            no data;
            `batch_size` is below 1.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> embed = models.Embedding(10, 4)
        >>> def vector(graph, ids):
        ...     return F.mean(embed(graph, ids), dim=0)
        >>> [value.shape for value in db.predict(embed, vector, [[1, 2], [3]])]
        [(4,), (4,)]
    """
    require_function("predict", "function", function, "function(graph, example)")
    rest = in_order("predict", "examples", examples)
    batch_size = size("predict", "batch_size", batch_size)
    settings: dict[str, Any] = {"grad": False, "matmul": matmul, "precision": precision}
    if parameters := model.parameters():
        settings |= {"device": parameters[0].device, "dtype": graph_dtype(parameters)}
    values: list[Array] = []
    with evaluating(model):
        while batch := list(islice(rest, batch_size)):
            with Graph(**settings) as graph:
                values += graph.values([function(graph, example) for example in batch])
            del batch  # before the next examples are read
    return values
