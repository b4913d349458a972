"""`pipeline`: a model in stages, one on each rank, through which micro-batches pass."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dynbatch import arguments
from dynbatch import nodes as F
from dynbatch.arguments import refused, shown
from dynbatch.backend import Array
from dynbatch.data_set import DataSet, indexed
from dynbatch.errors import DtypeError
from dynbatch.graph import Graph
from dynbatch.kernels.arrays import split
from dynbatch.nodes.node import Node
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.shards import balanced

Stage = Callable[..., Any]


class PipelineResult(NamedTuple):
    """The result of a mini-batch that went through a pipeline.

    Args:
        loss:    the sum of the losses, on all ranks.
        seconds: from the beginning to the end, on this rank.
        waited:  of these, seconds in which this rank sent, received and waited for others.
    """

    loss: float
    seconds: float
    waited: float


def pipeline(
    communicator: Communicator, stage: Stage, examples: DataSet[Any], micro_batches: int = 4,
    costs: Sequence[float] | None = None, make_graph: Callable[[], Graph] = Graph,
) -> PipelineResult:  # fmt: skip
    """Add the gradients of a mini-batch to the parameters, each rank those of its stage of a model.

    The mini-batch is cut into micro-batches. While the last rank works on one, those before it work
    on the next ones: with p ranks and m micro-batches that cost the same, on stages that do too, a
    rank waits for (p - 1) / (m + p - 1) of the time. In each turn a rank runs backward for one
    micro-batch and forward for another, so that rank r holds the values of 2 (p - 1 - r) at most,
    or of 1 on the last. What is passed on is packed, without padding.

    All ranks call it with the same examples. Numbers differ from those of one process by rounding:
    the gradients of micro-batches are added. A parameter that several stages read gets a part of
    its gradient on each, and `optim.clip_grad_norm_` measures the gradients of one stage.

    Args:
        communicator:  of which each rank has a stage, in order.
        stage:         stage(graph, example, *received) builds this rank's part of the model for one
            example. It gets the nodes that the stage before returned, none on the first rank, and
            returns a node, or a tuple of nodes, that goes to the next rank; on the last rank the
            example's loss, a scalar.
        examples:      of the mini-batch, of which a stage may use what it needs.
        micro_batches: number of parts; no more are made than there are examples.
        costs:         of each example, so that the parts are balanced: its tokens, say. By default
            all cost the same.
        make_graph:    gives the graph of a micro-batch. All stages' have one dtype.

    Memory: the gradients and values that travel, once packed, and once more on the way.
    Cost: three messages for each micro-batch between two ranks: forward a length, and values with
        their shapes; backward their gradients. On a GPU they travel by way of the host.

    Raises:
        ArgumentError: there are no examples, or `costs` is not one number for each.
        DtypeError:    a stage returned something else than nodes.
        ParallelError: another rank failed.
        NumericError:  the loss or a gradient that was received is not finite.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models, parallel
        >>> from dynbatch import nodes as F
        >>> layer = models.Linear(3, 2, rng=0)
        >>> def stage(graph, example):
        ...     return F.sum(layer(F.input(graph, example)))
        >>> with parallel.connect() as communicator:
        ...     result = parallel.pipeline(communicator, stage, [[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]])
        >>> layer.weight.grad.shape == layer.weight.shape
        True

    Source: Huang et al. 2019, NeurIPS, arXiv:1811.06965; Narayanan et al. 2019, SOSP, "PipeDream",
            where forward and backward take turns.
    """
    begun = time.perf_counter()
    examples = indexed("pipeline", "examples", examples)
    parts = [[examples[n] for n in part] for part in _parts(examples, micro_batches, costs)]
    rank, last = communicator.rank, communicator.size - 1
    links = _Links(communicator)
    total = np.zeros(1)
    running: dict[int, _MicroBatch] = {}
    values: _Values | None = None
    gradient: Array | None = None

    def finish(number: int) -> Array | None:
        return running.pop(number).backward(gradient) if number in running else None

    with ExitStack() as stack:
        for turn in range(len(parts) + 2 * last):
            begins, ends = turn - rank, turn - 2 * last + rank
            back = finish(ends)  # first, as the next one needs memory
            out = None
            if 0 <= begins < len(parts):
                graph = stack.enter_context(make_graph())
                micro_batch = running[begins] = _MicroBatch(graph, stage, parts[begins], values)
                if rank < last:
                    out = micro_batch.values()
                else:
                    back = finish(ends)
                    total += micro_batch.loss()
            due = running.get(ends + 1)
            comes = rank > 0 and 0 <= begins + 1 < len(parts)
            values, gradient = links.exchange(out, back if rank else None, comes, due)
    begun_sum = time.perf_counter()
    communicator.all_reduce(total)
    end = time.perf_counter()
    return PipelineResult(float(total[0]), end - begun, links.waited + end - begun_sum)


def _parts(
    examples: Sequence[Any], micro_batches: int, costs: Sequence[float] | None
) -> list[list[int]]:
    count = arguments.size("pipeline", "micro_batches", micro_batches)
    if costs is None:
        costs = [1.0] * len(examples)
    if not examples or len(costs) != len(examples):
        raise refused(
            "pipeline", f"{len(costs)} costs for {len(examples)} examples",
            "there are examples, and a cost for each", "leave costs out, or count tokens",
        )  # fmt: skip
    return [part for part in balanced(costs, count) if part]


class _Values(NamedTuple):
    """The values that a stage passes on for a micro-batch.

    Args:
        flat:   all numbers, one after the other.
        shapes: of the nodes of each example.
    """

    flat: Array
    shapes: list[list[tuple[int, ...]]]

    def of_examples(self) -> list[list[Array]]:
        each = iter(split(self.flat, [shape for shapes in self.shapes for shape in shapes]))
        return [[next(each) for _ in shapes] for shapes in self.shapes]


class _MicroBatch:
    """A stage's part of a model for the examples of one micro-batch, in a graph of its own.

    Args:
        values: what the stage before passed on; None on the first.
    """

    def __init__(
        self, graph: Graph, stage: Stage, examples: Sequence[Any], values: _Values | None
    ) -> None:
        self.graph = graph
        arrays_of = values.of_examples() if values is not None else [[] for _ in examples]
        self._dtype = graph.dtype if values is None else values.flat.dtype
        self._inputs = [[F.input(graph, each).keep() for each in arrays] for arrays in arrays_of]
        self._outputs = [
            _listed(stage(graph, example, *nodes))
            for example, nodes in zip(examples, self._inputs, strict=True)
        ]
        self._ends = [node for nodes in self._outputs for node in nodes]

    @property
    def num_elements(self) -> int:
        return sum([prod(node.shape) for node in self._ends])

    def values(self) -> _Values:
        """Run forward; what the next stage gets."""
        flat = np.concatenate([each.reshape(-1) for each in self.graph.values(self._ends)])
        return _Values(flat, [[node.shape for node in nodes] for nodes in self._outputs])

    def backward(self, gradient: Array | None) -> Array:
        """Run backward, and close the graph.

        Args:
            gradient: flat, of what the stage passed on; None on the last stage, of losses.
        Returns:
            The gradient of what the stage before passed on, flat.
        """
        if gradient is None:
            self.graph.backward(self._ends)
        else:
            shapes = [node.shape for node in self._ends]
            self.graph.backward(self._ends, gradient=split(gradient, shapes))
        received = [node for nodes in self._inputs for node in nodes]
        flat = [node.gradient.reshape(-1) for node in received]
        self.graph.close()
        return np.concatenate(flat, dtype=self._dtype) if flat else np.empty(0, self._dtype)

    def loss(self) -> float:
        return sum([float(node.value) for node in self._ends])


def _listed(returned: Any) -> list[Node]:
    nodes = list(returned) if isinstance(returned, tuple) else [returned]
    if not nodes or not all([isinstance(node, Node) for node in nodes]):
        raise DtypeError(
            f"pipeline: the stage returned {shown(returned)}.\n"
            "  rule: a node, or a tuple of nodes; on the last rank the example's loss\n"
            "  fix:  return the nodes themselves, not their values"
        )
    return nodes


class _Links:
    """The messages between a stage and those before and after it.

    Attributes:
        waited: seconds spent on them.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.waited = 0.0

    def exchange(
        self, out: _Values | None, back: Array | None, comes: bool, due: _MicroBatch | None
    ) -> tuple[_Values | None, Array | None]:
        """Pass on values and a gradient, while those that are passed to this stage are received.

        Args:
            comes: whether values come from the stage before.
            due:   the micro-batch whose gradient comes from the stage after.
        """
        begun = time.perf_counter()
        exchange = self._communicator.exchange
        after, before = self._communicator.rank + 1, self._communicator.rank - 1
        length = packed = values = gradient = None
        if out is not None:
            packed = np.frombuffer(pickle.dumps(out, pickle.HIGHEST_PROTOCOL), np.uint8)
            length = np.array([packed.size])
        coming = np.zeros(1, np.int64) if comes else None
        exchange({after: length}, {before: coming})
        coming = None if coming is None else np.empty(coming[0], np.uint8)
        if due is not None:
            gradient = np.empty(due.num_elements, due.graph.dtype)
        exchange({after: packed, before: back}, {before: coming, after: gradient})
        if coming is not None:
            values = pickle.loads(coming.data)
        self.waited += time.perf_counter() - begun
        return values, gradient
