"""Prints a program's backward pass as one function of C, `backward`, with forward's parameters."""

from __future__ import annotations

from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.c.loop_text import OUTPUT_GRADIENTS, LoopText
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import Op, OpCode, Origin
from dynbatch.compiler.lowering import LoopProgram


def left_for_lanes(program: LoopProgram, storage: Storage) -> list[str]:
    """The arrays that forward leaves and backward reads in lanes and in products alone."""
    if program.has_matrices:
        return []
    read = [x for op in program.generic for x in (*op.inputs, *op.outputs)]
    states = [program.following[x.base.number] for x in read if x.base.origin is Origin.STATE]
    others = [storage.buffer_of(x)[0] for x in (*read, *states) if storage.has_place(x)]
    return [buffer.name for buffer in storage.packed if buffer not in others]


class BackwardText(LoopText):
    """The function `backward`.

    Attributes:
        text:  its source.
    """

    def __init__(
        self, backward: BackwardProgram, storage: Storage, gradients: Storage, attends: bool
    ) -> None:
        program, results = backward.forward, backward.results()
        left = left_for_lanes(program, storage)
        super().__init__("backward", program, [gradients, storage], results, attends, left)
        self.slots += [f"{letter}{k}" for k in range(len(program.states)) for letter in "CH"]
        self.slots += ["dY", *[f"dX{k}" for k in backward.of_streams], OUTPUT_GRADIENTS]
        self.slots += [f"V{self.maps[id(op)]}" for op in program.ops if op.is_linear]
        each = "for (ptrdiff_t t = count - 1; t >= 0; t--)"
        self.text = self.print(backward.ops, each, self._gathers(program), [])

    def _gathers(self, program: LoopProgram) -> list[str]:
        """Rows of streams and of the outputs' gradients, and the state that the step found."""
        width = sum([value.width for value in program.exports])
        lines = [*self.gather_streams("n"), self.gather("n", "dY", OUTPUT_GRADIENTS, width)]
        for k, x in enumerate(program.states):
            rows, out = f"n, {x.width}, h{k}, h{k}_row", f"H{k} + s * {x.width}"
            take = f"take_rows({rows}, NULL, {out})"
            if self.is_left(k):
                take = f"take_state({rows}, found, {out})"
            lines.append(f"if (H{k}) {take};")
        return lines

    def products(self, op: Op) -> list[str]:
        """dx = dy W."""
        assert op.source is not None
        if op.opcode is OpCode.GENERIC_GRADIENT:
            return self.step_of(op.source, op.inputs[0], op.source.inputs[0], op.outputs[0])
        dy, out = self.places.of(op.inputs[0]), self.places.of(op.output)
        line = (
            f"product(n, {dy.width}, {out.width}, {dy.pointer}, {dy.stride}, "
            f"V{self.maps[id(op.source)]}, NULL, 0, {out.pointer}, {out.stride});"
        )
        if op.source.reads_state:  # nothing asks for the gradient of a state that was not given
            return [f"if (!zero) {line}"]
        return [line]
