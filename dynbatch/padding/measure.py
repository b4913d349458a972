"""A training step on one mini-batch: measured in bytes and seconds, or planned in bytes alone."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from dynbatch import nodes as F
from dynbatch.backend import Device
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.memory import Pool
from dynbatch.memory.upstream import DeviceMemory
from dynbatch.nodes.node import Node
from dynbatch.optim import Optimizer
from dynbatch.padding.padded_model import Loss, PaddedExample
from dynbatch.parameter import Parameter

Examples = Sequence[PaddedExample]


@dataclass(frozen=True)
class Step:
    """The memory and time of one training step.

    Args:
        use:            of its arena, at the peak and stage by stage.
        gradient_bytes: of the parameters' gradients.
        seconds:        from the list of examples to updated parameters; None where it was planned.
    """

    use: MemoryUse
    gradient_bytes: int
    seconds: float | None


class Stepper:
    """Runs training steps of one form of a model, each in a graph of its own.

    Args:
        loss:      (graph, *example) -> the loss of one sentence.
        collect:   run after backward (see `PaddedModel`).
        optimizer: its learning rate is 0, so that it works as ever and changes no value.
        seed:      of the dropout masks.
        plan_for:  the device that steps are planned for; None for that of the parameters.
        precision: of the graphs.

    Attributes:
        pool: gives the arenas of this form, and of no other.
    """

    def __init__(
        self,
        loss: Loss,
        collect: Callable[[], None],
        optimizer: Optimizer,
        dtype: DTypeLike,
        seed: int,
        plan_for: Device | None = None,
        precision: str = FULL,
    ) -> None:
        self.loss, self.collect = loss, collect
        self._optimizer = optimizer
        self._parameters = [state.parameter for state in optimizer._states]
        self._device, self._dtype, self._seed = self._parameters[0].device, dtype, seed
        self._plan_for, self._precision = plan_for, precision
        self.pool = _pool(self._device)

    def train(self, examples: Examples) -> Step:
        """Graph, forward, backward and update of one mini-batch, waited for."""
        self._wait()
        begin = time.perf_counter()
        with self._graph() as graph:
            graph.backward(self._mean(graph, examples))
            self.collect()
            gradient_bytes = sum(map(bytes_of_gradient, self._parameters))
            self._optimizer.step()
            self._wait()
            seconds = time.perf_counter() - begin
            use = graph.memory_use
        assert use is not None
        return Step(use, gradient_bytes, seconds)

    def plan(self, examples: Examples) -> Step:
        """The step as it is planned; no kernel runs."""
        use = self.estimate(examples)
        return Step(use, use.gradient_bytes or 0, None)

    def estimate(self, examples: Examples, memory_limit: int | None = None) -> MemoryUse:
        """The planned memory of the step's arena, within a limit or without; no kernel runs."""
        with self._graph() as graph:
            loss = self._mean(graph, examples)
            return graph.estimate(loss, memory_limit, device=self._plan_for)

    def value(self, examples: Examples) -> float:
        """The mean loss of the mini-batch. Its values, all kept to be read, are no step's: they lie
        in a pool of their own.
        """
        with self._graph(grad=False, pool=_pool(self._device)) as graph:
            return float(self._mean(graph, examples).value)

    def traced(self, examples: Examples) -> int | None:
        """The most bytes that NumPy and Python hold in forward and backward, all counted: the
        arena, parameters' gradients and the rest. None on a GPU.
        """
        if self._device.is_cuda:
            return None
        with self._graph() as graph:
            loss = self._mean(graph, examples)
            self.pool.release()
            for parameter in self._parameters:
                parameter._buffer = None  # where earlier gradients lay, before the tracer looked
            tracemalloc.start()
            try:
                graph.backward(loss)
                most = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            self.collect()
            self._optimizer.zero_grad()
        return most

    def _graph(self, grad: bool = True, pool: Pool | None = None) -> Graph:
        pool = self.pool if pool is None else pool
        return Graph(
            self._device, self._dtype, grad=grad, seed=self._seed, pool=pool,
            precision=self._precision,
        )  # fmt: skip

    def _mean(self, graph: Graph, examples: Examples) -> Node:
        return F.mean([self.loss(graph, *example) for example in examples])

    def _wait(self) -> None:
        if self._device.is_cuda:
            self._device.xp.cuda.runtime.deviceSynchronize()


def _pool(device: Device) -> Pool:
    return Pool(upstream=DeviceMemory(device)) if device.is_cuda else Pool()


def bytes_of_gradient(parameter: Parameter) -> int:
    gradient = parameter.grad
    return 0 if gradient is None else int(gradient.nbytes)
