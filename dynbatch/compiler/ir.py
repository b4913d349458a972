"""The intermediate representation: values of a step, and operators on them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from enum import Enum, auto
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dynbatch.kernels import binary
from dynbatch.nodes.arithmetic import Binary, Scalar
from dynbatch.nodes.selection import Where
from dynbatch.nodes.unary.node_types import Unary

if TYPE_CHECKING:
    from dynbatch.backend import Array
    from dynbatch.parameter import Parameter

T = TypeVar("T")


class Origin(Enum):
    """The origin of a value."""

    STREAM = auto()  # a row of each token, computed before the loop
    STATE = auto()  # a part of the state as the step finds it
    MEMORY = auto()  # all rows of a memory of the sentence
    OPERATOR = auto()  # an operator of the program
    EXPORT_GRADIENT = auto()  # backward: of an export, a row of each token
    LEFT_GRADIENT = auto()  # backward: of a part of the state that the step left


class OpCode(Enum):
    """The operation of an operator."""

    LINEAR = auto()  # a product with rows of weights: see `Op.pieces`
    UNARY = auto()
    BINARY = auto()
    WITH_NUMBER = auto()  # a function of two values, one of them a number
    WHERE = auto()
    COPY = auto()  # input k into the columns from `Op.columns[k]`, zeros into the others
    CONTRACT = auto()  # Σ x, or Σ x ⊙ y, over axes of what are matrices: see `Nest`
    GENERIC = auto()  # any other node type, by its own batched kernels
    # Of backward; `Op.source` is the operator of forward:
    PARTIAL = auto()  # dy ⊙ ∂f/∂x of the input `Op.position`, from dy and what the derivative reads
    LINEAR_GRADIENT = auto()  # dy W, the gradient of a linear map's input
    GENERIC_GRADIENT = auto()  # of every input but memories, whose gradients add up in their node


ELEMENTWISE_TYPES = {
    Unary: OpCode.UNARY, Binary: OpCode.BINARY, Scalar: OpCode.WITH_NUMBER, Where: OpCode.WHERE,
}  # fmt: skip
ELEMENTWISE = tuple(ELEMENTWISE_TYPES.values())
ALIKE = (*ELEMENTWISE, OpCode.PARTIAL)  # all operands are as wide as what they make
PRODUCTS = (OpCode.LINEAR, OpCode.LINEAR_GRADIENT)  # with weights
OWN_KERNELS = (OpCode.GENERIC, OpCode.GENERIC_GRADIENT)  # of the node types


class Nest(NamedTuple):
    """The loops of CONTRACT: output[Σ s_k i_k] += Π x[Σ t_k i_k] over all i_k < sizes[k].

    An operand that has no stride along an axis is repeated over it, an output is a sum. So there
    are outer products, products of a matrix and a vector, its rows or columns scaled, repeated or
    summed, transposes and inner products; and the gradient of each operand is one more of them.

    strides: of each operand, then of the output, along each axis. All columns are met.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    def simplified(self) -> Nest:
        """These loops without axes of size 1, in order, with one for two that are a stretch."""
        axes = [axis for axis in self._axes() if axis[0] > 1]
        joined: list[tuple[int, tuple[int, ...]]] = []
        for size, steps in axes:
            if joined and joined[-1][1] == tuple([step * size for step in steps]):
                joined[-1] = (joined[-1][0] * size, steps)
            else:
                joined.append((size, steps))
        joined = joined or [(1, (0,) * len(self.strides))]
        sizes, by_axis = zip(*joined, strict=True)
        return Nest(sizes, tuple(zip(*by_axis, strict=True)))

    def gradient(self, position: int) -> Nest:
        """The loops of an operand's gradient, from dy and the other operand."""
        *read, output = self.strides
        target = read.pop(position)
        return Nest(self.sizes, (output, *read, target))

    def widths(self) -> list[int]:
        """The columns of each operand and of the output, met once each without repetition."""
        pairs = [zip(self.sizes, steps, strict=True) for steps in self.strides]
        return [prod([size for size, step in each if step]) for each in pairs]

    def _axes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Each axis with its strides, in an order in which whole matrices are read row by row."""
        axes = [*zip(self.sizes, zip(*self.strides, strict=True), strict=True)]
        whole = [k for k, width in enumerate(self.widths()) if width == prod(self.sizes)]
        if whole:
            return sorted(axes, key=lambda axis: -axis[1][whole[0]])
        return sorted(axes, key=lambda axis: axis[1].count(1))


NO_NEST = Nest((0,), ())


class Value:
    """One step's vector, or a range of columns of a wider one.

    number: which stream, state part or memory it is, if not an operator made it.
    """

    __slots__ = ("base", "column", "number", "origin", "width")

    def __init__(self, width: int, origin: Origin = Origin.OPERATOR, number: int = 0) -> None:
        self.width = width
        self.origin = origin
        self.number = number
        self.base: Value = self
        self.column = 0

    @classmethod
    def columns(cls, base: Value, column: int, width: int) -> Value:
        view = cls(width)
        view.base, view.column = base, column
        return view

    def become_view(self, base: Value, column: int) -> None:
        self.base, self.column = base.base, base.column + column

    @property
    def key(self) -> tuple[int, int]:
        """Identifies a segment of a lane: its base and first column."""
        return id(self.base), self.column

    def is_whole(self) -> bool:
        return self.width == self.base.width

    def overlaps(self, other: Value) -> bool:
        return (
            self.base is other.base
            and self.column < other.column + other.width
            and other.column < self.column + self.width
        )


class WeightRows:
    """Some rows of one weight as a share of a wide linear map.

    rows:   of the weight, [first, first + width).
    column: where its outputs begin in the wide map's.
    biases: parameters added to it, each with its own first row.
    """

    __slots__ = ("biases", "column", "first", "weight", "width")

    def __init__(
        self, weight: Parameter, first: int, width: int, biases: list[tuple[Parameter, int]]
    ) -> None:
        self.weight = weight
        self.first = first
        self.width = width
        self.biases = biases
        self.column = 0

    @property
    def columns(self) -> slice:
        return slice(self.column, self.column + self.width)

    @property
    def rows(self) -> Array:
        """The rows (width, K) of the weight."""
        return self.weight.value[self.first : self.first + self.width]


class Op:
    """One operator of a program.

    node:     the traced node behind an operator of forward.
    kernel:   the function of UNARY, BINARY and WITH_NUMBER: see `kernels.unary`, `binary`.
    number:   of WITH_NUMBER; `side` says that it is the function's first operand.
    outputs:  one value; of GENERIC_GRADIENT one for each input that is not a memory.
    nest:     of CONTRACT.
    source, position: see `OpCode`.
    """

    __slots__ = (
        "columns", "inputs", "kernel", "nest", "node", "number", "opcode", "outputs", "pieces",
        "position", "side", "source",
    )  # fmt: skip

    def __init__(
        self, opcode: OpCode, inputs: list[Value], output: Value, node: Any = None, *,
        kernel: Any = None, number: float = 0.0, source: Op | None = None, position: int = 0,
        columns: Sequence[int] = (), nest: Nest = NO_NEST,
    ) -> None:  # fmt: skip
        self.opcode = opcode
        self.inputs = inputs
        self.outputs = [output]
        self.node = node
        attributes = node if opcode in ELEMENTWISE else None
        self.kernel = getattr(attributes, "kernel", kernel)
        self.number: float = getattr(attributes, "number", number)
        self.side: int = getattr(attributes, "side", 0)
        self.source = source
        self.position = position
        self.pieces: list[WeightRows] = []
        self.columns = columns
        self.nest = nest

    def like(self, inputs: list[Value], output: Value) -> Op:
        """An operator with this function, and other operands."""
        op = copy(self)
        op.inputs, op.outputs = inputs, [output]
        return op

    @classmethod
    def copy(cls, source: Value, output: Value) -> Op:
        return cls(OpCode.COPY, [source], output, columns=[0])

    def parts(self) -> list[tuple[Value, int]]:
        starts = self.columns if self.opcode is OpCode.COPY else [0] * len(self.inputs)
        return list(zip(self.inputs, starts, strict=True))

    @property
    def memories(self) -> list[int | None]:
        """The number of the memory that each input is, or None."""
        return [x.base.number if x.base.origin is Origin.MEMORY else None for x in self.inputs]

    def holes(self) -> list[Value]:
        parts = sorted([(at, at + x.width) for x, at in self.parts()])
        ends, starts = [0, *[end for _, end in parts]], [at for at, _ in parts]
        spans = zip(ends, [*starts, self.output.width], strict=True)
        return [Value.columns(self.output, a, b - a) for a, b in spans if a < b]

    @property
    def output(self) -> Value:
        """The value that the operator makes; the first of several."""
        return self.outputs[0]

    @property
    def arguments(self) -> tuple[Any, ...]:
        is_unary = self.opcode is OpCode.UNARY and self.node is not None
        return tuple(self.node.arguments()) if is_unary else ()

    def operands(self, xs: Sequence[T], number: T) -> list[T]:
        """Arguments of an elementwise operator's function: `xs`, and the number of WITH_NUMBER."""
        if self.opcode is not OpCode.WITH_NUMBER:
            return [*xs]
        return [number, *xs] if self.side else [*xs, number]

    def derivative(self, read: Sequence[T], number: T, missing: T) -> tuple[int, list[T]]:
        """The number, 0 or 1, of a PARTIAL's derivative, and its operands; `missing` if unread.

        Args:
            read:   what it reads beside dy.
            number: that of a function of a value and a number.
        """
        source = self.source
        assert source is not None
        if source.opcode is OpCode.WITH_NUMBER:
            return source.side, source.operands([*read, missing][:1], number)
        if source.opcode is OpCode.BINARY:
            known, reads = iter(read), source.kernel.reads
            return self.position, [next(known) if is_read else missing for is_read in reads]
        return max(self.position - 1, 0), [*read, missing][:1]  # of a choice, behind its mask

    @property
    def is_linear(self) -> bool:
        return self.opcode is OpCode.LINEAR

    @property
    def shares_rows(self) -> bool:
        """Whether it is done for the rows of many sentences at once, as products of weights are."""
        return self.opcode in (OpCode.LINEAR, OpCode.GENERIC)

    @property
    def is_add(self) -> bool:
        return self.opcode is OpCode.BINARY and self.kernel is binary.add

    @property
    def is_subtract(self) -> bool:
        return self.opcode is OpCode.BINARY and self.kernel is binary.subtract

    @property
    def is_multiply(self) -> bool:
        return self.opcode is OpCode.BINARY and self.kernel is binary.multiply

    @property
    def has_bias(self) -> bool:
        return any([piece.biases for piece in self.pieces])

    @property
    def reads_state(self) -> bool:
        """Whether the operator is a linear map of the state before the step."""
        return self.is_linear and self.inputs[0].base.origin is Origin.STATE

    @property
    def passes_gradient(self) -> bool:
        """Whether a gradient reaches its inputs: not so for a comparison."""
        moves = self.opcode in (OpCode.LINEAR, OpCode.COPY, OpCode.CONTRACT)
        return moves or bool(self.node.differentiable)
