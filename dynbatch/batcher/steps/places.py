"""Places of nodes' values, and the copies from there or to there, as tables of moves."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.member_parts import MembersPart, MembersParts
from dynbatch.errors import FreedError
from dynbatch.kernels import move
from dynbatch.nodes.batch import sizes_of
from dynbatch.nodes.node import Node, in_order
from dynbatch.nodes.shape.structure import Column, Rectangles


class Home(NamedTuple):
    """Some of several places, in one array.

    array:  the array.
    chosen: (K,) whether each place is among them; None for all.
    starts: the first element of each of them there.
    is_new: whether their gradient has no value yet.
    """

    array: Array
    chosen: Array | None
    starts: Array
    is_new: bool

    def of(self, column: Array) -> Array:
        return column if self.chosen is None else column[self.chosen]


class Places:
    """Places of values, as they lie now.

    Args:
        found:  K blocks.
        starts: K first elements there.

    Attributes:
        blocks:   the distinct blocks.
        block_of: (K,) which of them each place lies in; None where there is one.
        starts:   (K,) its first element there.
    """

    __slots__ = ("block_of", "blocks", "starts")

    def __init__(self, found: Sequence[Any], starts: Sequence[int]) -> None:
        self.starts = np.array(starts, np.int64)
        self.blocks = list(dict.fromkeys(found))
        self.block_of: Array | None = None
        if len(self.blocks) > 1:
            number = {block: k for k, block in enumerate(self.blocks)}
            self.block_of = np.array([number[block] for block in found])

    @classmethod
    def of(cls, nodes: Sequence[Any]) -> Places:
        if isinstance(nodes, MembersPart) and nodes.block is not None:
            return cls([nodes.block] * len(nodes), nodes.starts())
        if isinstance(nodes, MembersParts):
            blocks = [part.block for part in nodes.parts for _ in range(len(part))]
            return cls(blocks, [start for part in nodes.parts for start in part.starts()])
        return cls([x._block for x in nodes], [x._start for x in nodes])

    @property
    def width(self) -> int:
        """The width of all rows; 0 where they differ."""
        widths = {block.width for block in self.blocks}
        return widths.pop() if len(widths) == 1 else 0

    @property
    def strides(self) -> Array | None:
        """(K,) `ColumnsView.stride` of each; None where no place has rows that lie apart."""
        strides = np.array([block.stride for block in self.blocks], np.int64)
        if not strides.any():
            return None
        return strides[np.zeros_like(self.starts) if self.block_of is None else self.block_of]

    def homes(self, gradient: bool = False, unwritten: Container[Any] = ()) -> Iterator[Home]:
        """The arrays in which they lie, or their gradients do: what has none is left out.

        Args:
            unwritten: blocks whose gradient has no value yet.

        Raises:
            FreedError: a value was freed.
        """
        memory = [(*memory_of(block, gradient), block in unwritten) for block in self.blocks]
        if self.block_of is None:
            ((array, first, is_new),) = memory
            if array is not None:
                yield Home(array, None, self.starts + first, is_new)
            return
        starts = self.starts + np.array([first for _, first, _ in memory])[self.block_of]
        keys = [(id(array), is_new) for array, _, is_new in memory]
        for key, (array, _, is_new) in dict(zip(keys, memory, strict=True)).items():
            if array is not None:
                inside = np.array([other == key for other in keys])[self.block_of]
                yield Home(array, inside, starts[inside], is_new)


def memory_of(block: Any, gradient: bool) -> tuple[Array | None, int]:
    """The array of a block, or that of its gradient if there is one, and the block's start there.

    Raises:
        FreedError: the values were freed.
    """
    if gradient:
        return block.gradient, block.gradient_start
    if block.array is None:
        raise freed(block.nodes[0])
    return block.array, block.start


def stretch(nodes: Sequence[Any]) -> tuple[Any, int] | None:
    """The block and first element of nodes that lie side by side in one block; None if not so."""
    of_members = getattr(nodes, "stretch", None)
    if of_members is not None:
        lying: tuple[Any, int] | None = of_members()
        return lying
    block = nodes[0]._block
    if block.nodes is nodes:
        return block, 0
    return (block, nodes[0]._start) if in_order(nodes) else None


def freed(node: Node) -> FreedError:
    """The error for reading a node whose memory was reused."""
    if not getattr(node.graph, "grad", True):
        return FreedError(
            f"{node.label()}: the value was freed after its last reader.\n"
            "  rule: a graph of grad=False keeps the values of nodes that a variable, a list or a\n"
            "        name holds when the run begins, and of those that no node reads\n"
            "  fix:  call node.keep() before the run, or hold the node in a variable"
        )
    return FreedError(
        f"{node.label()}: the value was freed, since backward no longer needed it.\n"
        "  fix:  call node.keep() before graph.backward, or read node.value before it;\n"
        "        for several losses, call graph.backward once on their sum"
    )


def packings(
    nodes: Sequence[Any], size: int, start: int, gradient: bool = False
) -> Iterator[tuple[Array, Array]]:
    """Moves from the nodes' values, or gradients, to where they are packed: for each array some.

    Args:
        size:  elements of all.
        start: the first element of where they are packed, one after the other.
    """
    together = stretch(nodes)
    if together is not None and not together[0].stride:
        array, first = memory_of(together[0], gradient)
        if array is not None:
            yield array, np.array([[first + together[1], 0, start, 0, 1, size]])
        return
    if isinstance(nodes, MembersParts):
        places = Places([part.block for part in nodes.parts], [part.start for part in nodes.parts])
        sizes = np.array([part.elements for part in nodes.parts])
        widths = np.array([part.widths[0] for part in nodes.parts])
    else:
        places = Places.of(nodes)
        lengths, widths = (np.array(column, np.int64) for column in sizes_of(nodes))
        sizes = lengths * widths
    packed, strides = np.cumsum(sizes) - sizes + start, places.strides
    for home in places.homes(gradient):
        there, elements = home.of(packed), home.of(sizes)
        if strides is None:
            table = move.table(home.starts, 0, there, 0, 1, elements, len(there))
        else:
            stride = home.of(strides)
            width = np.where(stride, home.of(widths), elements)
            rows = elements // np.maximum(width, 1)
            table = move.table(home.starts, stride, there, width, rows, width, len(there))
        yield home.array, table


def move_rectangles(groups: Iterable[Rectangles]) -> int:
    """Copy rectangles of values to the nodes that they become; return the bytes copied."""
    copied = 0
    for source, target, moves in value_moves(groups):
        copied += move.run(source, target, moves)
    return copied


def value_moves(groups: Iterable[Rectangles]) -> Iterator[tuple[Array, Array, Array]]:
    for source, target, _, moves in _tables(groups, False, ()):
        yield source, target, moves


def move_gradients_back(groups: Iterable[Rectangles], unwritten: Container[Any]) -> int:
    """Bring the gradients of rectangles back to the nodes that they come from.

    Args:
        unwritten: blocks whose gradient they write first, and all of it; others are added to.
    """
    copied = 0
    for source, target, is_new, moves in _tables(groups, True, unwritten):
        copied += move.run(target, source, move.reverse(moves), not is_new)
    return copied


def _tables(
    groups: Iterable[Rectangles], gradient: bool, unwritten: Container[Any]
) -> Iterator[tuple[Array, Array, bool, Array]]:
    """`_moves` of all groups: one table for each pair of arrays, as a rule one in all."""
    tables: dict[tuple[int, int, bool], tuple[Array, Array, list[Array]]] = {}
    for r in groups:
        for source, target, is_new, moves in _moves(r, gradient, unwritten):
            key = id(source), id(target), is_new
            tables.setdefault(key, (source, target, []))[2].append(moves)
    for (_, _, is_new), (source, target, parts) in tables.items():
        yield source, target, is_new, parts[0] if len(parts) == 1 else np.concatenate(parts)


def _moves(
    r: Rectangles, gradient: bool, unwritten: Container[Any]
) -> Iterator[tuple[Array, Array, bool, Array]]:
    one = _one_move(r)
    if one is not None:
        source, of_target, moves = one
        array, first = memory_of(source, gradient)
        target, start = memory_of(of_target, gradient)
        if array is not None and target is not None:
            moves[0] += first
            moves[2] += start
            yield array, target, source in unwritten, np.array([moves])
        return
    sources, targets = Places.of(r.sources), Places.of(r.targets)
    (there,) = targets.homes(gradient)
    width = sources.width or np.array(sizes_of(r.sources)[1])
    wide = targets.width or np.array(sizes_of(r.targets)[1])
    table = move.table(
        np.multiply(r.source_row, width) + r.source_column, np.multiply(r.source_step, width),
        np.multiply(r.target_row, wide) + r.target_column + there.starts, wide,
        sizes_of(r.sources)[0] if r.rows is None else r.rows, r.width, len(r.sources),
    )  # fmt: skip
    for home in sources.homes(gradient, unwritten):
        part = home.of(table)
        part[:, move.SOURCE] += home.starts
        yield home.array, there.array, home.is_new, part


def _one_move(r: Rectangles) -> tuple[Any, Any, list[int]] | None:
    """The blocks of all sources and targets, and one move from the first to the second.

    None unless the rectangles are columns of rows that lie side by side.
    """
    columns, here, target = columns_of(r), _one(r.target_column), stretch(r.targets)
    if columns is None or here is None or target is None or not target[0].width:
        return None
    block, start, width = columns
    rows = sum(sizes_of(r.sources)[0])
    moves = [start, block.width, target[1] + here, target[0].width, rows, width]
    return block, target[0], moves


class Cut(NamedTuple):
    """Some columns of rows that lie side by side in a block: the first element, and how many."""

    block: Any
    start: int
    width: int


def columns_of(r: Rectangles) -> Cut | None:
    """The columns of rows that rectangles take; None unless all take the same of whole rows."""
    width, column = _one(r.width), _one(r.source_column)
    if r.rows is not None or width is None or column is None:
        return None
    source = stretch(r.sources)
    if source is None or not source[0].width:
        return None
    return Cut(source[0], source[1] + column, width)


def _one(column: Column) -> int | None:
    """The number that all of a column are; None if they differ."""
    if isinstance(column, int):
        return column
    return column[0] if column.count(column[0]) == len(column) else None
