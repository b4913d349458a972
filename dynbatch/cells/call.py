"""Calls: a cell applied to nodes, one node each, recorded as columns of a table.

A call is the lightest of nodes: its graph appends what it was given to lists, and that is all until
values are asked for. Then all calls that can run are planned together (see `region`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynbatch.cells.step import Form, leaves
from dynbatch.errors import DtypeError
from dynbatch.nodes.base import Node, Shape, caller
from dynbatch.parameter import Parameter

if TYPE_CHECKING:
    from dynbatch.cells.region_node import RegionNode
    from dynbatch.cells.table import CallTable


class Light(Node):
    """A node that owns no kernel: it is some columns of a row of a region's value.

    A call is given what has these attributes:

    origin: where its value comes from: a table of calls, an ordinary node, or None for zeros.
    row:    of the call in its table, or of the origin's matrix.
    first:  the first of the call's values that this stands for.
    kind:   an integer; equal ones are equal forms in one graph.
    ready:  the phase in which a call can read it: one more than the ordinary nodes it comes from
            have, and that of a call itself.
    """

    __slots__ = ()
    origin: CallTable
    row: int
    first: int
    kind: int
    ready: int
    is_light = True
    rows = 1
    sig = -1

    @property
    def graph(self) -> Any:  # type: ignore[override]
        return self.origin.graph

    @property
    def home(self) -> RegionNode | None:
        """The node that has run the call; None if it has not run."""
        return self.origin.home(self.row)

    def producer(self) -> Node:
        home: Node = self.origin.runs[self.origin.run_of[self.row]]
        return home

    @property
    def phase(self) -> int:  # type: ignore[override]
        return self.ready

    @property
    def _block(self) -> Any:
        home = self.origin.home(self.row)
        return None if home is None else home._block

    @property
    def _start(self) -> int:  # type: ignore[override]
        home = self.origin.home(self.row)
        assert home is not None
        return home._start + home.place(self.origin, self.row, self.first)

    _position = None  # type: ignore[assignment]


class Output(Light):
    """One vector or scalar of what a call returned."""

    __slots__ = ("call", "first", "index", "kind", "ready", "row")

    def __init__(self, call: Call, first: int) -> None:
        self.call = call
        self.row = call.row
        self.first = first
        self.ready = call.ready
        table = call.origin
        self.kind = table.kinds[first]
        nodes = table.nodes
        self.index = len(nodes)
        nodes.append(self)

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.call.origin.widths[self.first] or 1

    @property
    def origin(self) -> CallTable:  # type: ignore[override]
        return self.call.origin

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return 1 if self.call.origin.widths[self.first] else 0

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (self.call,)

    def content(self) -> bytes:
        """Which of the call's values it is; see `nodes.stream`."""
        return b"%d" % self.first

    @property
    def depth(self) -> int:
        """Of the call."""
        return self.call.depth

    def label(self) -> str:
        return f"{self.call.label()}[{self.first}]"


class Call(Light):
    """A cell applied to nodes. If the cell returns a tuple, this is that tuple: index or unpack it.

    Batches with:  every other call of the cell with the same forms and parameters that does not
        depend on it.
    """

    __slots__ = ("depth", "index", "kind", "origin", "ready", "row")
    first = 0
    depth: int

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return self.origin.inputs_of(self.row)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return 1 if self.origin.form else 0

    @property
    def width(self) -> int:  # type: ignore[override]
        form = self.origin.form
        if isinstance(form, tuple):
            raise DtypeError(
                f"{self.label()} stands for {len(form)} values, not one.\n"
                "  rule: what a cell returned as a tuple is a tuple\n"
                f"  fix:  h, c = cell(...), or cell(...)[0]\n  made at {caller()}"
            )
        return int(form) or 1

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple([(width,) if width else () for width in self.origin.widths])

    def all_parameters(self) -> tuple[Parameter, ...]:
        found = [x for x in self.origin.trace.reads.values() if isinstance(x, Parameter)]
        return tuple({parameter.uid: parameter for parameter in found}.values())

    def keep(self) -> Node:
        _ = self.width  # one value, or an error: each part is a node of its own
        return super().keep()

    def content(self) -> bytes:
        """What tells it from calls of other cells with the same inputs; see `nodes.stream`."""
        return self.origin.cell.__name__.encode()

    def __len__(self) -> int:
        form = self.origin.form
        return len(form) if isinstance(form, tuple) else super().__len__()

    def __getitem__(self, key: Any) -> Any:
        form = self.origin.form
        if not isinstance(form, tuple):
            return super().__getitem__(key)
        if key == 0 and not isinstance(form[0], tuple):
            return Output(self, 0)
        if isinstance(key, slice):
            return tuple([self[k] for k in range(*key.indices(len(form)))])
        return part_of(self, form, 0, key)

    def __iter__(self) -> Any:
        form = self.origin.form
        if not isinstance(form, tuple):
            return super().__iter__()
        return iter(
            [
                Output(self, first) if part is None else Part(self, part, first, kind)
                for first, part, kind in self.origin.parts
            ]
        )

    def label(self) -> str:
        return f"{self.origin.cell.__name__} #{self.index}"

    def __repr__(self) -> str:
        return f"{self.label()} {self.origin.form}"


class Part:
    """A tuple inside of what a call returned: the state, in (output, (h, c))."""

    __slots__ = ("call", "depth", "first", "form", "kind", "origin", "ready", "row")

    def __init__(self, call: Call, form: Form, first: int, kind: int) -> None:
        self.call = call
        self.origin = call.origin
        self.row = call.row
        self.ready = call.ready
        self.depth = call.depth
        self.form = form
        self.first = first
        self.kind = kind

    def __len__(self) -> int:
        return len(self.form)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return tuple([self[k] for k in range(*key.indices(len(self.form)))])
        return part_of(self.call, self.form, self.first, key)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[k] for k in range(len(self.form))])

    def __repr__(self) -> str:
        return f"{self.form} of {self.call.label()}"


def part_of(call: Call, form: tuple[Form, ...], first: int, key: int) -> Output | Part:
    """The key-th part of a tuple whose first leaf is the call's value number `first`."""
    place = key + len(form) if key < 0 else key
    if not 0 <= place < len(form):
        raise IndexError(f"{call.label()} returned {len(form)} values; there is no number {key}")
    first += sum([len(leaves(part)) for part in form[:place]])
    part = form[place]
    if not isinstance(part, tuple):
        return Output(call, first)
    return Part(call, part, first, call.origin.graph.kinds.of(part))
