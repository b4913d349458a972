"""`CompiledCell`: a cell traced for one set of widths and parameters, split and compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dynbatch.compiler.arrays import stream_map
from dynbatch.compiler.buffers import Columns, ProgramBuffer, Role, Storage
from dynbatch.compiler.c.native import NativeLoop
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.differentiate import BackwardProgram, differentiate
from dynbatch.compiler.fusion import fuse
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.numpy.backward import Backward
from dynbatch.compiler.numpy.elementwise import kernel_name
from dynbatch.compiler.numpy.forward import emit_ahead, emit_forward
from dynbatch.compiler.program import numbered
from dynbatch.compiler.schedule import schedule
from dynbatch.compiler.split import Split, split
from dynbatch.compiler.trace import Trace
from dynbatch.compiler.validate import validate
from dynbatch.kernels import binary, blas
from dynbatch.nodes.arithmetic import Binary, WithNumber
from dynbatch.nodes.elementwise import Unary
from dynbatch.nodes.operation import Operation
from dynbatch.parameter import Parameter

_uids = itertools.count()

Arrays = dict[str, Any]
"""The values that generated code gets by name: arrays, flags, operators with own kernels."""


class CompiledLoop:
    """A program with its buffers and generated code, for any mini-batch.

    Attributes:
        program, storage, reverse_pass: the stages of compilation, for those who look.
        launches, launches_backward: kernels of one step.
        from_state: linear maps of the state among the kernels of forward.
        source: the generated Python: `ahead` of the loop, `forward` and `backward`.
        maps:   wide linear maps by number; `stream_maps` are those ahead of the loop.
        planes: widths of the planes of each wide map's output; 0 for plain rows.
        state_maps: numbers of the maps that read the state as their step finds it.
        reached: streams that backward gives a gradient.
        parameters: all that the loop uses, once each.
        generic: operators that run by their node type's own kernels, by number.
        read_before: parts of the state that backward reads packed, as every step found them.
        exports, following: where outputs and the state are after a step.
        map_inputs: of wide maps of what the loop computes, where that is.
        stream_rows, backward_rows: buffers with a row for each token that forward takes for the
            streams, and backward beside these.
        packed_gradients, gradient_buffers: of backward, with a row for each token, and for each
            running sentence.
    """

    def __init__(self, program: LoopProgram) -> None:
        self.uid = next(_uids)
        self.program = program
        validate(program, "lowering")
        fuse(program)
        validate(program, "fuse")
        self.storage = Storage(program)
        self.reverse_pass = reverse = Backward(program, self.storage)
        self.maps: dict[int, Op] = dict(enumerate(program.linear_maps))
        self.stream_maps = dict(enumerate(program.stream_maps))
        self.generic: dict[int, Op] = dict(enumerate(program.generic))
        with_gradient = [op for number, op in self.maps.items() if number in reverse.of_maps]
        self.reached = reverse.streams | {
            op.inputs[0].number for op in with_gradient if op in program.stream_maps
        }
        read = reverse.previous | {
            op.inputs[0].base.number for op in with_gradient if op.reads_state
        }
        self.read_before: dict[int, Value] = {k: program.states[k] for k in sorted(read)}
        self._place_values()
        self.parameters = self._parameters_of_ops()
        lines, self.launches = emit_forward(program, self.storage)
        self.from_state = sum([op.reads_state for op in program.ops])
        self.launches_backward = len(reverse.body) + len(reverse.carry)
        parts = [emit_ahead(program, self.storage), lines, reverse.lines()]
        self.source = "\n\n\n".join(["\n".join(part) for part in parts]) + "\n"
        namespace = self._namespace()
        exec(compile(self.source, f"<cell program {self.uid}>", "exec"), namespace)
        self.ahead_of_loop: Callable[[Arrays], None] = namespace["ahead"]
        self.forward: Callable[[Arrays, Iterable[object]], None] = namespace["forward"]
        self.backward: Callable[[Arrays, Sequence[object]], None] = namespace["backward"]

    @cached_property
    def backward_program(self) -> BackwardProgram:
        """The step of backward as a program."""
        program = differentiate(self.program)
        validate(program, "differentiate")
        schedule(program)
        validate(program, "schedule")
        return program

    @cached_property
    def in_c(self) -> NativeLoop:
        """This loop in C."""
        return NativeLoop(self.program, self.storage)

    def _place_values(self) -> None:
        """Look up the values' places and each pass's arrays, once for all mini-batches."""
        program = self.program
        columns_of = self.storage.columns_of
        self.planes = {k: columns_of(op.output).buffer.plane for k, op in self.maps.items()}
        self.state_maps = {number for number, op in self.maps.items() if op.reads_state}
        self.exports = [columns_of(value) for value in program.exports]
        self.following = [columns_of(value) for value in program.following]
        self.map_inputs: dict[int, Columns] = {
            number: columns_of(op.inputs[0])
            for number, op in self.maps.items()
            if op.inputs[0].base.origin is Origin.OPERATOR
        }
        self.stream_rows = [
            _token_rows(Role.STREAM, k, value) for k, value in enumerate(program.streams)
        ]
        width = sum([value.width for value in program.exports])
        buffers = self.reverse_pass.buffers.values()
        self.packed_gradients = [buffer for buffer in buffers if buffer.packed]
        self.gradient_buffers = [buffer for buffer in buffers if not buffer.packed]
        self.backward_rows = [
            ProgramBuffer(Role.EXPORT_GRADIENT, "", width, packed=True),
            *[
                _token_rows(Role.STREAM_GRADIENT, k, program.streams[k])
                for k in sorted(self.reverse_pass.streams)
            ],
            *[_token_rows(Role.FOUND_STATES, k, v) for k, v in self.read_before.items()],
            *self.packed_gradients,
        ]

    def _namespace(self) -> Arrays:
        names: Arrays = {
            "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
            "divide": np.divide, "copyto": np.copyto, "matmul": blas.matmul, "inf": np.inf,
            "matmul_planes": blas.matmul_planes, "matmul_sum": blas.matmul_sum,
            "stream_map": stream_map, "nan": np.nan, "choose": binary.choose,
            "choose_backward": binary.choose_backward,
        }  # fmt: skip
        for op in self.program.ops:
            if isinstance(op.node, Unary | Binary | WithNumber):
                names[kernel_name(op)] = op.node.kernel
        return names

    def _parameters_of_ops(self) -> tuple[Parameter, ...]:
        by_uid: dict[int, Parameter] = {}
        for op in self.maps.values():
            for piece in op.pieces:
                for parameter in [piece.weight, *[bias for bias, _ in piece.biases]]:
                    by_uid.setdefault(parameter.uid, parameter)
        for op in self.generic.values():
            for parameter in op.node.all_parameters():
                by_uid.setdefault(parameter.uid, parameter)
        return tuple(by_uid.values())


class CompiledCell(CompiledLoop):
    """A compiled cell: its loop, and the operators that run before and after the loop.

    Attributes:
        trace, parts: what the cell built, and how it was split.
        reads:        what it read from its parameters.
        ahead:        the operators before the loop that must be made as nodes, in order.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.reads = trace.reads
        self.parts: Split = split(trace)
        super().__init__(LoopProgram(trace, self.parts))
        self.ahead = self._needed_before()

    @cached_property
    def on_device(self) -> DeviceCell:
        """This loop for a GPU."""
        return DeviceCell(self.program, numbered(self.program.linear_maps))

    def _needed_before(self) -> list[Operation]:
        program, trace = self.program, self.trace
        wanted = {n.index for n in [*program.stream_nodes, *program.memory_nodes, trace.output]}
        for node in self.parts.after:
            wanted.update([x.index for x in node.inputs])
        needed = []
        for node in reversed(self.parts.before):
            if node.index in wanted:
                needed.append(node)
                wanted.update([x.index for x in node.inputs])
        return needed[::-1]

    def __str__(self) -> str:
        parts = self.parts
        sections = {"before": parts.before, "in": parts.loop, "after": parts.after}
        head = [f"# {where} the loop: {_type_names(nodes)}\n" for where, nodes in sections.items()]
        return "".join(head) + self.source


def _token_rows(role: Role, number: int, value: Value) -> ProgramBuffer:
    return ProgramBuffer(role, number, value.width, packed=True)


def _type_names(nodes: Sequence[Operation]) -> str:
    return ", ".join([type(node).__name__ for node in nodes]) or "nothing"
