"""`singly`: a region's calls one after the other, planned again from what each call was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dynbatch.cells.calls.arguments import SumArgument, TupleArgument
from dynbatch.cells.calls.region import (
    CallBatch,
    CallGroup,
    CallRegion,
    CallStream,
    Earlier,
    Fetch,
    Inner,
    PackedRows,
    Space,
)
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.step import CompiledStep
from dynbatch.cells.calls.table import CallTable, ValueHandle
from dynbatch.nodes.base import Node
from dynbatch.parameter import Array


def calls_of(region: CallRegion) -> list[tuple[int, int, ValueHandle]]:
    """The calls of a region in order of creation: group, row in the group's order, and the call."""
    found = [
        (number, row, group.table.calls[own])
        for number, group in enumerate(region.groups)
        for row, own in enumerate(group.rows.tolist())
    ]
    return sorted(found, key=lambda each: each[2].index)


def singly(node: RegionNode) -> RegionNode:
    """The same calls, each a batch of its own, in order of creation; not a node of the graph.

    Nothing is taken over of the region's plan but the order of its rows: what a call reads is read
    off the table of calls, nothing is hoisted, and each source is one node.
    """
    made = object.__new__(type(node))  # users may not copy a node, so `copy.copy` refuses
    for name in [*Node.__slots__, *RegionNode.__slots__]:
        if name != "__weakref__" and hasattr(node, name):
            setattr(made, name, getattr(node, name))
    made.region = _Single(node).region()
    return made


class _Single:
    """The region of single calls on its way."""

    def __init__(self, node: RegionNode) -> None:
        self._node = node
        self._sources = {x: place for place, x in enumerate(node.inputs)}
        self._spaces: dict[Space, int] = {}
        self._groups: dict[CallTable, int] = {}
        self._rows: list[dict[int, int]] = []  # of a table, to rows of its group
        self._summaries: dict[CallTable, list[list[Node]]] = {}

    def region(self) -> CallRegion:
        old = self._node.region
        groups = []
        for number, group in enumerate(old.groups):
            self._groups[group.table] = number
            self._rows.append({own: row for row, own in enumerate(group.rows.tolist())})
            cell = group.table.compiled(frozenset())
            widths = [value.width for value in cell.program.streams]
            made = group.table.hoisted.constants
            constants = [self._place(group.table, made, x) for x in cell.program.constants]
            arguments = [CallStream(width) for width in widths[: len(widths) - len(constants)]]
            memories, memory_of = self._memories(group.table, cell, group.rows)
            groups.append(
                CallGroup(
                    group.table, cell, group.rows, group.offset, arguments, constants, memories,
                    memory_of,
                )
            )  # fmt: skip
        batches = [
            CallBatch(number, row, row + 1, list(self._fetches(groups[number], call, row)))
            for number, row, call in calls_of(old)
        ]
        sources = [[x] for x in self._sources]
        spaces = list(self._spaces)
        return CallRegion(groups, batches, sources, spaces, len(batches), old.number)

    def _memories(
        self, table: CallTable, cell: CompiledStep, rows: Array
    ) -> tuple[list[list[int]], Array]:
        """Sources of the matrices that the loop reads, and the place there of each call's."""
        given = []
        for row in rows.tolist():
            leaves = [leaf for leaf, is_matrix in _leaves(table, row) if is_matrix]
            given.append(tuple([origin for leaf in leaves for origin, _, _ in leaf]))
        place = {memory: k for k, memory in enumerate(dict.fromkeys(given))}
        made = [table.hoisted.of_memories.get(memory, {}) for memory in place]
        self._summaries[table] = [
            [table.hoisted.node_among(self._sources, each, x) for each in made]
            for x in cell.program.summaries
        ]
        sources = [
            [self._place(table, each, x) for each in made] for x in cell.program.memory_nodes
        ]
        return sources, np.array([place[memory] for memory in given], np.int64)

    def _place(self, table: CallTable, made: dict[int, Node], traced: Node) -> int:
        """The source that is the node in place of a traced one; none is made anew."""
        return self._sources[table.hoisted.node_among(self._sources, made, traced)]

    def _fetches(
        self, group: CallGroup, call: ValueHandle, own: int
    ) -> Iterator[tuple[int, Fetch]]:
        """A gather for each value that a call is given, zeros left out; and of its memory."""
        stream = 0
        for terms, is_matrix in _leaves(group.table, call.row):
            if is_matrix:
                continue
            for origin, row, value in terms:
                if origin is not None:
                    width = group.arguments[stream].width
                    space, place = self._find(origin, row, value, width)
                    yield stream, _fetch(space, place, len(terms) > 1)
            stream += 1
        for made in self._summaries[group.table]:
            node = made[group.memory_of[own]]
            space, place = self._find(node, 0, 0, node.width)
            yield stream, _fetch(space, place, False)
            stream += 1

    def _find(self, origin: Any, row: int, value: int, width: int) -> tuple[int, int]:
        """The space that a value of `origin` lies in, and its row there."""
        space: Space
        if not isinstance(origin, CallTable):
            space = PackedRows(self._sources[origin], width)
        elif row in self._inside(origin):
            number = self._groups[origin]
            space, row = Inner(number, value), self._rows[number][row]
        else:
            home, offset, num_calls, cell = origin.runs[origin.run_of[row]]
            source = self._sources[home]
            space = Earlier(source, offset, num_calls, cell.width, cell.columns[value], width)
            row = int(origin.position[row])
        return self._spaces.setdefault(space, len(self._spaces)), row

    def _inside(self, table: CallTable) -> dict[int, int]:
        number = self._groups.get(table)
        return {} if number is None else self._rows[number]


def _leaves(table: CallTable, row: int) -> Iterator[tuple[list[tuple[Any, int, int]], bool]]:
    """The terms of each leaf that a call is given, and whether it is a matrix."""
    matrices = iter(table.matrices)
    for column, count in zip(table.columns, table.forms, strict=True):
        for leaf in range(count):
            yield list(_terms(column[row], leaf)), next(matrices)


def _terms(given: Any, leaf: int) -> Iterator[tuple[Any, int, int]]:
    """What one value of an argument is the sum of: origin, row there, and value of a call there."""
    if isinstance(given, TupleArgument):
        yield from _terms(given.values[leaf], 0)
    elif isinstance(given, SumArgument):
        for member in given.members:
            yield from _terms(member, leaf)
    else:
        yield given.origin, given.row, given.first + leaf


def _fetch(space: int, row: int, adds: bool) -> Fetch:
    only = np.zeros(1, np.int64) if adds else None
    return Fetch(space, np.array([row]), only, only, True)
