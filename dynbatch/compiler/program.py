"""The loop of a cell as a small static program: values with widths, and operators on them.

Built from the traced nodes, and then made wide (see `widen`): linear maps of one input become one
product, and equal elementwise operators on neighbouring columns one operator. What is spelt out
gate by gate thus runs as the same few wide kernels that a hand-fused cell would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.compiler.trace import Split, Trace
from dynbatch.nodes.arithmetic import Binary, Multiply, Scale, Shift, WithNumber
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.dropout import InvertedDropout, Ones
from dynbatch.nodes.elementwise import Unary
from dynbatch.nodes.linear import LinearMap
from dynbatch.nodes.node import Node
from dynbatch.nodes.selection import Where
from dynbatch.nodes.shape.indexing import Slice
from dynbatch.nodes.shape.structure import Structural
from dynbatch.parameter import Parameter

# Node types that generated code computes, and the kind of their operators.
KINDS = {
    Unary: "unary", Binary: "binary", Scale: "scale", Shift: "shift", WithNumber: "number",
    Where: "where",
}  # fmt: skip
ELEMENTWISE = tuple(KINDS.values())


class Value:
    """One step's vector, or a range of columns of a wider one.

    planes: widths of the parts that a wide value was merged from; parts of equal width are stored
            one after the other (plane by plane), so that each is contiguous.
    origin: "stream" (per token, computed before the loop), "prev" (a part of the state as the step
        finds it), "memory" (a sentence's rows), or "op" (made by an operator of the loop).
    place:  which stream, state part or memory.
    """

    __slots__ = ("base", "column", "origin", "place", "planes", "width")

    def __init__(self, width: int, origin: str = "op", place: int = 0) -> None:
        self.width = width
        self.origin = origin
        self.place = place
        self.planes: tuple[int, ...] = (width,)
        self.base: Value = self
        self.column = 0

    def become_view(self, base: Value, column: int) -> None:
        """From now on these are columns of `base`."""
        self.base, self.column = base.base, base.column + column

    def is_whole(self) -> bool:
        """Whether the value is all of its base."""
        return self.width == self.base.width

    def overlaps(self, other: Value) -> bool:
        """Whether the two share columns."""
        return (
            self.base is other.base
            and self.column < other.column + other.width
            and other.column < self.column + self.width
        )


class WeightRows:
    """Some rows of one weight as a share of a wide linear map.

    rows:   of the weight, [first, first + width).
    column: where its outputs begin in the wide map's.
    biases: parameters added to it, each with its own first row.
    """

    __slots__ = ("biases", "column", "first", "weight", "width")

    def __init__(
        self, weight: Parameter, first: int, width: int, biases: list[tuple[Parameter, int]]
    ) -> None:
        self.weight = weight
        self.first = first
        self.width = width
        self.biases = biases
        self.column = 0

    def part(self, column: int, width: int) -> WeightRows:
        """Some of its columns."""
        biases = [(bias, first + column) for bias, first in self.biases]
        return WeightRows(self.weight, self.first + column, width, biases)


class Op:
    """One operator of the loop.

    kind: "linear" (with pieces), "unary", "binary", "scale", "shift", "number" (a function of two
        values, one of them a number), "where", "copy" (input k into columns from `columns[k]`), or
        "generic": any other node type, by its own batched kernels.
    """

    __slots__ = ("columns", "inputs", "kind", "node", "output", "pieces")

    def __init__(self, kind: str, inputs: list[Value], output: Value, node: Any = None) -> None:
        self.kind = kind
        self.inputs = inputs
        self.output = output
        self.node = node
        self.pieces: list[WeightRows] = []
        self.columns: list[int] = []

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal keys: the same function, which may run once on wider operands."""
        if self.kind in ("unary", "binary", "where"):
            arguments = self.node.arguments() if self.kind == "unary" else ()
            return (self.kind, type(self.node), arguments, len(self.inputs))
        if self.kind in ("scale", "shift", "number"):
            return (self.kind, type(self.node), self.node.number)
        return (id(self),)


class Program:
    """A cell's loop: streams and states in, exports and next states out.

    Attributes:
        streams:     values read per token; `stream_nodes` are the traced nodes behind them.
        memories:    values with rows of their own; `memory_nodes` are the traced nodes behind them.
        stream_maps: wide linear maps of a stream: one product for all tokens, before the loop.
        ops:         the loop's operators, in order.
        exports:     values that leave the loop, side by side in the scan's output.
        following:   the value of each part of the next state.
    """

    def __init__(self, trace: Trace, parts: Split) -> None:
        self.begin(parts)
        self._token = trace.tokens[0]
        self.states += [self.value(n.width, "prev", k) for k, n in enumerate(trace.states)]
        for node, value in zip(trace.states, self.states, strict=True):
            self._by_node[node.index] = value
        self._find_read_outside([trace.output, *trace.next_states])
        for node in parts.loop:
            self.add(node)
        self.leave(parts.exports, trace.next_states)

    def begin(self, parts: Split) -> None:
        """An empty program."""
        self.states: list[Value] = []
        self.streams: list[Value] = []
        self.stream_nodes: list[Node] = []
        self.memories: list[Value] = []
        self.memory_nodes: list[Node] = []
        self.stream_maps: list[Op] = []
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self._by_node: dict[int, Value] = {}
        self._parts = parts
        self._kinds = parts.kinds
        self._read_outside: set[int] = set()

    def leave(self, exports: Sequence[Node], following: Sequence[Node]) -> None:
        """Name what leaves a step: to the world outside, and to the next step."""
        taken: set[int] = set()
        self.exports = [self._leaving(node, taken) for node in exports]
        taken.clear()
        self.following = [self._leaving(node, taken) for node in following]

    def enter(self, node: Node) -> None:
        """A value that a step is given: a stream."""
        self._by_node[node.index] = self._stream(node)

    def value(self, width: int, origin: str = "op", place: int = 0) -> Value:
        """A new value, known to the program."""
        made = Value(width, origin, place)
        self.values.append(made)
        return made

    def leaving(self) -> set[int]:
        """Identities of the values that leave a step."""
        return {id(v) for v in [*self.exports, *self.following]}

    def _find_read_outside(self, leaving: Sequence[Node]) -> None:
        """What must be made as a node. Parts of a linear map that only the loop reads need not."""
        self._read_outside = {x.index for n in self._parts.after for x in n.inputs}
        self._read_outside |= {n.index for n in leaving}
        for node in reversed(self._parts.before):
            if not self._is_part_of_map(node):
                self._read_outside |= {x.index for x in node.inputs}

    def _is_part_of_map(self, node: Node) -> bool:
        """Whether a node is some columns of a linear map of the tokens, read by the loop alone."""
        while isinstance(node, Slice) and self._kinds[node.index] == "token":
            if node.index in self._read_outside:
                return False
            (node,) = node.inputs
            if isinstance(node, LinearMap):
                return True
        return False

    # From nodes to operators ----------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """An operator of the loop."""
        if isinstance(node, Structural):
            self._add_structural(node)
            return
        output = self._by_node[node.index] = self.value(node.width)
        if isinstance(node, InvertedDropout):
            node = self._masked(node)
        inputs = [self._read(x) for x in node.inputs]
        if isinstance(node, LinearMap):
            self.ops.append(_linear(node, inputs[0], output))
            return
        kind = next((k for t, k in KINDS.items() if isinstance(node, t)), "generic")
        self.ops.append(Op(kind, inputs, output, node))

    def _masked(self, node: InvertedDropout) -> Node:
        """Dropout inside the recurrence: a product with a mask that the tokens bring along.

        The mask is made ahead of the loop by the very node that drops outside cells, so it too is
        the same whatever else is in the mini-batch, and another one at each step.
        """
        ones = Ones(self._token, columns=node.width)
        mask = InvertedDropout(ones, p=node.p, stream=0)
        self._parts.before += [ones, mask]
        self._kinds.update({ones.index: "token", mask.index: "token"})
        return Multiply(node.inputs[0], mask)

    def _add_structural(self, node: Node) -> None:
        assert isinstance(node, Structural)
        output = self._by_node[node.index] = self.value(node.width)
        rectangles = list(type(node).rectangles(Batch([node], node.graph.dtype)))
        if len(rectangles) == 1 and rectangles[0].width == node.width:
            output.become_view(self._read(rectangles[0].source), rectangles[0].source_column)
            return
        op = Op("copy", [], output, node)
        for r in rectangles:
            part = self.value(r.width)
            part.become_view(self._read(r.source), r.source_column)
            op.inputs.append(part)
            op.columns.append(r.target_column)
        self.ops.append(op)

    def _read(self, node: Node) -> Value:
        known = self._by_node.get(node.index)
        if known is not None:
            return known
        kind = self._kinds[node.index]
        if self._is_part_of_map(node):
            self._add_structural(node)
            return self._by_node[node.index]
        if kind == "memory" and node.ndim == 2:
            value = self.value(node.width, "memory", len(self.memories))
            self.memories.append(value)
            self.memory_nodes.append(node)
        elif (
            kind == "token" and isinstance(node, LinearMap) and node.index not in self._read_outside
        ):
            # A linear map of the tokens that only the loop reads: the scan makes it itself, in its
            # own row order, rather than reorder its wide result.
            value = self.value(node.width)
            self.stream_maps.append(_linear(node, self._stream(node.inputs[0]), value))
        else:
            value = self._stream(node)
        self._by_node[node.index] = value
        return value

    def _stream(self, node: Node) -> Value:
        for value, known in zip(self.streams, self.stream_nodes, strict=True):
            if known is node:
                return value
        value = self.value(node.width, "stream", len(self.streams))
        self.streams.append(value)
        self.stream_nodes.append(node)
        return value

    def _leaving(self, node: Node, taken: set[int]) -> Value:
        """A value of its own for what leaves the step: not a view, not a linear map, not twice."""
        value = self._read(node)
        made = [op for op in self.ops if op.output is value and op.kind != "linear"]
        if made and id(value) not in taken:
            taken.add(id(value))
            return value
        copy = self.value(value.width)
        op = Op("copy", [value], copy, node)
        op.columns = [0]
        self.ops.append(op)
        taken.add(id(copy))
        return copy


def _linear(node: LinearMap, source: Value, output: Value) -> Op:
    op = Op("linear", [source], output, node)
    biases = [] if node.bias is None else [(node.bias, 0)]
    op.pieces = [WeightRows(node.weight, 0, output.width, biases)]
    return op


def passes_gradient(op: Op) -> bool:
    """Whether a gradient reaches its inputs: not so for a comparison."""
    return op.kind in ("linear", "copy") or bool(op.node.differentiable)


def readers(program: Program, value: Value) -> list[Op]:
    """Operators of the loop that read any column of `value`."""
    return [op for op in program.ops if any(x.overlaps(value) for x in op.inputs)]
