"""`LateCalls`: calls that were made together, and are nodes once somebody asks for them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.call import Call
from dynbatch.cells.calls.column import Column
from dynbatch.cells.calls.table import ROW, ROW_BITS, CallGraph, CallTable, indices_in
from dynbatch.kernels.histories import keys_of_calls
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.row import Row, light_row
from dynbatch.nodes.stream import RandomStreams, key_of


class Span(NamedTuple):
    """Consecutive calls of a table.

    table, first, size: they have rows `first` to `first + size` of the table.
    matrices: the columns of these calls that are rows of a matrix, for each of which a call takes
        one number of a node more.
    """

    table: CallTable
    first: int
    size: int
    matrices: Sequence[Column]

    @property
    def begin(self) -> int:
        """The number of the first call's value; see `table.CallGraph`."""
        return self.table.number << ROW_BITS | self.first

    def begin_key(self, streams: RandomStreams) -> tuple[int, list[Column], bool]:
        """The hash of what a call's key begins with, the columns that differ, and if keys precede.

        Rows of one matrix have one key. Columns of them come first, as a rule.
        """
        table, keys = self.table, list[int]()
        columns = table.columns
        while len(keys) < len(columns):
            column = columns[len(keys)]
            if not any([column is matrix for matrix in self.matrices]):
                break
            keys.append(_key_of_value(column.at(self.first), table.graph, streams))
        start = crc32(table.cell.__name__.encode())
        text = f"{Call.stream_name}[{', '.join(map(str, keys))}"
        return crc32(text.encode(), start), columns[len(keys) :], bool(keys)


class LateCalls:
    """A stand-in for the calls of a span until they are nodes.

    Args:
        ready: of each call.
        made:  all that were made with them. It does not know this object: what a graph has must
            end with it, without a cycle.
    """

    __slots__ = ("made", "ready", "span")

    def __init__(self, span: Span, ready: int, made: MadeTogether) -> None:
        self.span = span
        self.ready = ready
        self.made = made

    def append(self, depths: Sequence[int], late: Sequence[LateCalls]) -> None:
        """Enter them in the table, which has their columns, and what is late among the nodes."""
        table, _, size, _ = self.span
        table.is_late = True
        table.phases.extend([self.ready] * size)
        table.depths.extend(depths)
        table.nodes.extend(late)
        table.calls.extend([self] * size)

    def index(self, row: int) -> int:
        """The number of the node that the call in a row is."""
        span = self.span
        return self.made.first_node(span, row - span.first) + len(span.matrices)

    def make(self, row: int) -> Call:
        """Make the node of the call in a row, and before it those of its rows of matrices."""
        table, first, _, matrices = self.span
        index = self.made.first_node(self.span, row - first)
        for column in matrices:
            number = column.at(row)
            if type(number) is int:  # not a node made before an interrupt
                node = light_row(table.graph.origins[number >> ROW_BITS], number & ROW)
                node.index, table.nodes[index], column[row] = index, node, node
            index += 1
        call = Call()
        call.origin, call.form_id, call.depth = table, table.form_id, table.depths[row]
        call.ready, call.row, call.index = self.ready, row, index
        table.calls[row] = table.nodes[index] = call
        return call

    def enter_keys(self, streams: RandomStreams) -> None:
        """Enter the keys that the calls would have as nodes; see `nodes.stream`."""
        self.made.enter_keys(streams)

    def number_at(self, index: int) -> int:
        """The number of the call that the node with an index will be; see `table.CallGraph`."""
        return self.made.number_at(index)


class MadeTogether:
    """Calls that were made at once: those of `each` or `tree`, or of a tree's edges and nodes.

    Args:
        begin:  the number of their first node.
        spans:  where they are; of `sum_tree` first the edges, then the nodes.
        counts: of `sum_tree`, the edges of each node, which are made before it; None elsewhere.
        reads:  the node that each edge reads, -1 - k for number k of these.
    """

    def __init__(
        self, begin: int, spans: Sequence[Span], counts: Array | None = None,
        reads: Array | None = None,
    ) -> None:  # fmt: skip
        self._begin = begin
        self._spans = spans
        self._counts = counts
        self._reads = reads

    @cached_property
    def _ends(self) -> list[int]:
        """The number of edges up to the last one of each node."""
        ends: list[int] = np.cumsum(self._counts).tolist() if self._counts is not None else []
        return ends or [0] * self._spans[-1].size

    def first_node(self, span: Span, k: int) -> int:
        """The first number of a node that call k of a span takes."""
        others = self._ends[k] if span is self._spans[-1] else bisect_right(self._ends, k)
        return self._begin + (k + others) * (1 + len(span.matrices))

    def number_at(self, index: int) -> int:
        """See `LateCalls`."""
        position = (index - self._begin) // (1 + len(self._spans[-1].matrices))
        ends = self._ends
        node = bisect_left(range(len(ends)), position, key=lambda k: k + ends[k])
        is_node = node < len(ends) and node + ends[node] == position
        return self._spans[-1].begin + node if is_node else self._spans[0].begin + position - node

    def enter_keys(self, streams: RandomStreams) -> None:
        """See `LateCalls`."""
        edges, calls, keys = self._spans[0], self._spans[-1], streams.keys
        if calls.begin + calls.size - 1 in keys:  # which is entered last
            return
        *begins, (begin, columns, is_continued) = [
            span.begin_key(streams) for span in self._spans if span.size
        ]
        counts, reads = self._counts, self._reads
        if counts is None or reads is None:
            counts, reads = self._reads_of(calls, columns, streams)
        of_edges, of_calls = keys_of_calls(
            reads, counts, [begin, *[each[0] for each in begins]], is_continued
        )
        if begins:
            keys.update(enumerate(of_edges.tolist(), edges.begin))
        keys.update(enumerate(of_calls.tolist(), calls.begin))

    def _reads_of(
        self, calls: Span, columns: Sequence[Column], streams: RandomStreams
    ) -> tuple[Array, Array]:
        """The number of values that each call reads, and their keys, for `keys_of_calls`."""
        first, end, graph = calls.begin, calls.begin + calls.size, calls.table.graph
        arguments = [column[calls.first : calls.first + calls.size] for column in columns]
        reads: Sequence[Sequence[Any]] = [*zip(*arguments, strict=True)] or [()] * calls.size
        if not {*chain.from_iterable([map(type, column) for column in arguments])} <= {int}:
            reads = [[y for x in read for y in _expanded(x, graph, streams)] for read in reads]
        read = [
            first - 1 - x if first <= x < end else _key_of_value(x, graph, streams)
            for x in chain.from_iterable(reads)
        ]
        counts = np.fromiter(map(len, reads), np.int64, calls.size)
        return counts, np.fromiter(read, np.int64, len(read))


def _expanded(value: Any, graph: CallGraph, streams: RandomStreams) -> list[int]:
    """The number of a value, or the keys of what an argument holds."""
    if type(value) is int:
        return [value]
    return [streams.key(index) for index in indices_in(value, graph)]


def _key_of_value(value: Any, graph: CallGraph, streams: RandomStreams) -> int:
    """The key of a row of a matrix or of a call, as a node or by its number; see `CallGraph`.

    Keys stay what they are, so that a number below all those of values is one.
    """
    if isinstance(value, Node):
        return streams.key(value.index)
    if value <= ROW:
        return int(value)
    key = streams.keys.get(value)
    if key is not None:
        return key
    origin, row = graph.origins[value >> ROW_BITS], value & ROW
    if isinstance(origin, Node):
        return key_of(Row.stream_name, [streams.key(origin.index)])
    return streams.key(origin.index_of(row))
