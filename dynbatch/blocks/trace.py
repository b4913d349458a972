"""Traces a block: the function runs on placeholders of chosen sizes, which record its operators."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.blocks.arguments import Arguments
from dynbatch.blocks.given_arrays import GivenArrays, NotTraceable, is_inside
from dynbatch.blocks.sizes import Sizes
from dynbatch.compiler.trace import Placeholder, Section, TraceGraph, parameters_in
from dynbatch.nodes.node import WIDTH, Node, ancestors
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.sources import ParameterNode

LENGTHS_READ = frozenset(
    [
        getattr(read, "fget", read).__code__
        for read in (Node.__len__, Node.numel, Node.shape, Node.shapes, Node.size)
    ]
)
DRAWS = 20
"""So often arrays are drawn anew until they differ from each other and from those before."""
MOST_DRAWN = 255
ARRAY_NAMES = frozenset(("array", "asanyarray", "asarray", "ascontiguousarray", "fromiter"))
"""Functions that make a plain array of another, which `GivenArray` does not see."""


class BlockArgument(Placeholder):
    """A node that a block is given, while the block is traced.

    dimensions: its `ragged`.
    """

    __slots__ = ("dimensions",)
    any_length = True
    dimensions: int

    def infer_ragged(self) -> int:
        return self.dimensions


class BlockTrace(TraceGraph):
    """Owns the nodes of one trace of a block.

    Attributes:
        losses:    indices of losses that can do without their one input, by that input's index.
        arrays:    that it was given, and what NumPy made of them.
        draws_arrays: whether these are no sentence's, so that they may not suit its sizes.
        operators: those that the results need, in order.
        inputs:    of each, positions of operators, or -1 - k for the node argument k.
        results:   likewise.
    """

    reads_short = True  # the graph of a call is asked when it is made

    def __init__(self, dtype: DType, arrays: GivenArrays, draws_arrays: bool) -> None:
        super().__init__(dtype)
        self.draws_arrays = draws_arrays
        self.losses: dict[int, list[int]] = {}
        self.arrays = arrays
        self.operators: list[Operation] = []
        self.inputs: list[tuple[int, ...]] = []
        self.results: tuple[int, ...] = ()
        self.returns_tuple = False

    def absorb(self, node: Node, reader: Node) -> None:
        self.losses.setdefault(node.index, []).append(reader.index)

    def value(self, node: Node) -> Array:
        raise NotTraceable("it reads a value, and is traced before there are any")

    gradient = device_value = device_gradient = value

    def backward(
        self, loss: Node, memory_limit: int | str | None = None, gradient: object = None
    ) -> None:
        raise NotTraceable("it calls backward, and is traced before there are values")

    def keep(self, node: Node) -> None:
        raise NotTraceable("it keeps a node that lies inside it")

    def name(self, node: Node, name: str) -> None:
        raise NotTraceable("it names a node that lies inside it")

    def returns(self, returned: object) -> None:
        """Note what the function returned, which must be made of nodes of the trace.

        A loss takes the place of the projection below it, which nothing else reads, as it does
        between nodes of a graph (see `batcher.schedule.folds`).
        """
        self.returns_tuple = isinstance(returned, tuple)
        results = returned if isinstance(returned, tuple) else (returned,)
        for result in results:
            if not isinstance(result, Node):
                raise NotTraceable(f"it returns a {type(result).__name__}, not a node or several")
            if result.graph is not self:
                raise NotTraceable(f"it returns {result!r}, which was made outside it")
        for node in self.nodes:
            for x in node.inputs:
                if x.graph is not self:
                    raise NotTraceable(f"it reads {x!r}, which was made outside it")
        # A scan's last state, say, may stay unread; and what has parameters of any shape as values.
        live = ancestors(results)
        _require_matrices([node for node in live.values() if not isinstance(node, ParameterNode)])
        nodes = {node.index: node for node in self.nodes}
        readers = Counter([x.index for node in live.values() for x in node.inputs])
        returned = {node.index for node in results}
        for index, losses in self.losses.items():
            reader = [loss for loss in losses if loss in live]
            if index not in returned and readers[index] == 1 and reader:
                nodes[reader[0]] = nodes[reader[0]].folded()
                del live[index]
                live |= {x.index: x for x in nodes[reader[0]].inputs}
        position: dict[int, int] = {}
        for index in sorted(live):
            node = nodes[index]
            if isinstance(node, BlockArgument):
                position[index] = -1 - node.number
            else:
                position[index] = len(self.operators)
                self.operators.append(node)
                self.inputs.append(tuple([position[x.index] for x in node.inputs]))
        self.results = tuple([position[node.index] for node in results])


def _require_matrices(nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.ndim > 2:
            raise NotTraceable(f"{node!r} has {node.ndim} dimensions; a block follows two")


def _placeholder(trace: BlockTrace, number: int, node: Node, sizes: Any) -> BlockArgument:
    rows = next(sizes) if node.ndim == 2 else 1
    width = next(sizes) if node.ragged & WIDTH and node.ndim else node.width
    shape = (rows, width) if node.ndim == 2 else (width,) * node.ndim
    return BlockArgument(
        graph=trace, role=Section.ARGUMENT, number=number, traced=shape, dimensions=node.ragged
    )


class TraceMaker:
    """Traces one block for one call's forms, at any sizes.

    Args:
        function:  the block's function.
        arguments: of the call.
        params:    in place of its parameters: recorders.
        dtype:     of the graph.

    Attributes:
        is_touched: whether the function looked into an array.
        least:      the largest integer that arrays may hold, if the call's own are smaller; None
            for the call's own integers only.
    """

    def __init__(
        self,
        function: Callable[..., object],
        arguments: Arguments,
        params: Sequence[object],
        dtype: DType,
    ) -> None:
        self.arguments = arguments
        self._function = function
        self._params = params
        self._dtype = dtype
        self._random = np.random.default_rng(0)
        self._last: list[Array] = []
        self.least: int | None = 1
        self.is_touched = False

    def at(self, sizes: Sizes) -> BlockTrace:
        """The trace at these sizes; arrays hold elements of the call's own, drawn anew."""
        return self.on(sizes, self.arrays_of(sizes), draws_arrays=True)

    def on(self, sizes: Sizes, arrays: Sequence[Array], draws_arrays: bool = False) -> BlockTrace:
        """The trace on placeholders of these sizes, with these arrays.

        Args:
            draws_arrays: whether they were drawn.

        Raises:
            DynbatchError: whatever the function raises at these sizes.
            NotTraceable:  it reads a value, returns something else than nodes, or nodes from
                outside.
        """
        arguments = self.arguments
        trace = BlockTrace(self._dtype, GivenArrays(arrays, arguments.are_lists), draws_arrays)
        _require_matrices(arguments.nodes)
        left = iter(sizes)
        nodes = [_placeholder(trace, number, x, left) for number, x in enumerate(arguments.nodes)]
        leaves = nodes, trace.arrays.given(), self._params
        positional, named = arguments.with_leaves(*leaves, trace)
        with parameters_in(trace):
            trace.returns(self._function(*positional, **named))
        self.is_touched = self.is_touched or trace.arrays.is_touched
        return trace

    def arrays_of(self, sizes: Sizes) -> list[Array]:
        """Arrays of these sizes, whose entries are drawn from the call's own.

        They differ from each other and from those that were drawn before, if that can be: what
        follows from one of them is then told from what follows from another, or from none.
        """
        for _ in range(DRAWS):
            drawn = self._drawn(sizes)
            pairs = [*itertools.combinations(drawn, 2), *zip(drawn, self._last, strict=False)]
            if not any([np.array_equal(a, b) for a, b in pairs]):
                break
        self._last = drawn
        return drawn

    def _drawn(self, sizes: Sizes) -> list[Array]:
        left = len(sizes) - sum([array.ndim for array in self.arguments.arrays])
        drawn: list[Array] = []
        for array in self.arguments.arrays:
            shape = sizes[left : left + array.ndim]
            left += array.ndim
            values = _values_like(array, self.least)
            drawn.append(np.asarray(self._random.choice(values, shape), array.dtype))
        return drawn


def _values_like(array: Array, least: int | None) -> Array:
    """Values that such an array may have: its own, and if they are integers smaller ones."""
    if array.dtype.kind == "b":
        return np.array([False, True])
    if array.dtype.kind in "iu" and (least is not None or not array.size):
        most = min(max(least or 0, int(array.max(initial=0))), MOST_DRAWN)
        return np.union1d(array, np.arange(most + 1, dtype=array.dtype))
    if array.dtype.kind in "iu":
        return np.unique(array)
    return np.append(np.unique(array), array.dtype.type(1))


def _slot() -> tuple[Callable[[Any], None], Any]:
    """The function of `sys` that has calls watched, and who watches now: it can be given back.

    A profiler in C, as cProfile's is before Python 3.12, cannot: `sys.getprofile` returns an object
    that `sys.setprofile` could not call. It goes on, and calls are watched as a debugger does.
    """
    profiler = sys.getprofile()
    if profiler is None or callable(profiler):
        return sys.setprofile, profiler
    return sys.settrace, sys.gettrace()


class Seen:
    """Facts about a block's code while it is traced, apart from our functions and NumPy's.

    Attributes:
        names:         in the code of all functions that ran.
        reads_lengths: whether one of them read the length or the shape of a node.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.reads_lengths = False

    def watch(self, run: Callable[[], BlockTrace]) -> BlockTrace:
        codes: set[Any] = set()

        def watcher(frame: Any, event: str, argument: object) -> None:
            if event != "call":
                return
            if not is_inside(frame):
                if not str(frame.f_globals.get("__name__")).startswith("numpy."):
                    codes.add(frame.f_code)
            elif frame.f_code in LENGTHS_READ and not is_inside(frame.f_back):
                self.reads_lengths = True

        set_watcher, before = _slot()
        try:
            set_watcher(watcher)
            trace = run()
        finally:
            set_watcher(before)
            self.names = {name for code in codes for name in code.co_names}
        return trace

    def may_decide(self, trace: BlockTrace) -> bool:
        """Whether sizes may have decided something: others may build what no trace has tried."""
        ragged = any([node.ragged & WIDTH for node in trace.nodes])
        by_name = "rows" in self.names or (ragged and "width" in self.names)
        return self.reads_lengths or trace.arrays.reads_shapes or by_name
