"""`PreparedStep`: a step of generation that was recorded and planned once, and runs many times."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.batcher.execution.repeated import RepeatedRun
from dynbatch.blocks.resumed_call import ResumedCall
from dynbatch.generation.resumed import Resumed
from dynbatch.generation.step_rows import StepRows
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node


def value_of(node: Node, graph: Graph, starts: bool = True) -> Array:
    """A copy of a node's value where it was computed; see `Graph.device_value` for `starts`."""
    return graph.device_value(node, starts) if graph.device.is_cuda else node.value


class PreparedStep:
    """A step over given numbers of rows, whatever the sentences and what they hold.

    Args:
        graph:   its own.
        resumed: what runs.
        new:     (N,) rows of each sentence.
        room:    rows of a scan's memory, of all sentences together.
    """

    def __init__(self, graph: Graph, resumed: Resumed, new: Array, room: int) -> None:
        self.resumed = resumed
        self.room = room
        self._graph = graph
        self._call = ResumedCall.of(resumed.program, new, graph)
        self._run: RepeatedRun | None = None

    def logits(self, ids: Array, step: StepRows) -> Array:
        """The logits (N, V) after the last of each sentence's new ids."""
        self.resumed.tell(self._call, ids, step.before, step.pasts(self.room))
        if self._run is not None:
            self._run.run()
            return value_of(self._call, self._graph, starts=False)  # with what chooses by it
        logits = value_of(self._call, self._graph)
        self._run = self._graph.repeated()
        return logits

    def rest(self) -> None:
        if self._run is not None:
            self._run.rest()

    def close(self) -> None:
        """Give all memory back; it does not run again."""
        self._graph.close()
