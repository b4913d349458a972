"""Evaluates a backward program as it is written: an array for each value, an operator at a time.

It takes the place of a compiled loop's backward pass: no buffer is shared, nothing is in place.
"""

from __future__ import annotations

import numpy as np

from dynbatch.compiler.arrays import columns_of
from dynbatch.compiler.differentiate import BackwardProgram, partial_reads
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.kernels import binary

Array = np.ndarray


class StepByOperator:
    """One step of a backward program."""

    def __init__(self, loop, program: BackwardProgram, arrays, t, step):
        self.loop, self.program, self.arrays = loop, program, arrays
        self.t, (self.first, self.end, self.rows, self.before) = t, step
        self.made: dict[int, Array] = {}

    def run(self) -> None:
        program, arrays = self.program, self.arrays
        for op in program.every_op():
            results = self._compute(op)
            for value, result in zip(op.outputs, results, strict=True):
                self.made[id(value)] = np.array(result)
        if self.before >= 0 or arrays["given"]:
            for k, value in enumerate(program.following):
                arrays[f"C{k}"][: self.rows] = self.read(value)
        for number, value in program.of_streams.items():
            arrays[f"dX{number}"][self.first : self.end] = self.read(value)
        for number, value in program.of_maps.items():
            rows = columns_of(arrays, self.loop.of_maps[number])[..., self.first : self.end, :]
            if rows.ndim == 3:
                rows[...] = self.read(value).reshape(self.rows, *rows.shape[::2]).swapaxes(0, 1)
            else:
                rows[...] = self.read(value)

    def read(self, value: Value) -> Array:
        whole = self._base(value.base)
        return whole[:, value.column : value.column + value.width]

    def _base(self, base: Value) -> Array:
        if id(base) in self.made:
            return self.made[id(base)]
        arrays, number = self.arrays, base.number
        if base.origin is Origin.STREAM:
            return arrays[f"X{number}"][self.first : self.end]
        if base.origin is Origin.STATE:
            if self.before < 0:
                return arrays[f"I{number}"][: self.rows]
            left = self._columns(self.loop.program.following[number], self.before)
            return left[: self.rows]
        if base.origin is Origin.LEFT_GRADIENT:
            return np.array(arrays[f"C{number}"][: self.rows])
        if base.origin is Origin.EXPORT_GRADIENT:
            first = sum(v.width for v in self.program.export_gradients[:number])
            return arrays["dY"][self.first : self.end, first : first + base.width]
        return self._columns(base, self.first)[: self.rows]

    def _columns(self, value: Value, first: int) -> Array:
        buffer, column, width = self.loop.storage.columns_of(value)
        rows = self.arrays[buffer.name][..., first : first + self.rows, :]
        if rows.ndim == 3:
            rows = rows.swapaxes(0, 1).reshape(self.rows, -1)
        return rows[:, column : column + width]

    def _compute(self, op: Op) -> list[Array]:
        if op.opcode is OpCode.GENERIC_GRADIENT:
            return self._generic(op)
        out = np.empty((self.rows, op.output.width), self.arrays["dY"].dtype)
        xs = [self.read(x) for x in op.inputs]
        if op.opcode is OpCode.ZERO:
            out[...] = 0
        elif op.opcode is OpCode.COPY:
            for x, column in zip(xs, op.columns, strict=True):
                out[:, column : column + x.shape[1]] = x
        elif op.opcode is OpCode.UNARY:
            op.kernel.forward(*xs, out)
        elif op.opcode is OpCode.BINARY:
            op.kernel.forward(*xs, out)
        elif op.opcode is OpCode.SCALE:
            np.multiply(*xs, op.number, out=out)
        elif op.opcode is OpCode.LINEAR_GRADIENT:
            weights = [p.weight.value[p.first : p.first + p.width] for p in op.source.pieces]
            order = np.argsort([p.column for p in op.source.pieces])
            np.matmul(*xs, np.concatenate([weights[k] for k in order]), out=out)
        else:
            assert op.opcode is OpCode.PARTIAL
            self._partial(op, *xs, out=out)
        return [out]

    def _partial(self, op: Op, dy: Array, *read: Array, out: Array) -> None:
        source, kernel, position = op.source, op.source.kernel, op.position
        if source.opcode is OpCode.UNARY:
            kernel.backward(dy, read[0] if read else dy, out, *source.arguments)
            return
        if source.opcode is OpCode.WHERE:
            binary.choose_backward(dy, *read, out, position - 1)
            return
        known = {id(x): array for x, array in zip(partial_reads(source), read, strict=True)}
        a, *others = [known.get(id(x)) for x in source.inputs]
        b = others[0] if others else source.number
        if source.side:
            a, b, position = b, a, 1
        (kernel.backward_a, kernel.backward_b)[position](dy, a, b, out)

    def _generic(self, op: Op) -> list[Array]:
        source, node = op.source, op.source.node
        xs = [
            x.number
            if x.base.origin is Origin.MEMORY
            else np.array(self.read(x))
            if node.retains.input(position)
            else None
            for position, x in enumerate(source.inputs)
        ]
        room = iter([np.empty((self.rows, value.width)) for value in op.outputs])
        results = [None if x.base.origin is Origin.MEMORY else next(room) for x in source.inputs]
        output = np.array(self.read(source.output)) if node.retains.output else None
        dy = np.array(self.read(op.inputs[0]))
        (number,) = [k for k, other in self.loop.generic.items() if other is source]
        generic = self.arrays[f"G{number}"]
        generic.backward(self.t, self.rows, dy, output, tuple(xs), tuple(results))
        return [result for result in results if result is not None]


def backward_by_operator(loop, program: BackwardProgram):
    """What takes the place of `loop.backward`."""

    def backward(arrays, steps):
        for t, step in reversed(steps):
            StepByOperator(loop, program, arrays, t, step).run()

    return backward
