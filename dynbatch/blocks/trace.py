"""Traces a block: the function runs on placeholders of chosen sizes, which record its operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dynbatch.backend import DType
from dynbatch.blocks.arguments import Arguments
from dynbatch.blocks.sizes import Sizes
from dynbatch.compiler.trace import Placeholder, Section, TraceGraph
from dynbatch.errors import GraphError
from dynbatch.nodes.node import WIDTH, Node
from dynbatch.parameter import Array

LENGTH_NAMES = frozenset(("len", "rows", "shape", "size"))
MOST_DRAWN = 255
ARRAY_NAMES = frozenset(("array", "asanyarray", "asarray", "ascontiguousarray", "fromiter"))
"""Functions that make a plain array of another, which `GivenArray` does not see."""
ROOMS = ("arguments", "blocks", "cells", "compiler", "kernels", "names", "nodes", "parameter")
INSIDE = tuple([f"dynbatch.{room}" for room in ROOMS])


class NotTraceable(GraphError):
    """A block does what no trace can record; the text says what."""


class BlockArgument(Placeholder):
    """A node that a block is given, while the block is traced.

    dimensions: its `ragged`.
    """

    __slots__ = ("dimensions",)
    any_length = True
    dimensions: int

    def infer_ragged(self) -> int:
        return self.dimensions


class GivenArray(np.ndarray):
    """An array that a block is given while it is traced; it notes whether the block looks into it.

    Node types make plain arrays of it first, which is not noted.
    """

    is_touched = False

    def __getattribute__(self, name: str) -> Any:
        if name not in ("dtype", "ndim", "shape", "size", "is_touched", "view", "__class__"):
            _touch(self)
        return super().__getattribute__(name)

    def __getitem__(self, key: Any) -> Any:
        _touch(self)
        return self.view(np.ndarray)[key]

    def __iter__(self) -> Any:
        _touch(self)
        return iter(self.view(np.ndarray))

    def __contains__(self, value: object) -> bool:
        _touch(self)
        return value in self.view(np.ndarray)

    def __bool__(self) -> bool:
        _touch(self)
        return bool(self.view(np.ndarray))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return function(*map(_plain, args), **options)


def _plain(value: object) -> object:
    if isinstance(value, GivenArray):
        _touch(value)
        return value.view(np.ndarray)
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value


def _touch(array: GivenArray) -> None:
    """Note a look into an array, unless a node type takes it."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back  # type: ignore[assignment]
    if not str(frame.f_globals.get("__name__")).startswith(INSIDE):
        array.is_touched = True


class BlockTrace(TraceGraph):
    """Owns the nodes of one trace of a block.

    Attributes:
        losses:   indices of losses that can do without their one input, by that input's index.
        returned: what the function returned.
        is_touched: whether it computed with an array, or looked into one.
        arrays:   that it was given.
    """

    def __init__(self, dtype: DType, arrays: Sequence[Array]) -> None:
        super().__init__(dtype)
        self.losses: dict[int, list[int]] = {}
        self.arrays = arrays
        self.returned: tuple[Node, ...] = ()
        self.returns_tuple = False
        self.is_touched = False

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


def run_on_placeholders(
    function: Callable[..., object],
    arguments: Arguments,
    params: Sequence[object],
    sizes: Sizes,
    arrays: Sequence[Array],
    dtype: DType,
) -> BlockTrace:
    """Run the function once on placeholders.

    Args:
        arguments: of the call that is traced.
        params:    in place of its parameters.
        sizes:     of the placeholders.
        arrays:    in place of its arrays, of these sizes.

    Raises:
        DynbatchError: whatever the function raises at these sizes.
        NotTraceable:  it reads a value, returns something else than nodes, or nodes from outside.
    """
    trace = BlockTrace(dtype, arrays)
    left = iter(sizes)
    nodes = [_placeholder(trace, number, x, left) for number, x in enumerate(arguments.nodes)]
    given = [array.view(GivenArray) for array in arrays]
    positional, named = arguments.with_leaves(nodes, given, params, trace)
    returned = function(*positional, **named)
    trace.returns_tuple = isinstance(returned, tuple)
    results = returned if isinstance(returned, tuple) else (returned,)
    for result in results:
        if not isinstance(result, Node):
            raise NotTraceable(f"it returns a {type(result).__name__}, not a node or several")
        if result.graph is not trace:
            raise NotTraceable(f"it returns {result!r}, which was made outside it")
    for node in trace.nodes:
        for x in node.inputs:
            if x.graph is not trace:
                raise NotTraceable(f"it reads {x!r}, which was made outside it")
    trace.returned = results
    trace.is_touched = any([array.is_touched for array in given])
    return trace


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
        is_touched: whether the function computed with an array, or looked into one.
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
        self.is_touched = False

    def at(self, sizes: Sizes) -> BlockTrace:
        """The trace at these sizes; arrays hold elements of the call's own, drawn anew."""
        return self.on(sizes, self.arrays_of(sizes))

    def on(self, sizes: Sizes, arrays: Sequence[Array]) -> BlockTrace:
        """The trace at these sizes, with these arrays."""
        trace = run_on_placeholders(
            self._function, self.arguments, self._params, sizes, arrays, self._dtype
        )
        self.is_touched = self.is_touched or trace.is_touched
        return trace

    def arrays_of(self, sizes: Sizes) -> list[Array]:
        """Arrays of these sizes, whose entries are drawn from the call's own."""
        left = len(sizes) - sum([array.ndim for array in self.arguments.arrays])
        drawn: list[Array] = []
        for array in self.arguments.arrays:
            shape = sizes[left : left + array.ndim]
            left += array.ndim
            if 0 in array.shape or 0 in shape:
                drawn.append(np.zeros(shape, array.dtype))
                continue
            drawn.append(np.asarray(self._random.choice(_values_like(array), shape), array.dtype))
        return drawn


def _values_like(array: Array) -> Array:
    """Values that such an array may have: its own, and if they are integers smaller ones."""
    if array.dtype.kind == "b":
        return np.array([False, True])
    if array.dtype.kind in "iu":
        most = min(int(array.max()), MOST_DRAWN)
        return np.union1d(array, np.arange(most + 1, dtype=array.dtype))
    return np.append(np.unique(array), array.dtype.type(1))


def names_used(run: Callable[[], BlockTrace]) -> tuple[BlockTrace, set[str]]:
    """What `run` returns, and the names in the code of all functions that it ran, but for ours."""
    codes: set[Any] = set()

    def profile(frame: Any, event: str, argument: object) -> None:
        if event == "call" and not str(frame.f_globals.get("__name__")).startswith(INSIDE):
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        trace = run()
    finally:
        sys.setprofile(before)
    return trace, {name for code in codes for name in code.co_names}


def may_read_lengths(trace: BlockTrace, names: set[str]) -> bool:
    """Whether code with these names may read a length: it may build what no trace has tried."""
    if any([node.ragged & WIDTH for node in trace.nodes]):
        return not names.isdisjoint({*LENGTH_NAMES, "width"})
    return not names.isdisjoint(LENGTH_NAMES)
