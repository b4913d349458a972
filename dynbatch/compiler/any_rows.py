"""Checks whether a cell's trace holds for memories of any number of rows.

A cell is traced with some number of rows and runs with others. So traces with several numbers are
compared: `memory[-1]`, `range(memory.rows)` or a number made of `memory.rows` builds other
operators for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from dynbatch.compiler.trace import Placeholder
from dynbatch.compiler.traced import same
from dynbatch.nodes.arithmetic import Binary
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.selection import Where
from dynbatch.nodes.shape.expand import Expand

# Rows of the matrices that a cell is traced with, for all of which it must build the same.
FEW, MANY = 7, 1021


class AnyTrace(Protocol):
    """A trace of a cell, in a scan or called."""

    nodes: list[Operation]
    open_rows: frozenset[int]


SomeTrace = TypeVar("SomeTrace", bound=AnyTrace)


def _operators(nodes: Sequence[Operation]) -> list[tuple[object, ...]]:
    """The operators of a trace and their attributes, for comparison."""
    return [
        (type(node), node.sig, node.ndim, node.width, [x.index for x in node.inputs], _own(node))
        for node in nodes
        if not isinstance(node, Placeholder)
    ]


def _own(node: Operation) -> list[object]:
    if isinstance(node, Expand):
        return []  # its shape
    shown = {*node.static, "taken"}  # what a slice takes follows from its input
    attributes = node.attributes().items()
    return [v for name, v in attributes if name not in shown and not isinstance(v, Node)]


def _open_rows(nodes: Sequence[Operation], others: Sequence[Operation]) -> frozenset[int]:
    """Indices of the nodes that have other rows in another trace with the same operators."""
    return frozenset([a.index for a, b in zip(nodes, others, strict=True) if a.shape != b.shape])


def repeats_beside_rows(nodes: Sequence[Operation]) -> bool:
    """Whether vectors are repeated over rows only where a matrix beside them has these rows.

    Such a vector stays a vector, also through rowwise operators, until it meets the rows of a
    matrix. Any other reader would see one row.
    """
    single: set[int] = set()  # matrices of the trace that are one vector
    for node in nodes:
        read = [x for x in node.inputs if x.ndim > 1]
        kept = [x for x in read if x.index in single]
        if isinstance(node, Expand) and node.ndim > 1 and not read:
            single.add(node.index)
        elif kept:
            if node.draws or not node.is_rowwise():
                return False
            if len(kept) == len(read):
                single.add(node.index)
            elif not isinstance(node, Binary | Where):
                return False
    return True


def trace_any_rows(
    trace_with: Callable[[Sequence[int]], SomeTrace],
    count: int,
    returned: Callable[[SomeTrace], object],
) -> SomeTrace | None:
    """The trace of a cell that holds for matrices of any number of rows; None if there is none.

    It builds the same with few rows, with many, and where it can do with these, with none, with
    one, and with unequal numbers of rows.

    Args:
        trace_with: traces the cell with matrices of so many rows.
        count:      of matrices; without any it is traced twice all the same.
        returned:   gives what a traced cell has returned, for comparison.

    Raises:
        DynbatchError: it fails with few rows, or with many.
    """
    first, many = trace_with([FEW] * count), [MANY] * count
    expected = _operators(first.nodes), returned(first)
    unequal = [FEW + k * MANY for k in range(count)]
    for rows in (many, [0] * count, [1] * count, unequal, unequal[::-1])[: 1 + 2 * count]:
        try:
            again = trace_with(rows)
        except Exception:  # whatever the function raises there
            if rows is many:
                raise
            continue
        if not same((_operators(again.nodes), returned(again)), expected):
            return None
        first.open_rows = first.open_rows or _open_rows(first.nodes, again.nodes)
    return first
