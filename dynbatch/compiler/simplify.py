"""Simplifies a program: what is computed twice, or comes to nothing, goes.

Equal operators on equal operands share one result. Dropout does not: inside a loop it is a product
with a mask, and each has a mask of its own. `x · 1`, `x / 1`, `x + 0` and `--x` are x, two factors
in a row are one, and in backward a + -b is a - b.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from dynbatch.compiler.ir import ALIKE, ELEMENTWISE, Op, OpCode, Value
from dynbatch.compiler.program import Program
from dynbatch.kernels import binary
from dynbatch.kernels.unary import arithmetic


class Simplified(NamedTuple):
    """Counts of operators that are gone: equal to others, without effect, or folded."""

    shared: int = 0
    identities: int = 0
    folded: int = 0

    def __str__(self) -> str:
        names = ("computed once for several", "without effect", "folded")
        counts = [f"{count} {name}" for count, name in zip(self, names, strict=True) if count]
        return f"simplified: {', '.join(counts)}" if counts else ""


def simplify(program: Program) -> Simplified:
    """Change a program in place, until nothing is left to change."""
    shared = identities = folded = 0
    while True:
        drop_unread(program)
        counts = _share(program), _drop_identities(program), _fold(program)
        if not any(counts):
            return Simplified(shared, identities, folded)
        shared, identities, folded = shared + counts[0], identities + counts[1], folded + counts[2]


def _replace(program: Program, equal: Callable[[Op], Value | None]) -> int:
    leaving = program.leaving()
    gone: set[int] = set()
    for op in program.every_op():
        same = equal(op)
        if same is not None and id(op.output) not in leaving:
            program.move(op.output, same)
            gone.add(id(op))
    _remove(program, gone)
    return len(gone)


def _share(program: Program) -> int:
    """Give operators that compute the same one result."""
    known: dict[tuple[object, ...], Value] = {}

    def made_before(op: Op) -> Value | None:
        key = _key(op)
        first = known.setdefault(key, op.output) if key else op.output
        return None if first is op.output else first

    return _replace(program, made_before)


def _key(op: Op) -> tuple[object, ...]:
    """A key that is equal for operators that compute the same; () for those that stay."""
    read = [(id(x.base), x.column, x.width) for x in op.inputs]
    if op.is_add or op.is_multiply:
        read.sort()
    function: tuple[object, ...]
    if op.is_linear:
        pieces = [
            (p.weight.uid, p.first, p.column, p.width, *[(b.uid, at) for b, at in p.biases])
            for p in op.pieces
        ]
        function = (op.opcode, *pieces)
    elif op.opcode in ELEMENTWISE:
        function = _function(op)
    elif op.opcode is OpCode.COPY:
        function = (op.opcode, op.output.width, *op.columns)
    elif op.opcode is OpCode.CONTRACT:
        function = (op.opcode, op.nest)
    elif op.opcode is OpCode.LINEAR_GRADIENT:
        function = (op.opcode, id(op.source))
    elif op.opcode is OpCode.PARTIAL:
        assert op.source is not None
        function = (op.opcode, op.position, *_function(op.source))
    else:
        return ()
    return (function, *read)


def _function(op: Op) -> tuple[object, ...]:
    return (op.opcode, op.kernel, repr(op.number), op.side, *op.arguments)


def _drop_identities(program: Program) -> int:
    makers = {id(op.output): op for op in program.ops}
    return _replace(program, lambda op: _equal_operand(op, makers))


def _equal_operand(op: Op, makers: dict[int, Op]) -> Value | None:
    """The value that an operator's result is equal to, if any."""
    if op.opcode is OpCode.WITH_NUMBER and not op.side and op.number == NEUTRAL.get(op.kernel):
        return op.inputs[0]
    if op.kernel is arithmetic.negative:
        return _negated(op.inputs[0], makers)
    return None


def _negated(value: Value, makers: dict[int, Op]) -> Value | None:
    maker = makers.get(id(value.base))
    if maker is None or maker.kernel is not arithmetic.negative:
        return None
    (x,) = maker.inputs
    return Value.columns(x.base, x.column + value.column, value.width)


def _fold(program: Program) -> int:
    """Make two factors one, and in backward a sum with a negated value a difference."""
    makers = {id(op.output): op for op in program.ops}
    count = 0
    for op in program.ops:
        if _scales(op):
            count += _fold_factors(program, op, makers)
        elif op.is_add and op.node is None:
            a, b = op.inputs
            for x, other in ((b, a), (a, b)):
                negated = _negated(x, makers)
                if negated is not None and op.is_add:
                    op.inputs, op.kernel = (
                        [other, program.columns(negated.base, negated.column, negated.width)],
                        binary.subtract,
                    )
                    count += 1
    return count


def _scales(op: Op) -> bool:
    return op.opcode is OpCode.WITH_NUMBER and op.kernel is binary.multiply


def _fold_factors(program: Program, op: Op, makers: dict[int, Op]) -> bool:
    (x,) = op.inputs
    maker = makers.get(id(x.base))
    if maker is None or not _scales(maker):
        return False
    number = op.number * maker.number
    if not math.isfinite(number) or number == 0 or abs(math.log2(abs(number))) > LARGEST_EXPONENT:
        return False  # the two products may stay within range where theirs does not
    (inner,) = maker.inputs
    op.inputs = [program.columns(inner, x.column, x.width)]
    op.number = number
    return True


# Of a factor that two are folded into: float32 has numbers of 2^±126.
LARGEST_EXPONENT = 100


# Numbers that change nothing as a function's second operand.
NEUTRAL = {binary.multiply: 1, binary.divide: 1, binary.add: 0}

# What goes if nothing reads it. Backward of an operator with own kernels adds to memories too.
DROPPED = (*ALIKE, OpCode.CONTRACT, OpCode.COPY, OpCode.LINEAR_GRADIENT)


def drop_unread(program: Program) -> None:
    """Drop operators whose results nothing reads."""
    read = {id(value.base) for value in program.results()}
    gone: set[int] = set()
    for op in reversed(program.every_op()):
        if op.opcode in DROPPED and id(op.output) not in read:
            gone.add(id(op))
        else:
            read.update([id(x.base) for x in op.inputs])
    _remove(program, gone)


def _remove(program: Program, gone: set[int]) -> None:
    program.ahead = [op for op in program.ahead if id(op) not in gone]
    program.ops = [op for op in program.ops if id(op) not in gone]
