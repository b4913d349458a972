"""`AliasStep`: a batch step of nodes that share the values of their inputs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dynbatch.backend import CPU, Array
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.nodes.operation import Operation


class AliasStep(StepRun):
    """A step without launches or memory: readers of its nodes read their inputs.

    No gradient passes, since what they read is a `View`.
    """

    __slots__ = ()

    def __init__(self, nodes: Sequence[Operation]) -> None:
        super().__init__(nodes, nodes[0].graph.dtype, CPU)
        self.block.size = 0
        self.sources = []
        self._share(nodes)

    def bind(self, nodes: Sequence[Operation]) -> None:
        super().bind(nodes)
        self._share(nodes)

    def _share(self, nodes: Sequence[Operation]) -> None:
        if isinstance(nodes, Members):
            nodes.block = None  # each node lies where its input does
        for node in nodes:
            (x,) = node.inputs
            node._block, node._position, node._start = x._block.base.view(), x._position, x._start

    def forward(self, arena: Array) -> None:
        now = time.perf_counter()
        self.spans.append(("forward", now, now))
