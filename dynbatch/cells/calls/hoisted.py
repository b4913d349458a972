"""`HoistedNodes`: computations that a cell's calls share, as ordinary nodes, made once."""

from __future__ import annotations

from collections.abc import Container, Sequence

from dynbatch.cells.calls.compiled_step import CompiledStep, StepTrace
from dynbatch.compiler.prologue import copy_of_source, once
from dynbatch.compiler.trace import Section
from dynbatch.nodes.node import Node, Owner

NodesByTrace = dict[int, Node]
"""Nodes of a graph, by the index of the traced node that each is in place of."""


class HoistedNodes:
    """One graph's nodes in place of a trace's constants and of values computed from memories.

    Attributes:
        constants:   the nodes that all calls share.
        of_memories: the nodes that the calls share that were given the same matrices.
        replaced:    of each node that was made because the one before was freed, that one.
    """

    def __init__(self, trace: StepTrace, graph: Owner) -> None:
        self._trace = trace
        self._graph = graph
        self.constants: NodesByTrace = {}
        self.of_memories: dict[tuple[Node, ...], NodesByTrace] = {}
        self.replaced: dict[Node, Node] = {}

    def of_constants(self, step: CompiledStep) -> list[Node]:
        self._make(step, self.constants, of_memory=False)
        return [self.constants[node.index] for node in step.program.constants]

    def of_all(self, step: CompiledStep, memories: Sequence[tuple[Node, ...]]) -> list[list[Node]]:
        """The nodes in place of values computed from memories: one per value and sentence.

        Matrices that the loop reads come first, then summaries (see `StepProgram`).

        Args:
            memories: of each sentence, one for each matrix that the cell is given.
        """
        self._make(step, self.constants, of_memory=False)
        sentences = []
        for arguments in memories:
            nodes = self.of_memories.get(arguments)
            if nodes is None:
                placeholders = [node.index for node in self._trace.memories]
                nodes = self.of_memories[arguments] = dict(
                    zip(placeholders, arguments, strict=True)
                )
            self._make(step, nodes, of_memory=True)
            sentences.append(nodes)
        wanted = [*step.program.memory_nodes, *step.program.summaries]
        return [[nodes[node.index] for nodes in sentences] for node in wanted]

    def _make(self, step: CompiledStep, nodes: NodesByTrace, of_memory: bool) -> None:
        for node in step.parts.before:
            follows = node.index in self._trace.of_memory
            if step.parts.sections[node.index] is not Section.MEMORY or follows is not of_memory:
                continue
            before = nodes.get(node.index)
            block = before._block if before is not None else None
            if before is not None and (block is None or block.array is not None):
                continue  # it has not been freed
            if node.inputs:
                known = self.constants | nodes
                fresh = once(node, [known[x.index] for x in node.inputs])
            else:
                fresh = copy_of_source(node, self._graph)
            if before is not None:
                self.replaced[fresh] = before
            nodes[node.index] = fresh

    def node_among(self, inputs: Container[Node], nodes: NodesByTrace, traced: Node) -> Node:
        """The node in place of a traced one that is among a region's inputs, perhaps long freed.

        Args:
            nodes: `constants`, or what was made of the same matrices.
        """
        node = nodes[traced.index]
        while node not in inputs:
            node = self.replaced[node]
        return node
