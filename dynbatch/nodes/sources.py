"""Nodes without inputs: arrays of the user, parameters, rows of a table."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from dynbatch.errors import BackendError, DtypeError, ShapeError, VocabularyError
from dynbatch.kernels import arrays
from dynbatch.kernels.segment import gather_rows
from dynbatch.nodes.base import Node, Owner, Shape, as_ids, caller
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array, Parameter
from dynbatch.ragged import Ragged


class Input(Node):
    """A copy of an array that the user gives: a matrix (T, D), a vector (D,) or a scalar ().

    Batches with:  every other Input of its width.
    """

    __slots__ = ("array",)
    any_shape = True
    array: Array

    def infer_shape(self, *shapes: Shape) -> Shape:
        shape: Shape = self.array.shape
        return shape

    def content(self) -> bytes:
        """What tells one source from another (see `Graph.stream`)."""
        return self.array.tobytes()

    @classmethod
    def forward(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        arrays.upload(y.flat, [node.array for node in batch.nodes])  # type: ignore[attr-defined]

    @classmethod
    def backward(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        """An input ends the chain; its gradient stays readable when it was kept."""


class ParameterNode(Node):
    """A parameter as a value: a vector (D,), or a matrix (rows, D).

    Batches with:  every other use of the same parameter.
    """

    __slots__ = ("parameter",)
    static = ("parameter",)
    parameter: Parameter

    def infer_shape(self, *shapes: Shape) -> Shape:
        return self.parameter.shape

    def content(self) -> bytes:
        return str(self.parameter.uid).encode()

    @classmethod
    def forward(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        value = batch.first.parameter.value
        arrays.copy(value, y.values.reshape(len(batch.nodes), *value.shape))

    @classmethod
    def backward(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        parameter = batch.first.parameter
        if not parameter.frozen:
            out = batch.parameter_gradients().buffer(parameter)
            arrays.sum_rows(dy.values.reshape(len(batch.nodes), -1), out.reshape(-1))


class Lookup(Node):
    """Rows of a table for one sentence, y_t = table[ids_t].

    Shape:  ids (T,) -> y (T, D); length 0 gives (0, D).
    Batches with:  every lookup in the same table. Its gradient is row-sparse (`RowSparse`).
    """

    __slots__ = ("ids", "table")
    static = ("table",)
    table: Parameter
    ids: Array

    def infer_shape(self, *shapes: Shape) -> Shape:
        return (self.ids.shape[0], self.table.shape[1])

    def content(self) -> bytes:
        return self.ids.tobytes()

    @classmethod
    def forward(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        gather_rows(batch.first.table.value, batch.concat("ids"), y.values)

    @classmethod
    def backward(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        table = batch.first.table
        if not table.frozen:
            batch.parameter_gradients().rows(table, batch.concat("ids"), dy.values)


def input(graph: Owner, array: Any) -> Node:
    """A value given by the user, copied and converted to the graph's dtype.

    Args:
        array: numbers of shape (), (D,) or (T, D).

    Raises:
        DtypeError: not numeric, or of more than two dimensions.
        ShapeError: a list of rows of different lengths.
    """
    try:
        value = np.asarray(array)
    except ValueError:
        raise ShapeError(
            f"input: the rows of the array have different lengths.\n"
            "  rule: one sentence is a matrix (T, D), a vector (D,) or a number\n"
            "  fix:  give every sentence an input node of its own\n"
            f"  made at {caller()}"
        ) from None
    if value.dtype.kind not in "fiub" or value.ndim > 2:
        raise DtypeError(
            f"input: numbers of at most two dimensions expected, got {value.dtype} {value.shape}.\n"
            f"  fix:  one sentence's matrix (T, D), vector (D,) or number\n  made at {caller()}"
        )
    return Input(graph=graph, array=np.array(value, graph.dtype, order="C"))


def constant(graph: Owner, number: float, shape: Shape = ()) -> Node:
    """A value that is `number` everywhere."""
    return Input(graph=graph, array=np.full(shape, number, graph.dtype))


def parameter(graph: Owner, source: Parameter) -> Node:
    """A parameter as a node, where it is a value rather than a weight (an initial state, say)."""
    check_parameter("parameter", source, graph)
    return ParameterNode(graph=graph, parameter=source)


def lookup(graph: Owner, table: Parameter, ids: Any) -> Node:
    """One sentence's rows of a table.

    Args:
        table: parameter (V, D).
        ids:   T integers, 0 <= id < V.

    Raises:
        VocabularyError: an id lies outside the table; names the first one and its position.
        ShapeError: the table is not a matrix, or the ids are not a list of integers.
    """
    array = as_ids("lookup", ids)
    check_parameter("lookup", table, graph)
    if len(table.shape) != 2:
        raise ShapeError(
            f"lookup: the table {table.name!r} has shape {table.shape}.\n"
            "  rule: a table is (V, D)\n  fix:  give the parameter two dimensions\n"
            f"  made at {caller()}"
        )
    size = table.shape[0]
    # Negative ids become huge as unsigned numbers, so one comparison finds both kinds.
    if array.size and int(array.view(np.uint64).max()) >= size:
        position = int(np.flatnonzero((array < 0) | (array >= size))[0])
        raise VocabularyError(
            f"lookup in {table.name!r}: id {array[position]} at position {position} of "
            f"{array.size} is outside the table of {size} rows.\n"
            f"  rule: 0 <= id < {size}\n"
            "  fix:  map unknown words to one id of the vocabulary (often <unk>)\n"
            f"  made at {caller()}"
        )
    return Lookup(graph=graph, table=table, ids=array)


def check_parameter(what: str, source: Parameter, graph: Owner) -> None:
    """Raise an error unless `source` is a parameter of the graph's dtype, on the graph's device.

    Raises:
        DtypeError:   it is no parameter, or of another dtype.
        BackendError: it is on another device.
    """
    if not isinstance(source, Parameter):
        raise DtypeError(
            f"{what}: a parameter expected, got {type(source).__name__}.\n"
            "  fix:  make it one, once, with db.Parameter(array); F.matmul multiplies two nodes\n"
            f"  made at {caller()}"
        )
    if source.dtype != graph.dtype:
        own, theirs = str(source.dtype), str(graph.dtype)
        raise DtypeError(
            f"{what}: parameter {source.name!r} is {source.dtype}, the graph {graph.dtype}.\n"
            f"  fix:  db.Graph(dtype={own!r}), or model.astype({theirs!r})\n"
            f"  made at {caller()}"
        )
    device = getattr(graph, "device", None)  # a trace of a cell has none
    if device is not None and isinstance(source.value, np.ndarray) is device.is_cuda:
        own, theirs = source.device.name, device.name
        raise BackendError(
            f"{what}: parameter {source.name!r} is on the {own}, the graph on {theirs}.\n"
            f"  fix:  model.to({theirs!r}), or db.Graph(device={own!r})\n"
            f"  made at {caller()}"
        )


def stream_of(content: bytes) -> int:
    """A 32-bit number that stands for a source's content."""
    return zlib.crc32(content)
