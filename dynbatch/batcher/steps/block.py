"""`Block`: the packed values of one batch; `BatchInput`: how a batch reads the values of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.backend import Array
from dynbatch.batcher.steps.member_parts import MembersPart, MembersParts
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.places import freed, packings, stretch
from dynbatch.kernels import move
from dynbatch.nodes.batch import sizes_of
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.ragged import Ragged, offsets_of

OF_STEPS = MembersPart, MembersParts


class RowLayout:
    """Rows of nodes, one node's after another's: their lengths, and the one width or each one's."""

    __slots__ = ("_offsets", "lengths", "size", "width", "widths")

    _offsets: Array | None
    lengths: list[int]
    size: int
    width: int
    widths: list[int] | None

    @property
    def offsets(self) -> Array:
        """(K + 1,) first row of each node, and the number of rows."""
        if self._offsets is None:
            self._offsets = offsets_of(self.lengths)
        return self._offsets

    def _ragged(self, flat: Array) -> Ragged:
        rows = flat.reshape(-1, self.width) if self.width else flat
        return Ragged(rows, self.lengths, self._offsets, self.widths, self)


class Block(RowLayout):
    """Outputs of one batch, node after node, and later their gradients in the same layout.

    `array` and `gradient` are one-dimensional arenas; the block begins at `start` and
    `gradient_start` in them. Both are None while not allocated, or freed. `stride` is that of
    `ColumnsView`, and 0 here: a node's elements lie side by side.
    """

    __slots__ = (
        "_view", "array", "gradient", "gradient_start", "kept", "nodes", "ports", "start",
    )  # fmt: skip
    stride = 0

    def __init__(self, nodes: Sequence[Operation], port_width: int = 0) -> None:
        self.nodes = nodes
        self.ports: list[Block] = []
        self._offsets = None
        if port_width:
            self.lengths, self.width, self.widths = [1] * len(nodes), port_width, None
            self.size = len(nodes) * port_width
        else:
            self.lengths, self.width, self.widths, self.size = layout_of(nodes)
        self.array: Array | None = None
        self.start = 0
        self.gradient: Array | None = None
        self.gradient_start = 0
        self.kept = False
        self._view: View | None = None
        if port_width:
            return
        self.ports = [Block(nodes, width) for width in nodes[0].port_widths()]
        self.hold(nodes)

    def hold(self, nodes: Sequence[Operation]) -> None:
        """Be the block of these nodes, whose sizes are those it was made for."""
        for block in (self, *self.ports):
            block.nodes = nodes
        if isinstance(nodes, Members):
            nodes.lie_in(self)
            return
        offset = 0
        for position, node in enumerate(nodes):
            node._block = self
            node._position = position
            node._start = offset
            offset += node.rows * node.width

    @property
    def base(self) -> Block:
        """The block that owns the values: this one."""
        return self

    def view(self) -> View:
        """A block of the same values, which no gradient passes; always the same object."""
        if self._view is None:
            self._view = View(self)
        return self._view

    def values(self) -> Ragged:
        """The packed values, or FreedError."""
        if self.array is None:
            raise freed(self.nodes[0])
        return self._ragged(self.array[self.start : self.start + self.size])

    def gradients(self) -> Ragged:
        """The packed gradients."""
        assert self.gradient is not None
        start = self.gradient_start
        return self._ragged(self.gradient[start : start + self.size])

    def node_values(self, node: Node) -> Array:
        """One node's value in its own shape, a view."""
        if node._block.array is None:
            raise freed(node)
        return self.part(self.values().flat, node)

    def node_gradient(self, node: Node) -> Array:
        """One node's gradient in its own shape, a view."""
        return self.part(self.gradients().flat, node)

    def part(self, flat: Array, node: Node) -> Array:
        """The elements of a node in its own shape, a view, of all those of the block."""
        stride = node._block.stride
        if stride:
            row, column = divmod(node._start, stride)
            rows = flat.reshape(-1, stride)[row : row + node.rows]
            return rows[:, column : column + node.width].reshape(node.shape)
        return flat[node._start : node._start + node.rows * node.width].reshape(node.shape)


def layout_of(nodes: Sequence[Node]) -> tuple[list[int], int, list[int] | None, int]:
    """Lengths, the one width or 0, the widths where they differ, and the number of elements."""
    lengths, widths = sizes_of(nodes)
    width = widths[0]
    if width and widths.count(width) == len(widths):
        return lengths, width, None, sum(lengths) * width
    return lengths, 0, widths, sum([n * w for n, w in zip(lengths, widths, strict=True)])


class View:
    """The values of another block, which carry no gradient."""

    __slots__ = ("base", "kept")
    gradient: Array | None = None

    def __init__(self, base: Block) -> None:
        self.base = base
        self.kept = False

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of the viewed block: its nodes, widths and places."""
        return getattr(self.base, name)


class ColumnsView:
    """Some columns of another block's rows, as values of nodes, and of its gradient.

    A node's `_start` is the first of its elements there. `width` is that of the whole rows, so that
    tables of moves find them; `stride`, from row to row, is the same number.

    Args:
        owner: the block of the nodes, which is empty. What they share is freed when it is.
    """

    __slots__ = ("base", "kept", "owner")

    def __init__(self, base: Block, owner: Block) -> None:
        self.base = base
        self.owner = owner
        self.kept = False

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of the whole rows' block."""
        return getattr(self.base, name)

    @property
    def stride(self) -> int:
        return self.base.width

    @property
    def array(self) -> Array | None:
        return None if self.owner.array is None else self.base.array


class BatchInput(RowLayout):
    """The nodes that one input of a batch reads: a view where their rows lie in order, else a copy.

    Attributes:
        blocks:  the distinct blocks read, in order of first use.
        gradient_blocks: those of them to which a gradient can pass.
        is_view: one block, its nodes in order: no copy is made.
        start:   the first element of a view.
        stride:  from row to row of a view, where they are columns of wider rows; else 0.
        covers:  it is the whole block.
    """

    __slots__ = (
        "blocks", "covers", "gradient_blocks", "is_view", "nodes", "start", "stride",
    )  # fmt: skip

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._offsets = None
        together = stretch(nodes)
        self.is_view = together is not None
        self.stride = 0
        if together is not None:
            first, self.start = together
            self.stride = first.stride
            self.blocks = [first.base]
            self.gradient_blocks = [] if isinstance(first, View) else self.blocks
            self.covers = not self.stride and len(nodes) == len(first.nodes)
            if self.covers:
                self.lengths, self.width, self.size = first.lengths, first.width, first.size
                self.widths = first.widths
                return
        else:
            if isinstance(nodes, MembersParts):
                blocks = dict.fromkeys([part.block for part in nodes.parts])
            else:
                blocks = dict.fromkeys([x._block for x in nodes])
            self.blocks = list(dict.fromkeys([block.base for block in blocks]))
            passing = [block.base for block in blocks if not isinstance(block, View)]
            self.gradient_blocks = list(dict.fromkeys(passing))
            self.covers = False
        self.lengths, self.width, self.widths, self.size = layout_of(nodes)

    @property
    def is_of_steps(self) -> bool:
        """Whether it reads nodes of blocks by their steps, and not one by one."""
        return isinstance(self.nodes, OF_STEPS)

    def view(self) -> Ragged:
        """The packed rows without a copy; only if `is_view`."""
        return self._slice(self.blocks[0].values())

    def view_of(self, flat: Array) -> Ragged:
        """The rows without a copy in another array of the block's elements; only if `is_view`."""
        return self._slice(self.blocks[0]._ragged(flat))

    def gradient_view(self) -> Ragged:
        """The packed gradient rows without a copy; only if `is_view`."""
        return self._slice(self.blocks[0].gradients())

    def positions_in(self, block: Block) -> list[int | None]:
        """The positions in a block of the nodes there; None for a call, which is a part of it."""
        nodes: Any = self.nodes
        if not isinstance(nodes, MembersPart | MembersParts):
            return [node._position for node in nodes if node._block is block]
        parts = nodes.parts if isinstance(nodes, MembersParts) else [nodes]
        in_block = [part for part in parts if part.block is block]
        return [position for part in in_block for position in range(part.first, part.end)]

    def _slice(self, packed: Ragged) -> Ragged:
        if self.covers:
            return packed
        if self.stride:
            row, column = divmod(self.start, self.stride)
            rows = packed.values[row : row + self.size // self.width]
            columns = rows[:, column : column + self.width]
            return Ragged(columns, self.lengths, self._offsets, self.widths, self)
        return self._ragged(packed.flat[self.start : self.start + self.size])

    def pack(self, arena: Array, start: int) -> tuple[Ragged, int]:
        """Copy the rows into the arena, from element `start` on; return the bytes copied too."""
        moves = packings(self.nodes, self.size, start)
        copied = sum([move.run(array, arena, table) for array, table in moves])
        return self.packed(arena, start), copied

    def packed(self, arena: Array, start: int) -> Ragged:
        """The elements of the arena from `start` on, as packed rows of the shape that is read."""
        return self._ragged(arena[start : start + self.size])

    def unpack_gradients(self, arena: Array, start: int) -> int:
        """Add a packed gradient to those of the nodes; return the bytes copied."""
        moves = packings(self.nodes, self.size, start, gradient=True)
        back = [(array, move.reverse(table)) for array, table in moves]
        return sum([move.run(arena, array, table, add=True) for array, table in back])
