"""Writes a program's forward pass as the source of one Python function.

The function works on one shard of the mini-batch: rows in prefix layout (`steps`), arrays by name:

    X0 …  streams, P0 … packed values, T0 … temporaries, W0 … weights (K, O), b0 … biases,
    I0 …  initial state parts, G0 … operators run by their own batched kernels
"""

from __future__ import annotations

from dynbatch.cells.program import Op, Program, Value
from dynbatch.cells.storage import Storage

UFUNCS = {"Add": "add", "Subtract": "subtract", "Multiply": "multiply", "Divide": "divide"}


class Views:
    """Names of array views within a step, and the lines that make them."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.lines: dict[str, str] = {}

    def of(self, value: Value) -> str:
        """The expression for a value in this step."""
        base = value.base
        if base.origin == "stream":
            return self.columns(f"X{base.place}", "[s:e]", value.column, value.width, base.width)
        if base.origin == "prev":
            name = f"h{base.place}"
            if value.width == base.width:
                return name
            text = f"{name}_{value.column}_{value.width}"
            self.lines[text] = (
                f"{text} = {name}[:, {value.column}:{value.column + value.width}]"
            )
            return text
        buffer, column = self.storage.place(value)
        rows = "[s:e]" if buffer.packed else "[:n]"
        return self.columns(buffer.name, rows, column, value.width, buffer.width)

    def columns(self, name: str, rows: str, column: int, width: int, whole: int) -> str:
        """A view of some rows and columns of an array, made once a step."""
        row_name = name.lower()
        self.lines.setdefault(row_name, f"{row_name} = {name}{rows}")
        if width == whole:
            return row_name
        text = f"{row_name}_{column}_{width}"
        self.lines[text] = f"{text} = {row_name}[:, {column}:{column + width}]"
        return text


def emit_forward(program: Program, storage: Storage) -> list[str]:
    """Lines of `def forward(A, steps)`."""
    views = Views(storage)
    body: list[str] = []
    maps = numbered_maps(program)
    for op in program.ops:
        body += _forward_op(program, op, views, maps)
    before = []
    for op in program.stream_maps:
        number = maps[id(op)]
        out = storage.place(op.output)[0].name
        before.append(f"matmul(X{op.inputs[0].place}, W{number}, {out})")
        if has_bias(op):
            before.append(f"add({out}, b{number}, {out})")
    ends = [f"q{k} = {views.of(v)}" for k, v in enumerate(program.following)]
    starts = [f"h{k} = q{k}[:n]" for k in range(len(program.states))]
    lines = ["def forward(A, steps):"]
    lines += [f"    {name} = A[{name!r}]" for name in _arrays(program, storage, maps)]
    lines += [f"    {line}" for line in before]
    lines += [f"    q{k} = I{k}" for k in range(len(program.states))]
    lines += ["    for t, (s, e, n, p) in enumerate(steps):"]
    step = [*starts, *views.lines.values(), *body, *ends]
    return lines + [f"        {line}" for line in step]


def numbered_maps(program: Program) -> dict[int, int]:
    """A number for each wide linear map, by identity of its operator."""
    maps = [*program.stream_maps, *[op for op in program.ops if op.kind == "linear"]]
    return {id(op): number for number, op in enumerate(maps)}


def numbered_generic(program: Program) -> dict[int, int]:
    """A number for each operator that runs by its own kernels."""
    generic = [op for op in program.ops if op.kind == "generic"]
    return {id(op): number for number, op in enumerate(generic)}


def has_bias(op: Op) -> bool:
    """Whether any piece of a wide linear map has a bias."""
    return any(piece.biases for piece in op.pieces)


def argument(value: Value, views: Views) -> str:
    """How a generic operator is given a value: an array, or the number of a memory."""
    return str(value.place) if value.base.origin == "memory" else views.of(value)


def _arrays(program: Program, storage: Storage, maps: dict[int, int]) -> list[str]:
    names = [f"X{k}" for k in range(len(program.streams))]
    names += [buffer.name for buffer in [*storage.packed, *storage.temporary]]
    names += [f"W{number}" for number in maps.values()]
    by_number = {maps[id(op)]: op for op in [*program.stream_maps, *program.ops] if id(op) in maps}
    names += [f"b{number}" for number, op in by_number.items() if has_bias(op)]
    names += [f"I{k}" for k in range(len(program.states))]
    return names + [f"G{number}" for number in numbered_generic(program).values()]


def _forward_op(
    program: Program, op: Op, views: Views, maps: dict[int, int]
) -> list[str]:
    out = views.of(op.output)
    if op.kind == "copy":
        lines = []
        for x, column in zip(op.inputs, op.columns, strict=True):
            part = Value(x.width)
            part.base, part.column = op.output, column
            lines.append(f"copyto({views.of(part)}, {views.of(x)})")
        return lines
    if op.kind == "generic":
        number = numbered_generic(program)[id(op)]
        given = ", ".join(argument(x, views) for x in op.inputs)
        return [f"G{number}.forward(t, n, {out}, {given})"]
    xs = [views.of(x) for x in op.inputs]
    if op.kind == "linear":
        number = maps[id(op)]
        lines = [f"matmul({xs[0]}, W{number}, {out})"]
        return [*lines, f"add({out}, b{number}, {out})"] if has_bias(op) else lines
    if op.kind == "unary":
        arguments = "".join(f", {value!r}" for value in op.node.arguments())
        return [f"{kernel_name(op)}.forward({xs[0]}, {out}{arguments})"]
    if op.kind == "binary":
        function = UFUNCS.get(type(op.node).__name__, f"{kernel_name(op)}.forward")
        return [f"{function}({xs[0]}, {xs[1]}, {out})"]
    function = "multiply" if op.kind == "scale" else "add"
    return [f"{function}({xs[0]}, {op.node.number!r}, {out})"]


def kernel_name(op: Op) -> str:
    """The kernel of an elementwise operator, as generated code names it."""
    return f"kernel_{type(op.node).__name__}"
