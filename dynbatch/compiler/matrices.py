"""Matrices in a cell: their nodes as operators on flat values.

A value of shape (d, e) or (H, d, e) is a row of d · e or H · d · e elements, one matrix after the
other. Nodes that only move elements (reshape, transpose, repeat, cut) make no operator: `Elements`
says which element of which row stands at each index, and CONTRACT reads it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.compiler.ir import ELEMENTWISE_TYPES, Nest, OpCode, Value
from dynbatch.compiler.program import Program
from dynbatch.compiler.trace import made_at
from dynbatch.nodes.arithmetic import Multiply, Scale
from dynbatch.nodes.linear import MatMul
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.reductions.reduce import Mean, Sum
from dynbatch.nodes.shape.axes import FEATURES, TOKENS
from dynbatch.nodes.shape.expand import Repeated
from dynbatch.nodes.shape.gather import GatherRows, Transpose
from dynbatch.nodes.shape.permute import Permute
from dynbatch.nodes.shape.reshape import Reshape
from dynbatch.nodes.shape.structure import Structural


class Elements(NamedTuple):
    """A value by its elements: the column of a flat value that each of them is."""

    value: Value
    columns: Array  # integers, in the value's shape

    @property
    def shape(self) -> Shape:
        shape: Shape = self.columns.shape
        return shape


class Strided(NamedTuple):
    """A flat value, each column of which is read, with its strides along some axes."""

    value: Value
    strides: tuple[int, ...]


class MatrixNodes:
    """The nodes of a loop that make or read matrices.

    Args:
        program: gets their operators.
        read:    the flat value of a node that is made elsewhere.
    """

    def __init__(self, program: Program, read: Callable[[Node], Value]) -> None:
        self._program = program
        self._read = read
        self._elements: dict[int, Elements] = {}

    def add(self, node: Node) -> None:
        """Add the operators of a node.

        Raises:
            ShapeError: there are none for its type.
        """
        if isinstance(node, MOVES):
            self._elements[node.index] = self._moved(node)
        elif isinstance(node, Structural):
            self._elements[node.index] = self._structural(node)
        elif isinstance(node, MatMul):
            self._elements[node.index] = self._product(*map(self.elements, node.inputs))
        elif isinstance(node, Sum | Mean):
            self._elements[node.index] = self._sum(node)
        elif isinstance(node, tuple(ELEMENTWISE_TYPES)):
            self._elements[node.index] = self._by_element(node)
        else:
            _refuse(node)

    def flat(self, node: Node) -> Value | None:
        """The flat value of a node of these; None of another."""
        elements = self._elements.get(node.index)
        return None if elements is None else self._dense(elements)

    def elements(self, node: Node) -> Elements:
        elements = self._elements.get(node.index)
        if elements is None:
            elements = whole(self._read(node), node.shape)
        return elements

    # Nodes ----------------------------------------------------------------------------------------

    def _moved(self, node: Node) -> Elements:
        (source,) = node.inputs
        value, columns = self.elements(source)
        if isinstance(node, Reshape | Repeated):
            moved = columns.reshape(node.shape) if isinstance(node, Reshape) else columns
            return Elements(value, np.broadcast_to(moved, node.shape))
        if isinstance(node, Permute):
            groups = columns.reshape((*node.groups, node.inner))
            return Elements(value, groups.swapaxes(1, 2).reshape(node.shape))
        if isinstance(node, Transpose):
            return Elements(value, columns.T)
        assert isinstance(node, GatherRows)
        return Elements(value, columns[node.ids])

    def _structural(self, node: Structural) -> Elements:
        """Parts of values; of several, in one: a copy of each."""
        value, *others = [self.elements(x) for x in node.inputs]
        sources = {node.inputs[0].index: value.columns.reshape(-1)}
        if others:
            parts = [self._dense(x) for x in (value, *others)]
            starts = np.cumsum([0, *[part.width for part in parts]]).tolist()
            pairs = [*zip(starts, parts, strict=False)]
            value = whole(self._program.side_by_side(starts[-1], pairs), (starts[-1],))
            cuts = np.split(value.columns, starts[1:-1])
            sources = {x.index: cut for x, cut in zip(node.inputs, cuts, strict=True)}
        columns = np.empty(node.rows * node.width, np.int64)
        for r in type(node).rectangles_of(node):
            there, here = r.elements()
            columns[here] = sources[r.source.index][there]
        return Elements(value.value, columns.reshape(node.shape))

    def _product(self, a: Elements, b: Elements) -> Elements:
        """The sum over the last dimension of a and the last but one of b."""
        *rows, inner = a.shape
        sizes = (*rows, b.shape[-1], inner)
        leading = (0,) * len(rows) if len(b.shape) == 2 else None
        a_read, b_read = self._strided(a), self._strided(b)
        *before, of_inner, of_outer = b_read.strides
        by_row = leading or (*before, *(0,) * (len(rows) - len(before)))
        xs = [
            a_read._replace(strides=(*a_read.strides[:-1], 0, a_read.strides[-1])),
            b_read._replace(strides=(*by_row, of_outer, of_inner)),
        ]
        return self._contract(sizes, xs, range(len(sizes) - 1))

    def _sum(self, node: Sum | Mean) -> Elements:
        x = self.elements(node.inputs[0])
        axes = [*range(len(x.shape))]
        kept = {TOKENS: axes[1:], FEATURES: axes[:-1]}.get(node.over, [])
        total = self._contract(x.shape, [self._strided(x)], kept)
        total = total._replace(columns=total.columns.reshape(node.shape))
        if isinstance(node, Sum):
            return total
        count = prod(x.shape) // max(1, prod(total.shape))
        flat, scale = total.value, Scale(node, number=1 / count)
        mean = self._program.make(OpCode.WITH_NUMBER, [flat], flat.width, node=scale)
        return Elements(mean, total.columns)

    def _by_element(self, node: Node) -> Elements:
        xs = [self.elements(x) for x in node.inputs]
        if isinstance(node, Multiply) and not all(map(_is_dense, xs)):
            return self._contract(node.shape, [*map(self._strided, xs)], range(node.ndim))
        opcode = next(code for kind, code in ELEMENTWISE_TYPES.items() if isinstance(node, kind))
        operands = [*map(self._dense, xs)]
        output = self._program.make(opcode, operands, prod(node.shape), node=node)
        return whole(output, node.shape)

    # Operators ------------------------------------------------------------------------------------

    def _contract(
        self, sizes: Sequence[int], xs: Sequence[Strided], kept: Sequence[int]
    ) -> Elements:
        """Σ Π xs over all axes but those that are kept, whose order is that of the result."""
        shape = tuple([sizes[axis] for axis in kept])
        strides = [0] * len(sizes)
        for k, axis in enumerate(kept):
            strides[axis] = prod(shape[k + 1 :])
        nest = Nest(tuple(sizes), (*[x.strides for x in xs], tuple(strides))).simplified()
        read = [x.value for x in xs]
        output = self._program.make(OpCode.CONTRACT, read, prod(shape), nest=nest)
        return whole(output, shape)

    def _strided(self, x: Elements) -> Strided:
        """Elements as columns with a stride for each axis; copied first if they lie otherwise."""
        read = self._as_strided(x)
        if read is None:
            read = self._as_strided(whole(self._dense(x), x.shape))
            assert read is not None
        return read

    def _as_strided(self, x: Elements) -> Strided | None:
        first, strides = int(x.columns.min()), _strides_of(x.columns)
        if strides is None:
            return None
        met = prod([size for size, stride in zip(x.shape, strides, strict=True) if stride])
        is_dense = met == int(x.columns.max()) - first + 1
        return Strided(self._program.columns(x.value, first, met), strides) if is_dense else None

    def _dense(self, x: Elements) -> Value:
        """The elements side by side, in their order."""
        flat = x.columns.reshape(-1)
        edges = [0, *(np.flatnonzero(np.diff(flat) != 1) + 1).tolist(), flat.size]
        if len(edges) == 2:
            return self._program.columns(x.value, int(flat[0]), flat.size)
        read = self._as_strided(x)
        if read is not None:
            return self._contract(x.shape, [read], range(len(x.shape))).value
        columns = self._program.columns
        parts = [(at, columns(x.value, int(flat[at]), end - at)) for at, end in pairwise(edges)]
        return self._program.side_by_side(flat.size, parts)


MOVES = (Reshape, Repeated, Permute, Transpose, GatherRows)


def whole(value: Value, shape: Shape) -> Elements:
    return Elements(value, np.arange(value.width).reshape(shape))


def _is_dense(x: Elements) -> bool:
    return bool((np.diff(x.columns.reshape(-1)) == 1).all())


def _strides_of(columns: Array) -> tuple[int, ...] | None:
    """The stride along each axis; None if there is none, or one is negative."""
    first = int(columns.flat[0])
    strides = [
        int(columns[(0,) * axis + (1,)].flat[0]) - first if size > 1 else 0
        for axis, size in enumerate(columns.shape)
    ]
    grids: Any = zip(strides, np.indices(columns.shape, sparse=True), strict=True)
    is_affine = (columns == first + sum([stride * grid for stride, grid in grids])).all()
    return tuple(strides) if is_affine and min(strides, default=0) >= 0 else None


def _refuse(node: Node) -> None:
    assert isinstance(node, Operation)
    shapes = ", ".join([str(x.shape) for x in node.inputs])
    node.refuse(
        f"a step of a cell cannot run it on {shapes}, where a matrix is made or read",
        "elementwise functions, F.outer, F.matvec, F.vecmat, @, sums and means, and what moves "
        "elements take matrices; all others take vectors",
        "F.reshape(x, (-1,)) makes one vector of a matrix; x[0] is a row of it",
        line=made_at(node),
    )
