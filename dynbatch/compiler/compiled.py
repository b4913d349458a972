"""`CompiledCell`: a cell traced for one set of widths and parameters, split and compiled."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import ClassVar

from dynbatch.backend import DType
from dynbatch.compiler.buffers import (
    Columns,
    ProgramBuffer,
    Role,
    gradient_storage_of,
    storage_of,
)
from dynbatch.compiler.c.native import NativeLoop, has_steps
from dynbatch.compiler.cuda.cell import DeviceCell, SentenceCell
from dynbatch.compiler.cuda.loop import Loop, SentenceLoop
from dynbatch.compiler.differentiate import differentiate
from dynbatch.compiler.fusion import fuse
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.nests import cheap_makers, cluster, remake
from dynbatch.compiler.numpy.loop import NumpyLoop
from dynbatch.compiler.simplify import Simplified, drop_unread, simplify
from dynbatch.compiler.split import Split, split
from dynbatch.compiler.trace import Trace
from dynbatch.compiler.validate import validate
from dynbatch.errors import GraphError
from dynbatch.nodes.node import ancestors
from dynbatch.nodes.operation import Operation
from dynbatch.parameter import Parameter

_uids = itertools.count()


class CompiledLoop:
    """A program and its derivative with their buffers, for any mini-batch.

    Attributes:
        program, backward_program: the passes, and `storage`, `gradients`, their buffers.
        temporary, temporary_gradients: those with rows for one step.
        simplified: how many operators were left out of both.
        numpy: both passes for NumPy.
        launches, launches_backward: operators of a step, and of a step back.
        maps:   wide linear maps by number; `stream_maps` are those ahead of the loop.
        state_maps: numbers of the maps that read the state as their step finds it.
        of_maps: where backward leaves the gradient of each wide map's output, by number.
        map_groups: numbers of the maps that share this gradient and whose weights cut it alike.
        reached: streams that backward gives a gradient: what its steps leave, if they are among
            `backward_program.of_streams`, and of these maps ahead of the loop, by number, products.
        parameters: all that the loop uses, once each.
        generic: operators that run by their node type's own kernels, by number.
        read_before: parts of the state that backward reads packed, as every step found them.
        exports, following: where outputs and the state are after a step; None for a part of the
            state that no step changes.
        map_inputs: where the rows are that each wide map multiplied, by number.
        stream_rows, backward_rows: buffers with a row for each token that forward takes for the
            streams, and backward beside these, without those of `gradients`.
    """

    reads_first_memories: ClassVar[bool] = True
    """Whether each step reads the first memories, in order, as those of a scan do."""

    overwrites: ClassVar[bool] = True
    """Whether backward may write over the gradients of what a step returned, and on a GPU where it
    has read what forward left."""

    def __init__(self, program: LoopProgram) -> None:
        self.uid = next(_uids)
        self.program = program
        validate(program, "lowering")
        forward = simplify(program)
        validate(program, "simplify")
        fuse(program)
        validate(program, "fuse")
        cluster(program)
        validate(program, "cluster")
        self.backward_program = differentiate(program)
        validate(self.backward_program, "differentiate")
        backward = simplify(self.backward_program)
        validate(self.backward_program, "simplify backward")
        cluster(self.backward_program)
        makers = cheap_makers(program.ops)
        for each in (program, self.backward_program):
            remake(each, makers)
            drop_unread(each)
            validate(each, "remake")
        self.simplified = Simplified(*[a + b for a, b in zip(forward, backward, strict=True)])
        self.storage = storage_of(program, self.backward_program)
        self.gradients = gradient_storage_of(self.backward_program, self.overwrites)
        self.temporary = self.storage.temporary
        self.temporary_gradients = self.gradients.temporary
        self.numpy = NumpyLoop(program, self.storage, self.backward_program, self.gradients)
        self.launches, self.launches_backward = map(len, self.numpy.ops)
        self.maps: dict[int, Op] = dict(enumerate(program.linear_maps))
        self.stream_maps = dict(enumerate(program.ahead))
        self.generic: dict[int, Op] = dict(enumerate(program.generic))
        self._place_values()
        self._place_gradients()
        self.parameters = self._parameters_of_ops()

    @cached_property
    def in_c(self) -> NativeLoop:
        attends = self.reads_first_memories and all(map(has_steps, self.program.generic))
        return NativeLoop(self.storage, self.backward_program, self.gradients, self.numpy, attends)

    def values_left(self, on_device: bool) -> list[str]:
        """The names of the values that forward leaves, without weights that a GPU gathers."""
        storage = self.on_device.loop.storage if on_device else self.storage
        return [buffer.name for buffer in storage.packed]

    def require_device(self, name: str, dtype: DType) -> None:
        """Raise `GraphError` if the loop of a cell of that name cannot run on this GPU."""
        self._require_kernels(name)
        if isinstance(self.on_device, SentenceCell):
            self.on_device.require_room(name, dtype)

    def _require_kernels(self, name: str) -> None:
        program = self.program
        if not program.has_matrices or program.is_by_sentence:
            return
        others = sorted({type(op.node).__name__ for op in program.ops if op.shares_rows})
        raise GraphError.at_caller(
            f"{name}: it makes or reads matrices, on a GPU, with {', '.join(others) or 'no state'}"
            " in a step.\n"
            "  rule: beside matrices a step has elementwise functions, sums and products with "
            "matrices;\n        weights multiply tokens, not what follows from the state\n"
            '  fix:  db.Graph(device="cpu"); F.gated_delta_rule runs on a GPU'
        )

    @cached_property
    def on_device(self) -> DeviceCell:
        self._require_kernels("cell")
        if self.program.is_by_sentence:
            loop = SentenceLoop(self.backward_program, self.storage, self.gradients)
            return SentenceCell(loop)
        return DeviceCell(Loop(self.backward_program, self.overwrites))

    def _place_values(self) -> None:
        """Look up the values' places, once for all mini-batches."""
        program = self.program
        columns_of = self.storage.columns_of
        self.state_maps = {number for number, op in self.maps.items() if op.reads_state}
        self.exports = [columns_of(value) for value in program.exports]
        self.following = self.storage.left_by_step(program)
        self.stream_rows = [
            token_rows(Role.STREAM, k, value) for k, value in enumerate(program.streams)
        ]

    def _place_gradients(self) -> None:
        """Look up the gradients' places, and what backward reads for them."""
        program, backward = self.program, self.backward_program
        with_gradient = {number: self.maps[number] for number in backward.of_maps}
        self.of_maps = {k: self.gradients.columns_of(v) for k, v in backward.of_maps.items()}
        groups: dict[tuple[object, ...], list[int]] = {}
        for number, columns in self.of_maps.items():
            cuts = [(piece.column, piece.width) for piece in self.maps[number].pieces]
            groups.setdefault((columns, *cuts), []).append(number)
        self.map_groups = [tuple(group) for group in groups.values()]
        self.map_inputs = {k: self._place_read(op.inputs[0]) for k, op in with_gradient.items()}
        self.reached: dict[int, dict[int, Op]] = {k: {} for k in backward.of_streams}
        for number in filter(backward.of_maps.__contains__, self.stream_maps):
            op = self.maps[number]
            self.reached.setdefault(op.inputs[0].number, {})[number] = op
        self.read_before = backward.found_states()
        self.backward_rows = [
            ProgramBuffer(Role.EXPORT_GRADIENT, "", program.width, packed=True),
            *[
                token_rows(Role.STREAM_GRADIENT, k, program.streams[k])
                for k in sorted(backward.of_streams)
            ],
            *[token_rows(Role.FOUND_STATES, k, v) for k, v in self.read_before.items()],
        ]

    def _place_read(self, value: Value) -> Columns:
        roles = {Origin.STREAM: Role.STREAM, Origin.STATE: Role.FOUND_STATES}
        role = roles.get(value.base.origin)
        if role is None:
            return self.storage.columns_of(value)
        return Columns(token_rows(role, value.base.number, value.base), value.column, value.width)

    def _parameters_of_ops(self) -> tuple[Parameter, ...]:
        pieces = [piece for op in self.maps.values() for piece in op.pieces]
        used = [p for piece in pieces for p in (piece.weight, *[bias for bias, _ in piece.biases])]
        used += [p for op in self.generic.values() for p in op.node.all_parameters()]
        return tuple({parameter.uid: parameter for parameter in used}.values())


class CompiledCell(CompiledLoop):
    """A compiled cell: its loop, and the operators that run before and after the loop.

    Attributes:
        trace, parts: what the cell built, and how it was split.
        reads:        what it read from its parameters.
        ahead:        the operators before the loop that must be made as nodes, in order.
        reads_as_given: whether the loop reads the sentences and the memories, all of them in order,
                      and its value is the cell's output: then nothing stands around it.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.reads = trace.reads
        self.parts: Split = split(trace)
        super().__init__(LoopProgram(trace, self.parts))
        program = self.program
        self._read = [*program.stream_nodes, *program.held_nodes, *program.memory_nodes]
        self.ahead = self._needed_before()
        is_output = self.parts.exports == [trace.output]
        self.reads_as_given = is_output and self._read == [*trace.tokens, *trace.memories]

    def _needed_before(self) -> list[Operation]:
        wanted = [*self._read, self.trace.output, *[x for n in self.parts.after for x in n.inputs]]
        before = {node.index for node in self.parts.before}
        needed = ancestors([node for node in wanted if node.index in before])
        return [node for node in self.parts.before if node.index in needed]

    def __str__(self) -> str:
        parts = self.parts
        sections = {"before": parts.before, "in": parts.loop, "after": parts.after}
        head = ""
        for where, nodes in sections.items():
            names = ", ".join([type(node).__name__ for node in nodes])
            head += f"# {where} the loop: {names or 'nothing'}\n"
        return head + str(self.numpy)


def token_rows(role: Role, number: int, value: Value) -> ProgramBuffer:
    return ProgramBuffer(role, number, value.width, packed=True)
