"""Prints a program's forward pass as two Python functions: `ahead` and `forward`.

They work on one shard of the mini-batch: rows in prefix layout (`steps`, numbered), arrays by name:

    X0 …  streams, P0 … packed values, T0 … temporaries, W0 … weights (K, O), b0 … biases,
    I0 …  initial state parts, all zeros unless `given`,
    G0 …  operators run by their own batched kernels
"""

from __future__ import annotations

from textwrap import indent

from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.numpy.elementwise import forward_line
from dynbatch.compiler.numpy.views import Views, common_plane, with_used
from dynbatch.compiler.program import numbered

AFTER_ZEROS = "if p >= 0 or given:"


def emit_ahead(program: LoopProgram, storage: Storage) -> list[str]:
    """Lines of `def ahead(A)`: the wide maps of streams, for all rows at once."""
    maps = numbered(program.linear_maps)
    lines = ["def ahead(A):"]
    for op in program.stream_maps:
        number = maps[id(op)]
        buffer = storage.buffer_of(op.output)[0]
        out = buffer.name
        lines.append(f"    {out} = A[{out!r}]")
        lines.append(f"    stream_map(A['X{op.inputs[0].number}'], A['W{number}'], {out})")
        if op.has_bias:
            lines.append(f"    add({out}, A['b{number}'], {out})")
    return [*lines, "    return"]


def emit_forward(program: LoopProgram, storage: Storage) -> tuple[list[str], int]:
    """Lines of `def forward(A, steps)`, and the number of kernels in a step."""
    views = Views(program, storage)
    body: list[str] = []
    maps = numbered(program.linear_maps)
    for op in program.ops:
        body += _forward_op(program, op, views, maps)
    ends = [f"q{k} = {views.of(v)}" for k, v in enumerate(program.following)]
    starts = [f"h{k} = q{k}[:n]" for k in range(len(program.states))]
    lines = ["def forward(A, steps):"]
    lines += [f"    {name} = A[{name!r}]" for name in _arrays(program, storage, maps)]
    lines += [f"    q{k} = I{k}" for k in range(len(program.states))]
    lines += ["    for t, (s, e, n, p) in steps:"]
    step = with_used([*starts, *views.lines.values()], [*body, *ends])
    return [*lines, indent("\n".join(step), " " * 8)], len(body)


def argument(value: Value, views: Views) -> str:
    """The expression that a generic operator gets for a value: an array, or a memory's number."""
    return str(value.number) if value.base.origin is Origin.MEMORY else views.of(value)


def _arrays(program: LoopProgram, storage: Storage, maps: dict[int, int]) -> list[str]:
    names = [f"X{k}" for k in range(len(program.streams))]
    names += [buffer.name for buffer in [*storage.packed, *storage.temporary]]
    by_number = {maps[id(op)]: op for op in program.ops if id(op) in maps}
    names += [f"W{number}" for number in by_number]
    names += [f"b{number}" for number, op in by_number.items() if op.has_bias]
    names += [f"I{k}" for k in range(len(program.states))]
    names += ["given"] if any([op.reads_state for op in program.ops]) else []
    return names + [f"G{number}" for number in numbered(program.generic).values()]


def _forward_op(program: LoopProgram, op: Op, views: Views, maps: dict[int, int]) -> list[str]:
    if op.opcode is OpCode.COPY:
        return [_forward_copy(op, k, views) for k in range(len(op.inputs))]
    if op.opcode is OpCode.GENERIC:
        number = numbered(program.generic)[id(op)]
        inputs = ", ".join([argument(x, views) for x in op.inputs])
        return [f"G{number}.forward(t, n, {views.of(op.output)}, {inputs})"]
    if op.is_linear:
        number = maps[id(op)]
        plane = views.buffer_of(op.output)[0].plane
        out, product = views.of(op.output, plane), "matmul_planes" if plane else "matmul"
        line = f"{product}({views.of(op.inputs[0])}, W{number}, {out})"
        # Before the first step the state is zero, and so is every map of it.
        if op.reads_state:
            line = f"{AFTER_ZEROS}\n    {line}\nelse:\n    {out}[...] = 0"
        return [line, f"add({out}, b{number}, {out})"] if op.has_bias else [line]
    operands = [views.buffer_of(v) for v in [*op.inputs, op.output]]
    plane = common_plane(operands, op.output.width)
    xs = [views.of(x, plane) for x in op.inputs]
    return [forward_line(op, xs, views.of(op.output, plane))]


def _forward_copy(op: Op, k: int, views: Views) -> str:
    x = op.inputs[k]
    part = Value.columns(op.output, op.columns[k], x.width)
    plane = common_plane([views.buffer_of(x), views.buffer_of(part)], x.width)
    return f"copyto({views.of(part, plane)}, {views.of(x, plane)})"
