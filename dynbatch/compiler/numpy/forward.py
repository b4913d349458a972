"""Writes a program's forward pass as the source of two Python functions: `ahead`, `forward`.

They work on one shard of the mini-batch: rows in prefix layout (`steps`, numbered), arrays by name:

    X0 …  streams, P0 … packed values, T0 … temporaries, W0 … weights (K, O), b0 … biases,
    I0 …  initial state parts, all zeros unless `given`,
    G0 …  operators run by their own batched kernels
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import indent

from dynbatch.compiler.buffers import ProgramBuffer, Storage
from dynbatch.compiler.program import Op, Program, Value

AFTER_ZEROS = "if p >= 0 or given:"
UFUNCS = {"Add": "add", "Subtract": "subtract", "Multiply": "multiply", "Divide": "divide"}


class Views:
    """Names of array views within a step, and the lines that make them."""

    def __init__(self, program: Program, storage: Storage) -> None:
        self.program = program
        self.storage = storage
        self.lines: dict[str, str] = {}

    def place(self, value: Value) -> tuple[ProgramBuffer, int]:
        """The array that holds a value, and its first column there."""
        base = value.base
        if base.origin == "stream":
            return ProgramBuffer(f"X{base.place}", base.width, packed=True), value.column
        if base.origin == "prev":
            return ProgramBuffer(f"h{base.place}", base.width, packed=False), value.column
        return self.storage.place(value)

    def of(self, value: Value, plane: int = 0) -> str:
        """The expression for a value in this step, as (n, width) or, by planes, (k, n, plane)."""
        return self.view(*self.place(value), value.width, plane)

    def view(self, buffer: ProgramBuffer, column: int, width: int, plane: int = 0) -> str:
        """The expression for some columns of an array in this step."""
        whole = self._rows(buffer)
        if buffer.plane and width > buffer.plane:
            return self._planes(whole, buffer, column, width, plane)
        name = whole
        if buffer.plane:
            number, column = divmod(column, buffer.plane)
            name = self._line(f"{whole}_{number}", f"{whole}[{number}]")
        if width < (buffer.plane or buffer.width):
            name = self._line(f"{name}_{column}_{width}", f"{name}[:, {column}:{column + width}]")
        if plane and width > plane:
            cut = f"{name}.reshape(n, {width // plane}, {plane}).transpose(1, 0, 2)"
            name = self._line(f"{name}_by_{plane}", cut)
        return name

    def _planes(
        self, whole: str, buffer: ProgramBuffer, column: int, width: int, plane: int
    ) -> str:
        first, last = column // buffer.plane, (column + width) // buffer.plane
        assert plane == buffer.plane and column % plane == 0 and width % plane == 0
        if width == buffer.width:
            return whole
        return self._line(f"{whole}_{first}_to_{last}", f"{whole}[{first}:{last}]")

    def _rows(self, buffer: ProgramBuffer) -> str:
        name = buffer.name.lower()
        if buffer.name.startswith("h"):
            return name
        if not buffer.plane:
            return self._line(name, f"{buffer.name}[{'s:e' if buffer.packed else ':n'}]")
        if buffer.packed:
            return self._line(name, f"{buffer.name}[:, s:e]")
        shape = f"{buffer.planes}, n, {buffer.plane}"
        return self._line(name, f"{buffer.name}[:n * {buffer.width}].reshape({shape})")

    def _line(self, name: str, expression: str) -> str:
        self.lines.setdefault(name, f"{name} = {expression}")
        return name


def with_used(lines: Iterable[str], body: Sequence[str]) -> list[str]:
    """`body`, and ahead of it those lines `name = …` whose name it or a kept line reads."""
    kept = list(body)
    read = set(re.findall(r"\w+", " ".join(body)))
    for line in reversed(list(lines)):
        name, expression = line.split(" = ", 1)
        if name in read:
            kept.insert(0, line)
            read.update(re.findall(r"\w+", expression))
    return kept


def common_plane(placed: Iterable[tuple[ProgramBuffer, int]], width: int) -> int:
    """The plane width in which operands of one width must be seen; 0 for plain rows."""
    found = {buffer.plane for buffer, width_ in placed if buffer.plane and width > buffer.plane}
    assert len(found) < 2, f"operands in planes of different widths {found}"
    return found.pop() if found else 0


def emit_ahead(program: Program, storage: Storage) -> list[str]:
    """Lines of `def ahead(A)`: the wide maps of streams, for all rows at once."""
    maps = numbered_maps(program)
    lines = ["def ahead(A):"]
    for op in program.stream_maps:
        number = maps[id(op)]
        buffer = storage.place(op.output)[0]
        out = buffer.name
        lines.append(f"    {out} = A[{out!r}]")
        lines.append(f"    stream_map(A['X{op.inputs[0].place}'], A['W{number}'], {out})")
        if has_bias(op):
            lines.append(f"    add({out}, A['b{number}'], {out})")
    return [*lines, "    return"]


def emit_forward(program: Program, storage: Storage) -> tuple[list[str], int]:
    """Lines of `def forward(A, steps)`, and how many kernels a step launches."""
    views = Views(program, storage)
    body: list[str] = []
    maps = numbered_maps(program)
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


def numbered_maps(program: Program) -> dict[int, int]:
    """A number for each wide linear map, by identity of its operator."""
    maps = [*program.stream_maps, *[op for op in program.ops if op.kind == "linear"]]
    return {id(op): number for number, op in enumerate(maps)}


def numbered_generic(program: Program) -> dict[int, int]:
    """A number for each operator that runs by its own kernels."""
    generic = [op for op in program.ops if op.kind == "generic"]
    return {id(op): number for number, op in enumerate(generic)}


def reads_state(op: Op) -> bool:
    """Whether a linear map reads the state as its step finds it."""
    return op.kind == "linear" and op.inputs[0].base.origin == "prev"


def has_bias(op: Op) -> bool:
    """Whether any piece of a wide linear map has a bias."""
    return any(piece.biases for piece in op.pieces)


def argument(value: Value, views: Views) -> str:
    """How a generic operator is given a value: an array, or the number of a memory."""
    return str(value.place) if value.base.origin == "memory" else views.of(value)


def _arrays(program: Program, storage: Storage, maps: dict[int, int]) -> list[str]:
    names = [f"X{k}" for k in range(len(program.streams))]
    names += [buffer.name for buffer in [*storage.packed, *storage.temporary]]
    by_number = {maps[id(op)]: op for op in program.ops if id(op) in maps}
    names += [f"W{number}" for number in by_number]
    names += [f"b{number}" for number, op in by_number.items() if has_bias(op)]
    names += [f"I{k}" for k in range(len(program.states))]
    names += ["given"] if any(map(reads_state, program.ops)) else []
    return names + [f"G{number}" for number in numbered_generic(program).values()]


def _forward_op(program: Program, op: Op, views: Views, maps: dict[int, int]) -> list[str]:
    if op.kind == "copy":
        return [_forward_copy(op, k, views) for k in range(len(op.inputs))]
    if op.kind == "generic":
        number = numbered_generic(program)[id(op)]
        given = ", ".join(argument(x, views) for x in op.inputs)
        return [f"G{number}.forward(t, n, {views.of(op.output)}, {given})"]
    if op.kind == "linear":
        number = maps[id(op)]
        plane = views.place(op.output)[0].plane
        out, product = views.of(op.output, plane), "matmul_planes" if plane else "matmul"
        line = f"{product}({views.of(op.inputs[0])}, W{number}, {out})"
        # Before the first step the state is zero, and so is every map of it.
        if reads_state(op):
            line = f"{AFTER_ZEROS}\n    {line}\nelse:\n    {out}[...] = 0"
        return [line, f"add({out}, b{number}, {out})"] if has_bias(op) else [line]
    placed = [views.place(v) for v in [*op.inputs, op.output]]
    plane = common_plane(placed, op.output.width)
    xs = [views.of(x, plane) for x in op.inputs]
    out = views.of(op.output, plane)
    if op.kind == "unary":
        arguments = "".join(f", {value!r}" for value in op.node.arguments())
        return [f"{kernel_name(op)}.forward({xs[0]}, {out}{arguments})"]
    if op.kind == "binary":
        function = UFUNCS.get(type(op.node).__name__, f"{kernel_name(op)}.forward")
        return [f"{function}({xs[0]}, {xs[1]}, {out})"]
    if op.kind == "where":
        return [f"choose({', '.join(xs)}, {out})"]
    if op.kind == "number":
        a, b = with_number(op, xs[0])
        return [f"{kernel_name(op)}.forward({a}, {b}, {out})"]
    function = "multiply" if op.kind == "scale" else "add"
    return [f"{function}({xs[0]}, {op.node.number!r}, {out})"]


def with_number(op: Op, x: str) -> tuple[str, str]:
    """The two operands of a function of a value and a number, in order."""
    number = repr(op.node.number)
    return (number, x) if op.node.side else (x, number)


def _forward_copy(op: Op, k: int, views: Views) -> str:
    x, part = op.inputs[k], Value(op.inputs[k].width)
    part.base, part.column = op.output, op.columns[k]
    plane = common_plane([views.place(x), views.place(part)], x.width)
    return f"copyto({views.of(part, plane)}, {views.of(x, plane)})"


def kernel_name(op: Op) -> str:
    """The kernel of an elementwise operator, as generated code names it."""
    return f"kernel_{type(op.node).__name__}"
