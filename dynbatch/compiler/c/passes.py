"""Prints each pass of a program as one function of C.

    forward(count, steps, given, ahead, part, at, product)      and backward

run `count` steps of one shard, rows in prefix layout: `steps` holds four numbers for each, the
first row, the end row, the number of rows, and the first row of the step before, or -1. The initial
state is zeros unless `given`; `ahead`, the number of all rows, asks for the wide maps of streams
too, which are made for as many rows at once as lie in the cache. Where operators have kernels of
their own, only `part` of a step is run: see `LoopText.between`. `at` holds two numbers for each
array of `slots`: its address, and the elements from one of its rows to the next; for an operator
that is called in C, the addresses of its function and of what this gets first. `product` is the
function of `kernels/c/sources/blas.c`, whose tiles are compiled once for all cells.

Where states are matrices that no weight multiplies, `c.by_sentence` prints both passes.
"""

from __future__ import annotations

from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.c.loop_text import OUTPUT_GRADIENTS, OUTPUTS, LoopText
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import Op, OpCode, Origin
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.places import place_in

# Bytes of the maps of streams that are made at once: what stays in the second-level cache.
BLOCK_BYTES = 1 << 19


class ForwardText(LoopText):
    """The function `forward`.

    Attributes:
        text: its source.
    """

    def __init__(self, program: LoopProgram, storage: Storage, attends: bool) -> None:
        super().__init__("forward", program, [storage], program.ops, storage.kept, attends)
        self.slots += [f"{letter}{number}" for number in self.maps.values() for letter in "Wb"]
        self.slots += [OUTPUTS]
        each = "for (ptrdiff_t t = 0; t < count; t++)"
        self.text = self.print(each, self._ahead(program), self._outputs(program))

    def products(self, op: Op) -> list[str]:
        if op.opcode is OpCode.GENERIC:
            return self.step_of(op, op.inputs[0], op.output)
        return self._products(op, "n")

    def _ahead(self, program: LoopProgram) -> list[str]:
        """Streams and their maps, for the steps from this one on whose rows lie in the cache."""
        if not program.streams:
            return []
        widths = [op.output.width for op in program.ahead]
        row = sum(widths or [x.width for x in program.streams])
        return [
            "if (ahead && s >= done) {",
            f"    const ptrdiff_t most = {BLOCK_BYTES} / ({row} * (ptrdiff_t)sizeof(REAL));",
            "    ptrdiff_t last = t;",
            "    while (last + 1 < count && steps[4 * last + 5] - s <= most) last++;",
            "    done = steps[4 * last + 1];",
            "    const ptrdiff_t rows = done - s;",
            *[f"    {line}" for line in self.gather_streams("rows")],
            *[f"    {line}" for op in program.ahead for line in self._products(op, "rows")],
            "}",
        ]

    def _outputs(self, program: LoopProgram) -> list[str]:
        lines = []
        for value, first in program.exports_at():
            x = self.places.of(value)
            rows = f"n, {x.width}, {x.pointer}, {x.stride}"
            lines.append(f"    put_rows({rows}, order + s, ys + {first}, ys_step);")
        return ["if (ys) {", *lines, "}"]

    def _products(self, op: Op, rows: str) -> list[str]:
        number = self.maps[id(op)]
        x = self.places.of(op.inputs[0])
        buffer, first = self.places.buffer_of(op.output)
        lines, panels = [], f"W{number}"
        for piece in op.pieces:
            width, out = piece.width, place_in(buffer, first + piece.column, piece.width, "s")
            base = f"b{number} + {piece.column}" if op.has_bias else "NULL"
            line = (
                f"product({rows}, {x.width}, {width}, {x.pointer}, {x.stride}, {panels}, "
                f"{base}, 0, {out.pointer}, {out.stride});"
            )
            panels += f" + {x.width} * WHOLE({width})"
            if op.reads_state:  # before the first step it is zero, and so is every map of it
                zeros = f"fill_rows({rows}, {width}, {base}, {out.pointer}, {out.stride});"
                line = f"if (zero) {zeros}\nelse {line}"
            lines.append(line)
        return lines


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
        program, storages = backward.forward, [gradients, storage]
        left, results = left_for_lanes(program, storage), backward.results()
        super().__init__("backward", program, storages, backward.ops, results, attends, left)
        self.slots += [f"{letter}{k}" for k in range(len(program.states)) for letter in "CH"]
        self.slots += ["dY", *[f"dX{k}" for k in backward.of_streams], OUTPUT_GRADIENTS]
        self.slots += [f"V{self.maps[id(op)]}" for op in program.ops if op.is_linear]
        each = "for (ptrdiff_t t = count - 1; t >= 0; t--)"
        self.text = self.print(each, self._gathers(program), [])

    def _gathers(self, program: LoopProgram) -> list[str]:
        """Rows of streams and of the outputs' gradients, and the state that the step found."""
        gradients = self.gather("n", "dY", OUTPUT_GRADIENTS, program.width)
        lines = [*self.gather_streams("n"), gradients]
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
