"""Where the values of nodes lie, and the copies from there or to there, as tables of moves."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.batcher.steps.member_parts import MembersPart, MembersParts
from dynbatch.batcher.steps.members import Members
from dynbatch.errors import FreedError
from dynbatch.kernels import move
from dynbatch.nodes.batch import sizes_of
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.structure import Rectangles
from dynbatch.parameter import Array


class Home(NamedTuple):
    """Some of the nodes, in one array.

    array:  the array.
    nodes:  (K,) whether each is among them; None for all.
    starts: the first element of each of them there.
    is_new: whether their gradient has no value yet.
    """

    array: Array
    nodes: Array | None
    starts: Array
    is_new: bool

    def of(self, column: Array) -> Array:
        """What a column says of these nodes."""
        return column if self.nodes is None else column[self.nodes]


class Places:
    """Where the values of some nodes lie now.

    Attributes:
        blocks:   the distinct blocks.
        block_of: (K,) which of them each node lies in; None where there is one.
        starts:   (K,) its first element there.
    """

    __slots__ = ("block_of", "blocks", "starts")

    def __init__(self, nodes: Sequence[Any]) -> None:
        if isinstance(nodes, Members | MembersPart) and nodes.block is not None:
            found, starts = [nodes.block], nodes.starts[: len(nodes)]
        elif isinstance(nodes, MembersParts):
            found = [part.block for part in nodes.parts for _ in range(len(part))]
            starts = [start for part in nodes.parts for start in part.starts]
        else:
            found, starts = [x._block for x in nodes], [x._start for x in nodes]
        self.starts = np.array(starts, np.int64)
        self.blocks = list(dict.fromkeys(found))
        self.block_of: Array | None = None
        if len(self.blocks) > 1:
            number = {block: k for k, block in enumerate(self.blocks)}
            self.block_of = np.array([number[block] for block in found])

    def homes(self, gradient: bool = False, unwritten: Container[Any] = ()) -> Iterator[Home]:
        """The arrays in which they lie, or their gradients do: nodes that have none are left out.

        Args:
            unwritten: blocks whose gradient has no value yet.

        Raises:
            FreedError: a value was freed.
        """
        places = []
        for block in self.blocks:
            array = block.gradient if gradient else block.array
            if array is None and not gradient:
                raise freed(block.nodes[0])
            places.append((array, block in unwritten))
        firsts = [block.gradient_start if gradient else block.start for block in self.blocks]
        if self.block_of is None:
            ((array, is_new),) = places
            if array is not None:
                yield Home(array, None, self.starts + firsts[0], is_new)
            return
        starts = self.starts + np.array(firsts)[self.block_of]
        keys = [(id(array), is_new) for array, is_new in places]
        for key, (array, is_new) in dict(zip(keys, places, strict=True)).items():
            if array is not None:
                inside = np.array([other == key for other in keys])[self.block_of]
                yield Home(array, inside, starts[inside], is_new)


def freed(node: Node) -> FreedError:
    """The error for reading a node whose memory was reused."""
    return FreedError(
        f"{node.label()}: the value was freed, since backward no longer needed it.\n"
        "  fix:  call node.keep() before graph.backward, or read node.value before it;\n"
        "        for several losses, call graph.backward once on their sum"
    )


def move_values(nodes: Sequence[Any], arena: Array, start: int) -> int:
    """Copy values into the arena, one after the other from `start` on; return the bytes copied."""
    sizes, packed = _extents(nodes, start)
    copied = 0
    for home in Places(nodes).homes():
        moves = move.table(home.starts, 0, home.of(packed), 0, 1, home.of(sizes))
        copied += move.run(home.array, arena, moves)
    return copied


def add_gradients(nodes: Sequence[Any], arena: Array, start: int) -> int:
    """Add what lies in the arena from `start` on to the gradients; return the bytes copied."""
    sizes, packed = _extents(nodes, start)
    copied = 0
    for home in Places(nodes).homes(gradient=True):
        moves = move.table(home.of(packed), 0, home.starts, 0, 1, home.of(sizes))
        copied += move.run(arena, home.array, moves, add=True)
    return copied


def _extents(nodes: Sequence[Any], start: int) -> tuple[Array, Array]:
    """The elements of each node, and its first one where they are packed."""
    sizes = np.multiply(*sizes_of(nodes), dtype=np.int64)
    return sizes, np.cumsum(sizes) - sizes + start


def move_rectangles(groups: Iterable[Rectangles]) -> int:
    """Copy rectangles of values to the nodes that they become; return the bytes copied."""
    return _run(groups, False, ())


def move_gradients_back(groups: Iterable[Rectangles], unwritten: Container[Any]) -> int:
    """Bring the gradients of rectangles back to the nodes that they come from.

    Args:
        unwritten: blocks whose gradient they write first, and all of it; others are added to.
    """
    return _run(groups, True, unwritten)


def _run(groups: Iterable[Rectangles], gradient: bool, unwritten: Container[Any]) -> int:
    # One launch for each pair of arrays, as a rule one in all.
    tables: dict[tuple[int, int, bool], tuple[Array, Array, list[Array]]] = {}
    for r in groups:
        width, wide = [np.array(sizes_of(nodes)[1]) for nodes in (r.sources, r.targets)]
        (target,) = Places(r.targets).homes(gradient)
        there = np.multiply(r.source_row, width) + r.source_column
        here = target.starts + np.multiply(r.target_row, wide) + r.target_column
        stride = np.multiply(r.source_step, width)
        moves = move.table(there, stride, here, wide, r.rows, r.width)
        for home in Places(r.sources).homes(gradient, unwritten):
            part = home.of(moves)
            part[:, move.SOURCE] += home.starts
            add = gradient and not home.is_new
            key = id(home.array), id(target.array), add
            tables.setdefault(key, (home.array, target.array, []))[2].append(part)
    copied = 0
    for (_, _, add), (source, target_array, parts) in tables.items():
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if gradient:
            copied += move.run(target_array, source, move.reverse(joined), add)
        else:
            copied += move.run(source, target_array, joined)
    return copied
