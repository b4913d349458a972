"""`OwnedNodes`: the nodes and calls of a graph, which its parts add and look up here."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np

from dynbatch.arguments import MOST_NAMES, refused, shown
from dynbatch.backend import Device, DType
from dynbatch.batcher.schedule.folds import Folds
from dynbatch.cells.calls.forms import FormIds
from dynbatch.cells.calls.table import ROW, ROW_BITS, CallTable
from dynbatch.errors import GraphError
from dynbatch.nodes.node import Node
from dynbatch.nodes.stream import RandomStreams, Sentences

_uids = itertools.count()

ONE_THREAD = (
    "  rule: a graph is used by one thread at a time\n"
    "  fix:  open a graph in each thread; models may be shared (docs/guides/threads.md)"
)


class OwnedNodes:
    """The part of `Graph` that owns nodes and answers to nodes and cells.

    Attributes:
        tables:   the calls of cells. origins: these, and other sources of what calls are given: see
                  `table.CallGraph`. totals:   sums of results of calls, by the nodes that are a
                  part of each.
        form_ids: integers for the forms of what calls are given.
        programs: what scans of one kind share, and what blocks were traced to.
        inlined:  calls that are not nodes of their own, and parameters.
        signatures: of the nodes so far, by what they follow from; see `Operation.signature`.
        widths:   with the signature, of those that keep the rows of their input.
        names:    of the nodes that were given one, by their index; `graph[name]` finds the node.
        converted_bytes: of inputs that were given in another dtype.
        block_notes: calls of blocks that cost more than a node, by the block's name and what they
            are: inlined, say, and why.
    """

    def __init__(self, device: Device, dtype: DType, seed: int) -> None:
        self.is_trace = self.draws_arrays = False
        self.device = device
        self.dtype = dtype
        self.seed = seed
        self.uid = next(_uids)
        self.converted_bytes = 0
        self.tables: list[CallTable] = []
        self.origins: list[Any] = [None]  # so that a number is greater than any node's index
        self._numbers: dict[Any, int] = {None: 0}
        self.totals: dict[int, Any] = {}
        self.form_ids = FormIds()
        self.programs: dict[Any, Any] = {}
        self.signatures: dict[Any, int] = {}
        self.widths: dict[Any, tuple[int, int]] = {}
        self.inlined: dict[Any, Any] = {}
        self.block_notes: Counter[tuple[str, str]] = Counter()
        self.names: dict[int, str] = {}
        self._named: dict[str, Node] = {}
        self._nodes: list[Node] = []
        self._pending: list[Node] = []
        self._unasked: list[Node] = []  # passed over by a run, since nobody could ask for them
        self._has_light = False
        self._folds = Folds()
        self._num_regions = 0
        self._example: int | str | None = None
        self._closed = False
        self._num_freed = 0

    def __len__(self) -> int:
        """The nodes that were made; of a closed graph, which has freed them, too."""
        return self._num_freed or len(self._nodes)

    @property
    def nodes(self) -> list[Node]:
        """All nodes in creation order.

        Raises:
            GraphError: an interrupt came while calls were made together.
        """
        if any([table.is_late for table in self.tables]):
            for table in self.tables:  # all of them first: calls of one read those of another
                table.require_whole()
            for table in self.tables:
                table.make_calls()
        return self._nodes

    def add(self, node: Node) -> int:
        """Own a node; its index is its position in creation order."""
        if self._closed:
            self._require_open(type(node).__name__)
        nodes = self._nodes
        index = len(nodes)
        nodes.append(node)
        if nodes[index] is not node:
            raise self._two_at_once(node)
        self._pending.append(node)
        return index

    def add_light(self, node: Node) -> int:
        """Own a node that runs only if someone reads it; its index is as of `add`."""
        self._has_light = True
        if self._closed:
            self._require_open(type(node).__name__)
        nodes = self._nodes
        index = len(nodes)
        nodes.append(node)
        if nodes[index] is not node:
            raise self._two_at_once(node)
        return index

    def name(self, node: Node, name: str) -> None:
        """Give a node a name: see `Node.named`."""
        self._require_open("named")
        if not isinstance(name, str) or not name:
            raise refused("named", f"name is {shown(name)}", "a text", 'x.named("hidden")')
        other = self._named.setdefault(name, node)
        if other is not node:
            rule = "a name belongs to one node of a graph"
            fix = f'give each sentence its own, as x.named(f"{name} {{number}}")'
            raise refused("named", f"{other!r} has the name already", rule, fix)
        before = self.names.setdefault(node.index, name)
        if before != name:
            del self._named[name]
            fix = f"graph[{before!r}] finds it; leave {name!r} out"
            raise refused("named", f"{node!r} is to be {name!r} too", "a node has one name", fix)

    def __getitem__(self, name: str) -> Node:
        """The node with a name: see `Node.named`.

        Raises:
            ArgumentError: no node of the graph has the name; the error lists names alike.
            GraphError:    the graph is closed.
        """
        self._require_open(f"node {name!r}")
        if isinstance(name, str) and name in self._named:
            return self._named[name]
        if not isinstance(name, str):
            fix = "x.named(name) gives a name, and graph.nodes[index] is a node by its index"
            raise refused("Graph", f"name is {shown(name)}", "nodes are found by name", fix)
        near = get_close_matches(name, self._named, n=3)
        names = [repr(each) for each in near or list(self._named)[:MOST_NAMES]]
        more = "" if near or len(self._named) <= MOST_NAMES else ", …"
        which = "names like it" if near else "its names"
        rule = f"{which}: {', '.join(names)}{more}" if names else "none of its nodes has a name"
        fix = f"x.named({name!r}) where the node is made"
        raise refused("Graph", f"no node is named {name!r}", rule, fix)

    def __contains__(self, name: object) -> bool:
        """Whether a node of the graph has the name."""
        return name in self._named

    __iter__ = None  # with `__getitem__` alone Python would try the names 0, 1, …

    def add_table(self, table: CallTable) -> None:
        """Own the calls of a cell."""
        self._require_open(f"cell {table.cell.__name__!r}")
        self.tables.append(table)
        table.nodes, table.number = self._nodes, self.number_of(table)

    def number_of(self, origin: Any) -> int:
        """The number of a table, or of a matrix whose rows calls are given; see `CallGraph`."""
        number = self._numbers.setdefault(origin, len(self.origins))
        if number == len(self.origins):
            self.origins.append(origin)
        return number

    def value_at(self, number: int) -> Any:
        """The call, or row of a matrix, with a number; see `CallGraph`."""
        self._require_open("a result of each or tree")
        origin, row = self.origins[number >> ROW_BITS], number & ROW
        return origin.call(row) if isinstance(origin, CallTable) else origin[row]

    def index_of(self, number: int) -> int:
        """The index of the node that the call with a number is, or will be; see `CallGraph`."""
        index: int = self.origins[number >> ROW_BITS].index_of(number & ROW)
        return index

    def number_of_region(self) -> int:
        """An index for a node that runs calls: negative, since the graph does not own it."""
        self._num_regions += 1
        return -self._num_regions

    def absorb(self, node: Node, reader: Node) -> None:
        """Note that `reader` can be computed without `node`, its one input."""
        self._folds.add(node, reader)

    def note_block(self, block: str, what: str) -> None:
        """Count a call of a block, for `explain()` to say what is the matter with it."""
        self.block_notes[block, what] += 1

    @cached_property
    def _streams(self) -> RandomStreams:
        return RandomStreams(self.seed, self._nodes, self.index_of)

    def stream(self, node: Node) -> int:
        """A 32-bit number for a node's random draws: the same whatever else is in the batch."""
        return self._streams.of(node, self._example)

    @contextmanager
    def example(self, key: int | str) -> Iterator[None]:
        """Make masks of dropout follow from the example's key too, for nodes made inside.

        They follow from the graph's seed and from what a sentence is made of. Of equal sentences
        the first has one mask, the second another; so a mask changes if an equal sentence joins
        before it. With a key of its own, its place in the data set for instance, it never does.

        Raises:
            ArgumentError: the key is neither an integer nor a text.

        Example:
            >>> import numpy as np, dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph(seed=0) as graph:
            ...     for number in (7, 8):
            ...         with graph.example(number):
            ...             loss = F.sum(F.dropout(F.input(graph, np.ones(100)), 0.5))
        """
        if not isinstance(key, int | np.integer | str):
            fix = "give the example's place in the data set, or its name"
            raise refused("example", f"key is {shown(key)}", "an integer or a text", fix)
        before, self._example = self._example, key if isinstance(key, str) else int(key)
        try:
            yield
        finally:
            self._example = before

    def sentence(self, node: Node) -> int | None:
        """The sentence that a node belongs to, counted from 0: its part of the graph."""
        return Sentences(self.nodes).of(node)

    def _forget(self, node: Node, count: int) -> None:
        """Forget the nodes after the first `count`: `node` was made for a backward that failed."""
        del self._nodes[count:]
        self._pending = [other for other in self._pending if other is not node]

    def _clear(self) -> None:
        """Let go of all nodes and calls."""
        self._num_freed = self._num_freed or len(self._nodes)
        self._nodes.clear()
        self._pending.clear()
        self._unasked.clear()
        self._folds.clear()
        self.__dict__.pop("_streams", None)
        for table in self.tables:
            table.close()
        self.tables.clear()
        self.origins.clear()
        self._numbers.clear()
        self.totals.clear()
        self.programs.clear()
        self.signatures.clear()
        self.widths.clear()
        self.inlined.clear()
        self.names.clear()
        self._named.clear()
        self._closed = True  # last: until then it can be repeated

    def _require_open(self, what: str) -> None:
        if self._closed:
            raise GraphError(
                f"{what}: the graph is closed; its nodes were freed after the `with` block.\n"
                "  fix:  build, run and read inside the block; after it only the loss and kept\n"
                "        nodes can be read"
            )

    def _two_at_once(self, node: Node) -> GraphError:
        return GraphError.at_caller(
            f"{type(node).__name__}: two threads made a node at once, and the graph is corrupt.\n"
            f"{ONE_THREAD}"
        )
