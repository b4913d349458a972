"""Makes the operators before and after a cell's loop, as ordinary nodes of one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.trace import Section
from dynbatch.nodes.arithmetic import Binary
from dynbatch.nodes.dropout import InvertedDropout, Ones, dropout
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.selection import Where
from dynbatch.nodes.shape.expand import Expand, expand
from dynbatch.nodes.shape.indexing import slice as slice_node


class Prologue:
    """The operators outside a cell's loop, as nodes of one sentence in place of traced ones.

    Nodes before the loop are made at once, those after it by `epilogue`.

    Args:
        compiled: the cell.
        xs:       the sentence, (T, D), or several side by side.
        memories: its memories.
    """

    def __init__(
        self, compiled: CompiledCell, xs: Sequence[Node], memories: Sequence[Node]
    ) -> None:
        self._compiled = compiled
        self._xs = xs[0]
        tokens = [node.index for node in compiled.trace.tokens]
        self._nodes = dict(zip(tokens, xs, strict=True))
        for placeholder, memory in zip(compiled.trace.memories, memories, strict=True):
            self._nodes[placeholder.index] = memory
        self._repeated: dict[int, Node] = {}
        for node in compiled.ahead:
            self._make(node)

    def streams(self) -> list[Node]:
        return [self.rows(node) for node in self._compiled.program.stream_nodes]

    def held(self) -> list[Node]:
        """The vectors that are the same in every step of the loop."""
        return [self._nodes[node.index] for node in self._compiled.program.held_nodes]

    def memories(self) -> list[Node]:
        return [self._nodes[node.index] for node in self._compiled.program.memory_nodes]

    def rows(self, node: Node) -> Node:
        """The value with a row for each token: a sentence's single row is repeated."""
        value = self._nodes[node.index]
        if value.ndim == 2:
            return value
        if node.index not in self._repeated:
            self._repeated[node.index] = expand(value, (self._xs.rows, value.width))
        return self._repeated[node.index]

    def epilogue(self, scan: Node) -> Node:
        """The cell's outputs (T, E), from the scan's value: the exports of the loop."""
        exports = self._compiled.parts.exports
        if len(exports) == 1:
            self._nodes[exports[0].index] = scan
        else:
            for node, (_, at) in zip(exports, self._compiled.program.exports_at(), strict=True):
                self._nodes[node.index] = slice_node(scan, at, at + node.width, -1)
        for node in self._compiled.parts.after:
            self._make(node)
        return self.rows(self._compiled.trace.output)

    def _make(self, node: Operation) -> None:
        section = self._compiled.parts.sections[node.index]
        if not node.inputs:
            copy = copy_of_source(node, self._xs.graph)
        elif section is Section.MEMORY and self._compiled.trace.fixed_rows:
            inputs = [self._nodes[x.index] for x in node.inputs]
            is_repeated = isinstance(node, Expand)
            copy = expand(inputs[0], node.shape) if is_repeated else node.rebuild(*inputs)
        elif section is Section.MEMORY:
            copy = once(node, [self._nodes[x.index] for x in node.inputs])
        elif isinstance(node, InvertedDropout) and self._nodes[node.inputs[0].index].ndim < 2:
            # What is dropped is the same in all sentences; the mask must follow from this one.
            mask = dropout(Ones(self._xs, columns=node.width), node.p)
            copy = self.rows(node.inputs[0]) * mask
        else:
            copy = node.rebuild(*[self.rows(x) for x in node.inputs])
        self._nodes[node.index] = copy


def once(node: Operation, inputs: list[Node]) -> Node:
    """An operator that runs once for the sentence, whose memory has its own length."""
    if isinstance(node, Binary | Where) and len({x.shape for x in inputs}) > 1:
        rows = max([x.shape for x in inputs if x.ndim == 2], default=inputs[0].shape)
        inputs = [expand(x, rows) for x in inputs]
    return node.rebuild(*inputs)


def copy_of_source(node: Operation, graph: Owner) -> Node:
    """A constant of a cell, or a parameter used as a value, in a graph."""
    return type(node)(graph=graph, **node.attributes())
