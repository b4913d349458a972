"""dynbatch as a contender: the training step that a user's program has, and what it cost."""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dynbatch as db
from benchmarks.lengths import Batch
from benchmarks.measure import Contender
from benchmarks.networks import LEARNING_RATE, Array
from dynbatch import backend, optim
from dynbatch import nodes as F
from dynbatch.models.module import Module
from dynbatch.testing import in_float64
from dynbatch.testing.precision import dense_gradient


@dataclass(frozen=True)
class StepCost:
    """Counters of one training step.

    Args:
        step_seconds:   the whole step.
        kernel_seconds: of it, inside kernels (forward and backward).
        update_seconds: of it, inside the optimizer.
        launches:       kernels run.
        batches:        groups of nodes run together.
        copied_bytes:   moved to bring inputs together.
        peak_bytes:     most bytes of arenas in use at once.
        uploads:        copies of index tables to a GPU.
        build_seconds:  of the step, until all nodes are made.
        lower_bound:    the fewest batches possible; 0 unless the step was timed alone.
        cells:          applications of a cell, each a node.
        nodes:          made.
        flops:          of forward and backward; 0 on a GPU, and unless the step was timed alone.

    On a GPU nothing is waited for: the step ends when all of it is queued.
    """

    step_seconds: float
    kernel_seconds: float
    update_seconds: float
    launches: int
    batches: int
    copied_bytes: int
    peak_bytes: int
    uploads: int = 0
    build_seconds: float = 0.0
    lower_bound: int = 0
    cells: int = 0
    nodes: int = 0
    flops: int = 0

    @property
    def host_share(self) -> float:
        """Share of the step spent outside kernels and update: build, schedule, dispatch."""
        return 1.0 - (self.kernel_seconds + self.update_seconds) / self.step_seconds

    @property
    def host_us_per_cell(self) -> float:
        """Microseconds of the host for each cell node; 0 where there is none."""
        return 1e6 * self.host_share * self.step_seconds / self.cells if self.cells else 0.0

    @property
    def flops_per_second(self) -> float:
        """Floating-point operations of forward and backward over the seconds of the whole step."""
        return self.flops / self.step_seconds


def median_cost(costs: Sequence[StepCost]) -> dict[str, float]:
    """Median of each counter that reports show."""
    names = ("host_share", "host_us_per_cell", "launches", "batches", "lower_bound")
    names += ("copied_bytes", "peak_bytes", "uploads", "nodes", "flops", "flops_per_second")
    return {name: statistics.median(getattr(cost, name) for cost in costs) for name in names}


def load_values(model: Module, values: Mapping[str, Array]) -> None:
    """Copy values in by name. What they lack, the recurrent biases, becomes zero and is frozen."""
    for name, parameter in model.named_parameters():
        parameter.frozen = name not in values
        parameter.value[...] = values.get(name, 0.0)


class DynbatchContender(Contender):
    """A model of one sentence's loss, trained on whole batches by Adam.

    `policy` is the graph's, and `precision` its `matmul`.
    """

    name = "dynbatch"
    policy = "by_bound"

    def __init__(self, parameters: list[db.Parameter], device: str = "cpu") -> None:
        self.costs: list[StepCost] = []
        self._graph: db.Graph | None = None
        self.device = backend.device(device)
        for parameter in parameters:
            parameter.to(self.device)
        self._adam = optim.Adam(parameters, lr=LEARNING_RATE)

    @abstractmethod
    def sentence_loss(self, graph: db.Graph, *sentence: Any) -> db.Node:
        """Loss of one of the batch's sentences, summed over its tokens."""

    def num_cells(self, batch: Batch) -> int:
        """Cells that the model applies one by one to a batch."""
        return 0

    def loss(self, prepared: Batch) -> float:
        with self._graph_of(grad=False) as graph:
            return float(self.mean_loss(graph, prepared).value)

    def train(self, prepared: Batch) -> float:
        return self.start(prepared)()

    def start(self, prepared: Batch) -> Callable[[], float]:
        start = time.perf_counter()
        with self._graph_of() as graph:
            loss = self.mean_loss(graph, prepared)
            built = time.perf_counter()
            nodes = len(graph._nodes)
            graph.backward(loss)
        ran = time.perf_counter()
        self._adam.step()
        end = time.perf_counter()
        cost = graph.statistics
        self.costs.append(
            StepCost(
                step_seconds=end - start,
                kernel_seconds=cost.kernel_seconds,
                update_seconds=end - ran,
                launches=cost.launches,
                batches=cost.batches,
                copied_bytes=cost.copied_bytes,
                peak_bytes=cost.peak_bytes,
                uploads=cost.uploads,
                build_seconds=built - start,
                cells=self.num_cells(prepared),
                nodes=nodes,
            )
        )
        self._graph = graph
        return lambda: float(loss.value)

    def timed_train(self, prepared: Batch) -> float:
        seconds = super().timed_train(prepared)
        assert self._graph is not None
        flops = 0 if self.device.is_cuda else self._graph.flops().total
        bound = self._graph.lower_bound
        self.costs[-1] = replace(self.costs[-1], lower_bound=bound, flops=flops)
        return seconds

    def wait(self) -> None:
        if self.device.is_cuda:
            self.device.xp.cuda.runtime.deviceSynchronize()

    def values(self) -> dict[str, Array]:
        """Copies of all parameters by name, on the host."""
        return {name: parameter.numpy() for name, parameter in self._adam.named_parameters()}

    def gradients(self, prepared: Batch) -> tuple[float, dict[str, Array]]:
        """The loss and its gradients by parameter, in float64, dense, on the host; no update."""
        named = dict(self._adam.named_parameters())
        with in_float64(named.values()):
            with db.Graph(self.device, "float64") as graph:
                loss = self.mean_loss(graph, prepared)
                graph.backward(loss)
            dense = {name: dense_gradient(parameter) for name, parameter in named.items()}
        return float(loss.value), dense

    def check(self, prepared: Batch) -> None:
        """Forward and backward with every batch of nodes computed twice; no update.

        Raises:
            CheckError: two ways to compute a number do not agree.
        """
        with db.Graph(self.device, check=True) as graph:
            graph.backward(self.mean_loss(graph, prepared))
        self._adam.zero_grad()

    def parameters(self) -> list[db.Parameter]:
        """All that are trained."""
        return [parameter for _, parameter in self._adam.named_parameters()]

    def _graph_of(self, grad: bool = True) -> db.Graph:
        return db.Graph(self.device, policy=self.policy, matmul=self.precision, grad=grad)

    def mean_loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        """The loss of a mini-batch."""
        return F.mean([self.sentence_loss(graph, *sentence) for sentence in batch.sentences()])
