"""Differentiates a program: from the steps of forward to the steps of backward, as a program.

Reverse mode. The gradient of each value is the sum of what its readers give back, column by column;
a sum or a copy passes its own gradient on as it is, which costs nothing. The result reads values of
forward as they are: an input that no operator of backward makes is one that forward saved.
"""

from __future__ import annotations

from dynbatch.compiler.gradient_sums import GradientSums
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.program import Program
from dynbatch.kernels import binary
from dynbatch.kernels.unary import arithmetic


class BackwardProgram(Program):
    """The step of backward.

    Attributes:
        forward:          the program that it differentiates.
        export_gradients: inputs: the gradient of each export.
        left_gradients:   inputs: the gradient of each part of the state that the step left. What
                          the step carries to the one before it is `following`.
        of_streams:       gradients of the streams that the loop reads directly, by number.
        of_maps:          gradients of the outputs of linear maps, by number: every row is needed
                          at the end, for one product for each weight.
    """

    def __init__(self, forward: LoopProgram) -> None:
        super().__init__()
        self.forward = forward
        self.export_gradients = [
            self.value(v.width, Origin.EXPORT_GRADIENT, k) for k, v in enumerate(forward.exports)
        ]
        self.left_gradients = [
            self.value(v.width, Origin.LEFT_GRADIENT, k) for k, v in enumerate(forward.following)
        ]
        self.of_streams: dict[int, Value] = {}
        self.of_maps: dict[int, Value] = {}

    def results(self) -> list[Value]:
        return [*self.packed_results(), *self.following]

    def leaving(self) -> set[int]:
        """Gradients that leave the program, but not maps' outputs, which several maps may share."""
        return {id(v) for v in [*self.of_streams.values(), *self.following]}

    def packed_results(self) -> list[Value]:
        return [*self.of_streams.values(), *self.of_maps.values()]

    def saved(self) -> list[Value]:
        made = {id(v) for op in self.forward.every_op() for v in op.outputs}
        return [x for op in self.ops for x in op.inputs if id(x.base) in made]

    def multiplied(self) -> list[Value]:
        """Factors of linear maps whose output has a gradient: gradients of weights read them."""
        return [self.forward.linear_maps[number].inputs[0] for number in self.of_maps]

    def found_states(self) -> dict[int, Value]:
        """Parts of the state that a weight's gradient needs as every step found them, by number."""
        numbers = {x.base.number for x in self.multiplied() if x.base.origin is Origin.STATE}
        return {k: self.forward.states[k] for k in sorted(numbers)}


def differentiate(forward: LoopProgram) -> BackwardProgram:
    """The backward program of a fused program."""
    program = BackwardProgram(forward)
    sums = GradientSums(program)
    for value, gradient in zip(forward.following, program.left_gradients, strict=True):
        sums.add(value, gradient)
    for value, gradient in zip(forward.exports, program.export_gradients, strict=True):
        sums.add(value, gradient)
    for op in reversed(forward.ops):
        dy = sums.gradient(op.output) if op.passes_gradient else None
        if dy is not None:
            _differentiate_op(program, sums, op, dy)
    for number, op in enumerate(forward.linear_maps):
        dy = sums.gradient(op.output)
        if dy is not None and dy.base.origin is Origin.LEFT_GRADIENT:  # it has no row a token
            dy = program.side_by_side(dy.width, [(0, dy)])
        if dy is not None:
            program.of_maps[number] = dy
    taken = {id(value.base) for value in program.of_maps.values()}
    for value in forward.streams:
        dx = sums.gradient(value)
        if dx is not None:
            program.of_streams[value.number] = _own(program, dx, taken)
    for value in forward.states:
        dx = sums.gradient(value) or program.side_by_side(value.width, [])
        program.following.append(_own(program, dx, taken))
    return program


def _own(program: Program, value: Value, taken: set[int]) -> Value:
    """A whole value that an operator of backward makes, and that is not another result too."""
    is_own = value.base is value and value.origin is Origin.OPERATOR and id(value) not in taken
    value = value if is_own else program.side_by_side(value.width, [(0, value)])
    taken.add(id(value))
    return value


def _differentiate_op(program: Program, sums: GradientSums, op: Op, dy: Value) -> None:
    if op.opcode is OpCode.GENERIC:
        _differentiate_generic(program, sums, op, dy)
    elif op.is_linear:
        (x,) = op.inputs
        sums.add(x, program.make(OpCode.LINEAR_GRADIENT, [dy], x.width, source=op))
    elif op.opcode is OpCode.COPY:
        for x, column in op.parts():
            sums.add(x, program.columns(dy, column, x.width))
    elif op.opcode is OpCode.CONTRACT:
        for position, x in enumerate(op.inputs):
            others = [*op.inputs[:position], *op.inputs[position + 1 :]]
            nest = op.nest.gradient(position)
            sums.add(x, program.make(OpCode.CONTRACT, [dy, *others], x.width, nest=nest))
    elif op.is_multiply:
        for x, other in zip(op.inputs, op.inputs[::-1], strict=True):
            sums.add(x, dy, other)
    else:
        first = int(op.opcode is OpCode.WHERE)  # no gradient reaches the mask
        for position, x in enumerate(op.inputs[first:], first):
            sums.add(x, _partial(program, op, dy, position))


def _differentiate_generic(program: Program, sums: GradientSums, op: Op, dy: Value) -> None:
    retains = op.node.retains
    read = [
        x
        for position, x in enumerate(op.inputs)
        if retains.input(position) or x.base.origin is Origin.MEMORY
    ]
    targets = [x for x in op.inputs if x.base.origin is not Origin.MEMORY]
    saved = [op.output] if retains.output else []
    gradient = Op(OpCode.GENERIC_GRADIENT, [dy, *saved, *read], dy, source=op)
    gradient.outputs = [program.value(x.width) for x in targets]
    program.ops.append(gradient)
    for x, dx in zip(targets, gradient.outputs, strict=True):
        sums.add(x, dx)


def _partial(program: Program, op: Op, dy: Value, position: int) -> Value:
    """dy ⊙ ∂f/∂x of the input at a position, by the function's own backward if it has no other."""
    if op.kernel is binary.multiply:  # by a number
        return program.make(op.opcode, [dy], dy.width, kernel=op.kernel, number=op.number)
    if op.kernel is arithmetic.negative or (op.kernel is binary.subtract and position):
        return program.make(OpCode.UNARY, [dy], dy.width, kernel=arithmetic.negative)
    if op.kernel in (binary.add, binary.subtract):
        return dy
    inputs = [dy, *partial_reads(op)]
    width = op.output.width
    return program.make(OpCode.PARTIAL, inputs, width, source=op, position=position)


def partial_reads(op: Op) -> list[Value]:
    """The operands of an elementwise function, or its result, that its derivatives read."""
    if op.opcode is OpCode.UNARY:
        return {"input": op.inputs, "output": op.outputs}.get(op.kernel.reads, [])
    if op.opcode is OpCode.BINARY:
        return [x for x, is_read in zip(op.inputs, op.kernel.reads, strict=True) if is_read]
    if op.opcode is OpCode.WHERE:
        return op.inputs[:1]
    return op.inputs if op.node.retains.inputs else []
