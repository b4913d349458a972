"""`BlockOperator`: one operator of a block, and what its attributes follow from in each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dynbatch.blocks.sizes import with_integers
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Operation

STREAM = "stream"
"""The attribute in which a node type keeps the number of its random stream."""

Coefficients = tuple[int, ...]
"""Of each free size, and a constant at the end."""


class Sized(NamedTuple):
    """An attribute made of integers that follow from the sizes."""

    form: Any
    coefficients: tuple[Coefficients, ...]

    def at(self, free: Sequence[int]) -> Any:
        return with_integers(self.form, iter([affine(c, free) for c in self.coefficients]))


class Given(NamedTuple):
    """An attribute that `Operation.given` makes of an array.

    site: which of `Told.given`. place: which of the attributes there.
    """

    site: int
    place: int


class Site(NamedTuple):
    """The random stream of an operator: the call's own, and the operator's number."""

    number: int


class Told(NamedTuple):
    """The parts of a call that do not follow from its sizes, according to the program.

    given:  what `Operation.given` makes of arrays, for each operator that takes one.
    values: of other attributes, by operator and name. sizes: rows and widths, by operator.
    shapes: of arrays that NumPy makes, by their number, where a trace must tell them.
    """

    given: Sequence[tuple[Any, ...]]
    values: dict[tuple[int, str], Any]
    sizes: dict[int, tuple[int, int]]
    shapes: dict[int, Shape]


NOTHING = Told((), {}, {}, {})
"""Of a call that the program knows all of."""


class BlockOperator:
    """One operator of a block, for sentences of any size.

    Attributes:
        node:     the traced node: its type, its parameters, and what is equal for all sizes.
        inputs:   positions of operators, or -1 - k for the node argument k.
        rows, width: of its value, as functions of the free sizes; None where a trace must tell.
        bound:    its attributes that differ; None for those that a trace must tell.
        constants: its other attributes.
        is_shared: whether it reads no argument, so that it runs once a mini-batch.
    """

    __slots__ = ("bound", "constants", "inputs", "is_shared", "node", "rows", "width")

    def __init__(self, node: Operation, inputs: tuple[int, ...]) -> None:
        self.node = node
        self.inputs = inputs
        self.rows: Coefficients | None = None
        self.width: Coefficients | None = None
        self.bound: dict[str, Sized | Given | Site | None] = {}
        self.constants: list[tuple[str, Any]] = []
        self.is_shared = False

    def size_at(self, free: Sequence[int], told: Told, position: int) -> tuple[int, int]:
        """Rows and width of the value in a call; `position` is the operator's own."""
        if self.rows is None or self.width is None:
            return told.sizes[position]
        return affine(self.rows, free), affine(self.width, free)


def affine(coefficients: Coefficients, free: Sequence[int]) -> int:
    """Σ c_k s_k + c."""
    total = coefficients[-1]
    for factor, size in zip(coefficients, free, strict=False):
        total += factor * size
    return total


def why_apart(a: Node, b: Node) -> str:
    """The reason that an operator cannot share a batch with itself at other sizes."""
    name = type(a).__name__
    article = "an" if name[0] in "AEIOU" else "a"
    if [x.width for x in (a, *a.inputs)] == [x.width for x in (b, *b.inputs)]:
        return f"{article} {name} that cannot share a batch with that of other sizes"
    return f"{article} {name} whose width follows from the length and counts as features"
