"""`LoopProgram`: a cell's loop as a program, from the nodes of its trace.

Cells spelt out gate by gate and cells fused by hand still differ here; `fusion` makes them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from dynbatch.compiler.ir import ELEMENTWISE_TYPES, Op, OpCode, Origin, Value, WeightRows
from dynbatch.compiler.matrices import MatrixNodes
from dynbatch.compiler.program import Program
from dynbatch.compiler.split import Split, makes_or_reads_matrix
from dynbatch.compiler.trace import Section, Trace
from dynbatch.nodes.arithmetic import Multiply
from dynbatch.nodes.dropout import InvertedDropout, Ones
from dynbatch.nodes.linear import LinearMap
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.reshape import reshape
from dynbatch.nodes.shape.slice import Slice
from dynbatch.nodes.shape.structure import Structural


class LoopProgram(Program):
    """A cell's loop: streams and states in, exports and next states out.

    Attributes:
        streams:     values read per token; `stream_nodes` are the traced nodes behind them.
        memories:    values with rows of their own; `memory_nodes` are the traced nodes behind them.
        held_nodes:  traced vectors that are the same in every step: the last parts of the state,
                     which no step changes.
        exports:     values that leave the loop, side by side in the scan's output.
    """

    def __init__(self, trace: Trace, parts: Split) -> None:
        self.begin(parts)
        self._token = trace.tokens[0]
        for number, node in enumerate(trace.states):
            state = self.value(node.rows * node.width, Origin.STATE, number)
            self.states.append(state)
            self._by_node[node.index] = state
        self._find_read_outside([trace.output, *trace.next_states])
        self._find_read_by_element()
        for node in parts.loop:
            self.add(node)
        self.leave(parts.exports, trace.next_states)
        self.following += self.states[len(trace.states) :]

    def begin(self, parts: Split) -> None:
        super().__init__()
        self.states: list[Value] = []
        self.streams: list[Value] = []
        self.stream_nodes: list[Node] = []
        self.memories: list[Value] = []
        self.memory_nodes: list[Node] = []
        self.held_nodes: list[Node] = []
        self._can_hold: set[int] = set()
        self._flat: dict[int, Value] = {}
        self._by_node: dict[int, Value] = {}
        self._matrices = MatrixNodes(self, self._read_flat)
        self._parts = parts
        self._sections = parts.sections
        self._read_outside: set[int] = set()

    def leave(self, exports: Sequence[Node], following: Sequence[Node]) -> None:
        """Set the values that leave a step: the outputs, and the next state."""
        taken: set[int] = set()
        self.exports = [self._leaving(node, taken) for node in exports]
        taken.clear()
        self.following = [self._next(k, node, taken) for k, node in enumerate(following)]

    def enter(self, node: Node) -> None:
        """Make a node a stream: an input of each step."""
        self._by_node[node.index] = self._stream(node)

    @property
    def width(self) -> int:
        """The width of all exports together."""
        return sum([value.width for value in self.exports])

    def exports_at(self) -> list[tuple[Value, int]]:
        """The exports, each with its first column in the scan's output."""
        columns = accumulate([value.width for value in self.exports], initial=0)
        return [*zip(self.exports, columns, strict=False)]

    def results(self) -> list[Value]:
        return [*self.exports, *[self.following[k] for k in self.changed_states()]]

    def changed_states(self) -> dict[int, Value]:
        pairs = zip(self.states, self.following, strict=False)
        return {k: state for k, (state, left) in enumerate(pairs) if left is not state}

    @property
    def linear_maps(self) -> list[Op]:
        """Every linear map: of the streams, then of the loop."""
        return [*self.ahead, *[op for op in self.ops if op.is_linear]]

    @cached_property
    def is_by_sentence(self) -> bool:
        """Whether C runs all steps of a sentence before those of the next: see `c.by_sentence`.

        It is asked once all passes are through, at each run.
        """
        shares = any([op.shares_rows for op in self.ops])
        return bool(self.states) and self.has_matrices and not shares

    @property
    def generic(self) -> list[Op]:
        return [op for op in self.ops if op.opcode is OpCode.GENERIC]

    def _find_read_outside(self, leaving: Sequence[Node]) -> None:
        """Find the nodes to compute outside: not the parts of a map that only the loop reads."""
        self._read_outside = {x.index for n in self._parts.after for x in n.inputs}
        self._read_outside |= {n.index for n in leaving}
        for node in reversed(self._parts.before):
            if not self._is_part_of_map(node):
                self._read_outside |= {x.index for x in node.inputs}

    def _is_part_of_map(self, node: Node) -> bool:
        while isinstance(node, Slice) and self._sections[node.index] is Section.TOKEN:
            if node.index in self._read_outside:
                return False
            (node,) = node.inputs
            if isinstance(node, LinearMap):
                return True
        return False

    # From nodes to operators ----------------------------------------------------------------------

    def add(self, node: Node) -> None:
        if self._is_of_matrices(node):
            self._matrices.add(node)
            return
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
        opcodes = [code for type_, code in ELEMENTWISE_TYPES.items() if isinstance(node, type_)]
        self.ops.append(Op(opcodes[0] if opcodes else OpCode.GENERIC, inputs, output, node))

    def _masked(self, node: InvertedDropout) -> Node:
        """Dropout inside the recurrence: a product with a mask that is a stream.

        The mask is made ahead of the loop by the very node that drops outside cells, so it too is
        the same whatever else is in the mini-batch, and another one at each step.
        """
        ones = Ones(self._token, columns=node.width)
        mask = InvertedDropout(ones, p=node.p, stream=0)
        self._parts.before += [ones, mask]
        self._sections.update({ones.index: Section.TOKEN, mask.index: Section.TOKEN})
        return Multiply(node.inputs[0], mask)

    def _add_structural(self, node: Node) -> None:
        assert isinstance(node, Structural)
        output = self._by_node[node.index] = self.value(node.width)
        rectangles = type(node).rectangles_of(node)
        if len(rectangles) == 1 and rectangles[0].width == node.width:
            output.become_view(self._read(rectangles[0].source), rectangles[0].source_column)
            return
        parts = [self.columns(self._read(r.source), r.source_column, r.width) for r in rectangles]
        columns = [r.target_column for r in rectangles]
        self.ops.append(Op(OpCode.COPY, parts, output, node, columns=columns))

    def _read(self, node: Node) -> Value:
        known = self._by_node.get(node.index)
        known = self._matrices.flat(node) if known is None else known
        if known is not None:
            return known
        section = self._sections[node.index]
        if self._is_part_of_map(node):
            self._add_structural(node)
            return self._by_node[node.index]
        is_inside = node.index not in self._read_outside
        if section is Section.MEMORY and node.ndim == 2:
            value = self.value(node.width, Origin.MEMORY, len(self.memories))
            self.memories.append(value)
            self.memory_nodes.append(node)
        elif section is Section.TOKEN and isinstance(node, LinearMap) and is_inside:
            # A linear map of the tokens that only the loop reads: the scan makes it itself, in its
            # own row order, rather than reorder its wide result.
            value = self.value(node.width)
            self.ahead.append(_linear(node, self._stream(node.inputs[0]), value))
        elif section is Section.MEMORY and node.ndim == 1 and node.index in self._can_hold:
            value = self.value(node.width, Origin.STATE, len(self.states))
            self.states.append(value)
            self.held_nodes.append(node)
        else:
            value = self._stream(node)
        self._by_node[node.index] = value
        return value

    def _is_of_matrices(self, node: Node) -> bool:
        return makes_or_reads_matrix(node, self._sections)

    def _read_flat(self, node: Node) -> Value:
        """A value that matrices are made of; a matrix that is the same in every step is held."""
        if node.ndim < 2 or self._sections[node.index] is not Section.MEMORY:
            return self._read(node)
        if node.index not in self._flat:
            flat = reshape(node, (node.rows * node.width,))
            assert isinstance(flat, Operation)
            self._parts.before.append(flat)
            self._sections[flat.index] = Section.MEMORY
            self._can_hold.add(flat.index)
            self._flat[node.index] = self._read(flat)
        return self._flat[node.index]

    def _find_read_by_element(self) -> None:
        """Find the nodes that elementwise operators of the loop read, and no others.

        Linear maps, also of a slice, and operators with kernels of their own read rows of tokens.
        """
        by_element = (InvertedDropout, *ELEMENTWISE_TYPES)
        sides: list[set[int]] = [set(), set()]
        for node in self._parts.loop:
            is_by_element = isinstance(node, by_element) or self._is_of_matrices(node)
            sides[is_by_element] |= {x.index for x in node.inputs}
        self._can_hold = sides[1] - sides[0]

    def _next(self, part: int, node: Node, taken: set[int]) -> Value:
        """A part of the state after a step: the state itself where no step changes it."""
        is_kept = self.states[part : part + 1] == [self._read_flat(node)]
        if is_kept and node.index in self._can_hold:
            return self.states[part]
        return self._leaving(node, taken)

    def _stream(self, node: Node) -> Value:
        for value, known in zip(self.streams, self.stream_nodes, strict=True):
            if known is node:
                return value
        value = self.value(node.width, Origin.STREAM, len(self.streams))
        self.streams.append(value)
        self.stream_nodes.append(node)
        return value

    def _leaving(self, node: Node, taken: set[int]) -> Value:
        """A separate value for one that leaves the step as a view, a linear map, or twice."""
        value = self._read_flat(node)
        is_own = any([op.output is value and not op.is_linear for op in self.ops])
        if not is_own or id(value) in taken:
            value = self.side_by_side(value.width, [(0, value)])
        taken.add(id(value))
        return value


def _linear(node: LinearMap, source: Value, output: Value) -> Op:
    op = Op(OpCode.LINEAR, [source], output, node)
    biases = [] if node.bias is None else [(node.bias, 0)]
    op.pieces = [WeightRows(node.weight, 0, output.width, biases)]
    return op
