"""Calls: a cell applied to nodes, one node each, recorded as columns of a table.

A call is the lightest of nodes: its graph appends what it was given to lists, and that is all until
values are asked for. Then all calls that can run are planned together (see `region`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from dynbatch.absent import NoOperators
from dynbatch.cells.calls.forms import PartSlot, ResultForm, part_slots
from dynbatch.cells.calls.table import ValueHandle
from dynbatch.nodes.node import Node, Shape
from dynbatch.parameter import Parameter


class ResultPart(ValueHandle):
    """One vector or scalar in the result of a call."""

    stream_name = "Output"
    __slots__ = ("call", "depth", "first", "form_id", "index", "origin", "ready", "row")

    def __init__(self, call: Call, first: int) -> None:
        self.call = call
        self.row = call.row
        self.first = first
        self.ready = call.ready
        self.depth = call.depth
        self.origin = table = call.origin
        self.form_id = table.leaf_form_ids[first]
        nodes = table.nodes
        self.index = len(nodes)
        nodes.append(self)

    @property
    def form(self) -> int:  # type: ignore[override]
        return self.origin.widths[self.first]

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (self.call,)

    def content(self) -> bytes:
        """The value's number in the call; see `nodes.stream`."""
        return b"%d" % self.first

    def label(self) -> str:
        return f"{self.call.label()}[{self.first}]{self.name_shown()}"


class Call(ValueHandle):
    """A cell applied to nodes. If the cell returns a tuple, this is that tuple: index or unpack it.

    Batches with:  every other call of the cell with the same forms and parameters that does not
        depend on it.
    """

    __slots__ = ("depth", "form_id", "index", "origin", "ready", "row")
    first = 0
    depth: int

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return self.origin.inputs_of(self.row)

    def indices_read(self) -> list[int]:
        return self.origin.indices_read(self.row)

    @property
    def form(self) -> ResultForm:  # type: ignore[override]
        return self.origin.form

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple([(width,) if width else () for width in self.origin.widths])

    def all_parameters(self) -> tuple[Parameter, ...]:
        operators = self.origin.trace.nodes  # they read parameters of a closure, too
        return tuple({p.uid: p for op in operators for p in op.all_parameters()}.values())

    def keep(self) -> Node:
        _ = self.width  # one value, or an error: each part is a node of its own
        return super().keep()

    def content(self) -> bytes:
        """A text that no call of another cell with these inputs has; see `nodes.stream`."""
        return self.origin.cell.__name__.encode()

    def __len__(self) -> int:
        return len(self.origin.parts) or super().__len__()

    def __getitem__(self, key: int | slice) -> Any:
        slots = self.origin.parts
        return part_of(self, slots, key) if slots else super().__getitem__(key)

    def __iter__(self) -> Any:
        slots = self.origin.parts
        return iter([part_at(self, slot) for slot in slots]) if slots else super().__iter__()

    def label(self) -> str:
        return f"{self.origin.cell.__name__} #{self.index}{self.name_shown()}"

    def __repr__(self) -> str:
        return f"{self.label()} {self.origin.form}"


class TuplePart(NoOperators):
    """A tuple inside the result of a call: the state, in (output, (h, c))."""

    __slots__ = ("call", "depth", "first", "form", "form_id", "origin", "ready", "row")

    def __init__(self, call: Call, form: tuple[ResultForm, ...], first: int, form_id: int) -> None:
        self.call = call
        self.origin = call.origin
        self.row = call.row
        self.ready = call.ready
        self.depth = call.depth
        self.form = form
        self.first = first
        self.form_id = form_id

    def __len__(self) -> int:
        return len(self.form)

    @property
    def parts(self) -> list[PartSlot]:
        return part_slots(self.form, self.first, self.origin.graph.form_ids)

    def __getitem__(self, key: int | slice) -> Any:
        return part_of(self.call, self.parts, key)

    def __iter__(self) -> Iterator[ResultPart | TuplePart]:
        return iter([part_at(self.call, slot) for slot in self.parts])

    def given_nodes(self) -> list[Node]:
        return [self.call]

    def __repr__(self) -> str:
        return f"{self.form} of {self.call.label()}"

    def _instead(self) -> str:
        return "it is a tuple of nodes: h, c = part takes them, and part[0] one"


Parts: TypeAlias = ResultPart | TuplePart | tuple[ResultPart | TuplePart, ...]


def part_at(call: Call, slot: PartSlot) -> ResultPart | TuplePart:
    first, form_id, form = slot
    return ResultPart(call, first) if form is None else TuplePart(call, form, first, form_id)


def part_of(call: Call, slots: Sequence[PartSlot], key: int | slice) -> Parts:
    if isinstance(key, slice):
        return tuple([part_at(call, slot) for slot in slots[key]])
    try:
        return part_at(call, slots[key])
    except IndexError:
        message = f"{call.label()} returned {len(slots)} values; there is no number {key}"
        raise IndexError(message) from None
