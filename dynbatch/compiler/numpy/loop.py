"""`NumpyLoop`: runs both passes of a loop by NumPy, one operator after the other.

Rows are in prefix layout. Arrays by name, as `buffers.Role` has them: X streams, P and T values,
W weights (K, O), b biases, I initial states, all zeros unless `given`; for backward V weights
(O, K), dY and C gradients from outside and from the step after, D and E gradients of values, H
states as every step found them, dX gradients of streams; G operators with own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.compiler.arrays import Arrays, Step
from dynbatch.compiler.buffers import Role, Storage, array_name
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import OWN_KERNELS, PRODUCTS, Op, OpCode, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.numpy.operators import elementwise, name_of
from dynbatch.compiler.places import Pointers
from dynbatch.compiler.program import numbered
from dynbatch.kernels import blas

Numbered = tuple[int, Step]
RunSteps = Callable[[Sequence[Numbered]], None]
"""Runs steps, each with its number, in the order of the pass."""
Call = Callable[[int, tuple[slice, ...]], object]
"""What runs an operator of step t, given the rows of each kind."""

# Rows of a step: those of packed arrays, the first of temporary ones, those of the state it finds.
PACKED, FIRST, FOUND = range(3)


class NumpyLoop:
    """A loop's passes.

    Attributes:
        ops: the operators of a step, forward and back, but copies of what lies in its place.
    """

    def __init__(
        self, program: LoopProgram, storage: Storage, backward: BackwardProgram, gradients: Storage
    ) -> None:
        self._program = program
        self._following = storage.left_by_step(program)
        self._places = Pointers(gradients, storage)
        self._maps = numbered(program.linear_maps)
        self._generic = numbered(program.generic)
        self.ops = [[op for op in each.ops if self._runs(op)] for each in (program, backward)]

    def ahead(self, arrays: Arrays) -> None:
        """The wide maps of streams, for all rows at once, with weights as they lie."""
        for op in self._program.ahead:
            (x, _), (out, _) = [self._rows(v, arrays, True) for v in (*op.inputs, op.output)]
            for piece in op.pieces:
                blas.matmul_rows(x, piece.rows.T, out[:, piece.columns])
            if op.has_bias:
                np.add(out, arrays[f"b{self._maps[id(op)]}"], out)

    def bind(self, way: int, arrays: Arrays) -> RunSteps:
        """A function that runs steps forward (0) or back (1) on these arrays."""
        run = self.bind_ops(self.ops[way], arrays)

        def steps_of(steps: Sequence[Numbered]) -> None:
            for t, step in steps[:: -1 if way else 1]:
                run(t, step)

        return steps_of

    def bind_ops(self, ops: Sequence[Op], arrays: Arrays) -> Callable[[int, Step], None]:
        """A function that runs some operators of a step on these arrays."""
        first, others = [
            [call for op in ops for call in self._calls(op, arrays, is_first)]
            for is_first in (True, False)
        ]

        def run(t: int, step: Step) -> None:
            start, end, count, before = step
            earlier = slice(count) if before < 0 else slice(before, before + count)
            rows = slice(start, end), slice(count), earlier
            for call in first if before < 0 else others:
                call(t, rows)

        return run

    def _calls(self, op: Op, arrays: Arrays, is_first: bool) -> list[Call]:
        """The calls of an operator: none for a product whose result nothing asks for."""
        is_zero = is_first and not arrays.get("given")
        if op.opcode in OWN_KERNELS:
            return [self._generic_call(op, arrays, is_first)]
        if op.opcode is OpCode.COPY:
            pairs = [[self._rows(v, arrays, is_first) for v in pair] for pair in self._moved(op)]
            holes = [self._rows(hole, arrays, is_first) for hole in op.holes()]
            copies = [_bound(np.copyto, [to, x]) for x, to in pairs]
            return [*copies, *[_bound(lambda out: out.fill(0), [hole]) for hole in holes]]
        function = self._product(op, arrays, is_zero) if op.opcode in PRODUCTS else elementwise(op)
        operands = [self._rows(value, arrays, is_first) for value in (*op.inputs, op.output)]
        return [_bound(function, operands)] if function else []

    def _product(self, op: Op, arrays: Arrays, is_zero: bool) -> Callable[..., object] | None:
        """A product with packed weights; a state of zeros has none, and wants no gradient."""
        number = self._maps[id(op.source or op)]
        if op.opcode is OpCode.LINEAR_GRADIENT:
            weight = arrays[f"V{number}"]
            is_wanted = not (is_zero and op.source and op.source.reads_state)
            return (lambda dy, out: blas.matmul(dy, weight, out)) if is_wanted else None
        weight, bias = arrays[f"W{number}"], arrays[f"b{number}"]
        if is_zero and op.reads_state:
            return lambda x, out: np.copyto(out, bias)
        if not op.has_bias:
            return lambda x, out: blas.matmul(x, weight, out)

        def product(x: Array, out: Array) -> None:
            blas.matmul(x, weight, out)
            np.add(out, bias, out)

        return product

    def _generic_call(self, op: Op, arrays: Arrays, is_first: bool) -> Call:
        """The call of an operator's own kernels; a memory is given by its number."""
        source = op.source or op
        step = arrays[f"G{self._generic[id(source)]}"]

        def of(value: Value) -> Any:
            is_memory = value.base.origin is Origin.MEMORY
            return value.number if is_memory else self._rows(value, arrays, is_first)

        if op is source:
            xs, out = [of(x) for x in op.inputs], of(op.output)
            return lambda t, rows: step.forward(
                t, rows[FIRST].stop, _cut(out, rows), *[_cut(x, rows) for x in xs]
            )
        retains, results = source.node.retains, iter(op.outputs)
        reads: list[Any] = []
        targets: list[Any] = []
        for position, x in enumerate(source.inputs):
            is_memory = x.base.origin is Origin.MEMORY
            reads.append(of(x) if is_memory or retains.input(position) else None)
            targets.append(None if is_memory else of(next(results)))
        dy, y = of(op.inputs[0]), of(source.output) if retains.output else None

        def backward(t: int, rows: tuple[slice, ...]) -> None:
            cut = [[_cut(x, rows) for x in xs] for xs in ((dy, y), reads, targets)]
            step.backward(t, rows[FIRST].stop, *cut[0], tuple(cut[1]), tuple(cut[2]))

        return backward

    def _runs(self, op: Op) -> bool:
        return op.opcode is not OpCode.COPY or bool(op.holes() or self._moved(op))

    def _moved(self, op: Op) -> list[tuple[Value, Value]]:
        """Operands of a copy that lie elsewhere than it puts them, and these places."""
        parts = [(x, Value.columns(op.output, column, x.width)) for x, column in op.parts()]
        return [(x, to) for x, to in parts if self._places.of(x) != self._places.of(to)]

    def _rows(self, value: Value, arrays: Arrays, is_first: bool) -> tuple[Array, int]:
        base, column = value.base, value.column
        if base.origin is not Origin.STATE:
            buffer, first = self._places.buffer_of(base)
            name, kind = buffer.name, PACKED if buffer.packed else FIRST
        elif is_first or (left := self._following[base.number]) is None:
            kind = FOUND if is_first else FIRST
            name, first = array_name(Role.INITIAL_STATE, base.number), 0
        else:
            buffer, first, _ = left
            name, kind = buffer.name, FOUND
        return arrays[name][:, first + column : first + column + value.width], kind

    def __str__(self) -> str:
        parts = ("# in a step", "# in a step back")
        texts = [[part, *map(self._text, ops)] for part, ops in zip(parts, self.ops, strict=True)]
        return "\n".join(["\n".join(lines) for lines in texts])

    def _text(self, op: Op) -> str:
        read = [x for x in op.inputs if x.base.origin is not Origin.MEMORY]
        places = [self._places.of(x) for x in (op.output, *read)]
        out, *xs = [f"{x.array}[{x.column}:{x.column + x.width}]" for x in places]
        return f"{out} = {name_of(op)}({', '.join(xs)})"


def _bound(function: Callable[..., object], operands: Sequence[tuple[Array, int]]) -> Call:
    return lambda t, rows: function(*[array[rows[kind]] for array, kind in operands])


def _cut(operand: Any, rows: tuple[slice, ...]) -> Any:
    """A step's rows of an operand; what is not an array stays as it is."""
    return operand[0][rows[operand[1]]] if isinstance(operand, tuple) else operand
