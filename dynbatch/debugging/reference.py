"""`ReferenceRun`: runs the nodes of a batch step again in NumPy, in other batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import CPU, Array, DType
from dynbatch.batcher.execution.forms import round_saved
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.kernels.arrays import download
from dynbatch.kernels.runtime import transfer
from dynbatch.kernels.runtime.precision import rounded
from dynbatch.kernels.runtime.tasks import do
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import PortPlace
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged, packed
from dynbatch.row_sparse import RowSparse

Flats = Sequence[Array | None]
"""For each input of a batch step its elements, node after node; None where it was freed."""


Totals = dict[int, tuple[Parameter, Array]]
"""By `Parameter.uid` a parameter and its gradient, on the host."""


class Readable(NamedTuple):
    """The arrays that backward may read.

    inputs, output: what the node type retains, else None.
    dy:             the gradient of the value, flat; `port_gradients`: (K, width) each.
    wanted:         for each input whether its gradient is.
    """

    inputs: Flats
    output: Array | None
    dy: Array
    port_gradients: Sequence[Array]
    wanted: Sequence[bool]


class FlatGradients(NamedTuple):
    """FlatGradients by the keys of `StepArrays.gradients`, and those of parameters.

    sums: further ones, inside of the step.
    """

    of_inputs: dict[Any, Array]
    of_parameters: Totals
    sums: Sequence[Array] = ()


class Reference:
    """A second run of a batch step. It keeps the values that backward needs."""

    def forward(self, xs: Flats) -> list[Array]:
        """The arrays that the step writes."""
        raise NotImplementedError

    def round_saved(self, names: Iterable[str]) -> None:
        """Round what forward has left by these names to bfloat16, as the step's is."""

    def backward(self, readable: Readable) -> FlatGradients:
        raise NotImplementedError


Move = tuple[int, Array, Array]
"""The number of an input, elements there, and elements of the output."""


class Moves(Reference):
    """Values that are moved, by plain indexing.

    Args:
        sizes: of the inputs; `size`: of the output.
    """

    def __init__(
        self, moves: Sequence[Move], sizes: Sequence[int], size: int, dtype: DType
    ) -> None:
        self._moves = moves
        self._sizes = sizes
        self._size = size
        self._dtype = dtype

    def forward(self, xs: Flats) -> list[Array]:
        y = np.full(self._size, np.nan, self._dtype)
        for k, there, here in self._moves:
            y[here] = xs[k][there]  # type: ignore[index]  # nothing has been freed
        return [y]

    def backward(self, readable: Readable) -> FlatGradients:
        dxs = [np.zeros(size, readable.dy.dtype) for size in self._sizes]
        for k, there, here in self._moves:
            dxs[k][there] += readable.dy[here]
        return FlatGradients(dict(enumerate(dxs)), {})


class ReferenceRun(Reference):
    """Runs the nodes of one batch step on the host, in groups.

    Args:
        groups: the step's nodes in order: in one group, or each in a group of its own.
        keeps:  whether a backward may follow.
    """

    def __init__(self, groups: Sequence[Sequence[Operation]], dtype: DType, keeps: bool) -> None:
        self.node_type = type(groups[0][0])
        self.dtype = dtype
        self.batches = [
            Batch(nodes, self.dtype, CPU, self.node_type.recompute_of(nodes)) for nodes in groups
        ]
        for batch in self.batches:
            batch.keeps = keeps
        self._reads = [self.node_type.sources(nodes) for nodes in groups]
        positions = max([len(reads) for reads in self._reads])
        self._bounds = [
            _bounds([_size(reads[p]) if p < len(reads) else 0 for reads in self._reads])
            for p in range(positions)
        ]
        self._elements = _bounds([_size(nodes) for nodes in groups])
        self._members = _bounds([len(nodes) for nodes in groups])

    def forward(self, xs: Flats) -> list[Array]:
        outputs = []
        for k, batch in enumerate(self.batches):
            y = self._prepare(batch)
            do(self.node_type.forward_batch(batch, y, *self._cut(k, xs)))
            outputs.append([y, *batch.ports])
        return _joined(outputs)

    def round_saved(self, names: Iterable[str]) -> None:
        for batch in self.batches:
            round_saved(batch, names if batch.saved else ())

    def forward_backward(
        self, xs: Flats, dy: Array, wanted: Sequence[bool]
    ) -> tuple[list[Array], FlatGradients]:
        """Outputs and gradients, where a node type computes both in one pass."""
        outputs, sink, dxs = [], StepGradients(set(), set()), self._gradients(wanted)
        for k, batch in enumerate(self.batches):
            y = self._prepare(batch)
            batch.gradients = sink
            dy_of_batch = y.like(self._part(k, dy).reshape(y.values.shape))
            self.node_type.forward_backward(
                batch, y, self._cut(k, xs), dy_of_batch, self._cut(k, dxs)
            )
            outputs.append([y, *batch.ports])
        return _joined(outputs), _gradients_of(dxs, sink)

    def backward(self, readable: Readable) -> FlatGradients:
        inputs, output, dy, port_gradients, wanted = readable
        sink, dxs = StepGradients(set(), set()), self._gradients(wanted)
        for k, batch in enumerate(self.batches):
            dy_of_batch = packed(self._part(k, dy), batch.nodes)
            batch.inputs = tuple(self._cut(k, inputs))
            batch.output = None if output is None else packed(self._part(k, output), batch.nodes)
            batch.gradients = sink
            rows = slice(self._members[k], self._members[k + 1])
            ones = [1] * len(batch.nodes)
            batch.port_gradients = [Ragged(array[rows], ones) for array in port_gradients]
            batch.scratch = np.empty(self.node_type.workspace_backward(batch), self.dtype)
            do(self.node_type.backward_batch(batch, dy_of_batch, *self._cut(k, dxs)))
        return _gradients_of(dxs, sink)

    def _prepare(self, batch: Batch) -> Ragged:
        """A batch with memory: outputs filled with NaN, and scratch."""
        if batch.keeps:
            batch.saved = {
                name: np.empty((rows, width), self.dtype)
                for name, (rows, width) in self.node_type.saved(batch).items()
            }
        batch.scratch = np.empty(self.node_type.workspace(batch), self.dtype)
        ones = [1] * len(batch.nodes)
        batch.ports = [
            Ragged(np.full((len(ones), width), np.nan, self.dtype), ones)
            for width in batch.first.port_widths()
        ]
        return packed(np.full(_size(batch.nodes), np.nan, self.dtype), batch.nodes)

    def _part(self, k: int, flat: Array) -> Array:
        return flat[self._elements[k] : self._elements[k + 1]]

    def _cut(self, k: int, flats: Flats) -> list[Any]:
        inputs: list[Ragged | None] = []
        for position, nodes in enumerate(self._reads[k]):
            flat, bounds = flats[position], self._bounds[position]
            part = None if flat is None else flat[bounds[k] : bounds[k + 1]]
            inputs.append(None if part is None else packed(part, nodes))
        return inputs

    def _gradients(self, wanted: Sequence[bool]) -> list[Array | None]:
        return [
            np.full(bounds[-1], np.nan, self.dtype) if wants else None
            for bounds, wants in zip(self._bounds, wanted, strict=True)
        ]


def totals(gradients: StepGradients) -> Totals:
    """The gradient that a step left for each parameter."""
    sums: Totals = {}
    for parameter, array in gradients.dense:
        add_to(sums, parameter, download(array))
    for parameter, sparse in gradients.sparse:
        add_to(sums, parameter, dense_on_host(sparse))
    for parameter, x, dy in gradients.products:
        left, right = rounded(transfer.to_host(dy)), rounded(transfer.to_host(x))
        product = np.matmul(left.T, right, dtype=np.float64).astype(left.dtype)
        add_to(sums, parameter, product)
    return sums


def add_to(sums: Totals, parameter: Parameter, gradient: Array) -> None:
    known = sums.get(parameter.uid)
    sums[parameter.uid] = (parameter, gradient if known is None else known[1] + gradient)


def _gradients_of(dxs: Flats, sink: StepGradients) -> FlatGradients:
    return FlatGradients({k: dx for k, dx in enumerate(dxs) if dx is not None}, totals(sink))


def dense_on_host(gradient: Array | RowSparse | None) -> Array:
    assert gradient is not None
    if isinstance(gradient, RowSparse):
        full = np.zeros(gradient.shape, gradient.values.dtype)
        full[gradient.rows] = transfer.to_host(gradient.values)
        return full
    return download(gradient)


@contextmanager
def on_host(parameters: Iterable[Parameter], copies: dict[int, Array]) -> Iterator[None]:
    """Inside, the parameters hold copies of their values on the host, which `copies` remembers."""
    before = [(parameter, parameter.value) for parameter in parameters]
    try:
        for parameter, value in before:
            if parameter.uid not in copies:
                copies[parameter.uid] = transfer.to_host(value)
            parameter.replace(copies[parameter.uid])
        yield
    finally:
        for parameter, value in before:
            parameter.replace(value)


def _size(nodes: Sequence[Node | PortPlace]) -> int:
    return sum([node.rows * node.width for node in nodes])


def _bounds(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(sizes)]


def _joined(outputs: Sequence[Sequence[Ragged]]) -> list[Array]:
    return [np.concatenate([part.flat for part in parts]) for parts in zip(*outputs, strict=True)]
