"""Nodes without inputs: given arrays, parameters, rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.errors import BackendError, DtypeError, ShapeError, VocabularyError
from dynbatch.kernels import arrays
from dynbatch.kernels.rows import gather_rows
from dynbatch.kernels.runtime import dlpack as exchange
from dynbatch.nodes.arguments import (
    LEAST_0,
    SIZES,
    are_below,
    as_ids,
    check_parameter,
    dtype_of,
    same_ids,
)
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node, Owner, Shape
from dynbatch.nodes.operation import INDEX_BYTES, Operation
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class Input(Operation):
    """A copy of an array that the user gives, of any number of dimensions.

    A host array is copied at once, a GPU array when the graph runs (see `input`).

    Batches with:  every other Input.
    """

    __slots__ = ("array",)
    shape_rule = "array (…) -> (…)"
    only_moves = True
    any_shape = True
    given_attributes = ("array",)
    array: Array

    def given(self, array: Array) -> tuple[Array]:
        _require_numbers(array)
        return (np.array(array, self.array.dtype, order="C"),)

    def infer_ragged(self) -> int:
        return ROWS | (WIDTH if self.ndim > 1 and not self.width else 0)  # scores of no keys

    def content(self) -> bytes:
        """The bytes that tell one source from another (see `Graph.stream`).

        An array on a GPU is not copied for this: arrays of one shape are told apart by order.
        """
        array = self.array
        return array.tobytes() if isinstance(array, np.ndarray) else str(array.shape).encode()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        arrays.upload(y.flat, batch.column("array"))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        """An input ends the chain; its gradient stays readable when it was kept."""


class ParameterNode(Operation):
    """A parameter as a value, of any number of dimensions.

    Batches with:  every other use of the same parameter.
    """

    __slots__ = ("parameter",)
    shape_rule = "parameter (…) -> (…)"
    only_moves = True
    static = ("parameter",)
    is_shared = True
    parameter: Parameter

    def infer_ragged(self) -> int:
        return 0

    def content(self) -> bytes:
        return str(self.parameter.uid).encode()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        value = batch.first.parameter.value
        arrays.copy(value, y.values.reshape(len(batch.nodes), *value.shape))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        parameter = batch.first.parameter
        if not parameter.frozen:
            out = batch.parameter_gradients().buffer(parameter)
            arrays.sum_rows(dy.values.reshape(len(batch.nodes), -1), out.reshape(-1))


class TableRows(Operation):
    """Base of types whose rows are rows of a table; `gradient_rows` says which."""

    __slots__ = ("table",)
    only_moves = True
    static = ("table",)
    table: Parameter

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return INDEX_BYTES * (len(batch.nodes) + 1 + batch.rows)

    @classmethod
    def gradient_rows(cls, batch: Batch) -> Array:
        raise NotImplementedError(f"{cls.__name__}.gradient_rows")

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        gather_rows(batch.first.table.value, cls.gradient_rows(batch), y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        table = batch.first.table
        if not table.frozen:
            batch.parameter_gradients().rows(table, cls.gradient_rows(batch), dy.values)


class Lookup(TableRows):
    """Rows of a table for one sentence, y_t = table[ids_t].

    Batches with:  every lookup in the same table. Its gradient is row-sparse (`RowSparse`).
    """

    __slots__ = ("ids",)
    shape_rule = "ids (T,), table (V, D) -> (T, D)"
    given_attributes = ("ids",)
    ids: Array

    def given(self, array: Array) -> tuple[Array]:
        return (_checked(self.table, same_ids("lookup", array)),)

    def content(self) -> bytes:
        return self.ids.tobytes()

    @classmethod
    def gradient_rows(cls, batch: Batch) -> Array:
        return batch.concat("ids")


def input(graph: Owner, array: Any) -> Node:
    """A value given by the user: numbers, or an array of any library that supports DLPack.

    Numbers take the dtype of the graph that reads them, here as those of a parameter do with its
    first graph: an array of the host is copied and converted. One on a GPU (of CuPy,
    PyTorch, JAX, or whatever has `__dlpack__` or `__cuda_array_interface__`) must have that dtype
    and the graph must be there too. It never comes to the host: the graph keeps its memory, and
    copies all inputs of the mini-batch in one launch when it runs. So write to such an array only
    after the graph has run, on a stream ordered after CuPy's current one.

    Args:
        array: numbers of shape (), (D,) or (T, D), or of more dimensions.

    Raises:
        DtypeError:   not numeric, or on a GPU of another dtype.
        ShapeError:   a list of rows of different lengths.
        BackendError: on a GPU, and the graph is not, or its numbers do not lie at multiples of
            their size there.
    """
    dtype = dtype_of("input", graph)
    if isinstance(array, Node | Parameter):
        raise _not_an_array(array)
    if exchange.is_on_gpu("input", array):
        return Input(graph=graph, array=_gpu_array(graph, array))
    try:
        value = exchange.view("input", array)
    except ValueError:
        raise ShapeError.at_caller(
            "input: the rows of the array have different lengths.\n"
            "  rule: one sentence is a matrix (T, D), a vector (D,) or a number\n"
            "  fix:  give every sentence an input node of its own"
        ) from None
    _require_numbers(value)
    if value.dtype != dtype:
        graph.converted_bytes += value.nbytes
    return Input(graph=graph, array=np.array(value, dtype, order="C"))


def _gpu_array(graph: Owner, array: Any) -> Array:
    """The array as a C-contiguous CuPy array of the graph's dtype."""
    device = graph.device
    if device is None or not device.is_cuda:
        raise BackendError.at_caller(
            "input: the array is on a GPU, the graph on the CPU.\n"
            '  fix:  db.Graph(device="cuda"), or bring the array to the host (tensor.cpu(), '
            "cupy.asnumpy(array))"
        )
    value = exchange.view("input", array)
    _require_numbers(value)
    if device_of(value) != device:
        raise BackendError.at_caller(
            f"input: the array is on {device_of(value).name}, the graph on {device.name}.\n"
            f"  fix:  db.Graph(device={device_of(value).name!r}), or move the array: "
            f"tensor.to({device.name!r})"
        )
    if value.dtype != graph.dtype:
        ours, theirs = str(value.dtype), str(graph.dtype)
        raise DtypeError.at_caller(
            f"input: the array is {ours} on the GPU, the graph {theirs}.\n"
            "  rule: only host arrays are converted\n"
            f"  fix:  tensor.to(torch.{theirs}) or array.astype({theirs!r})"
            + (f", or db.Graph(dtype={ours!r})" if ours in ("float32", "float64") else "")
        )
    contiguous: Array = device.xp.ascontiguousarray(value)
    return contiguous.reshape(value.shape)  # it makes a vector of a number


def _require_numbers(value: Array) -> None:
    if value.dtype.kind not in "fiub":
        raise DtypeError.at_caller(
            f"input: numbers expected, got {value.dtype} {value.shape}.\n"
            "  fix:  one sentence's matrix (T, D), vector (D,) or number"
        )


def _not_an_array(value: Node | Parameter) -> DtypeError:
    what, fix = "a node", "use it as it is; F.detach(node) stops its gradient"
    if isinstance(value, Parameter):
        what, fix = "a parameter", "F.parameter(graph, p) makes a parameter a node"
    return DtypeError.at_caller(f"input: {what} is not an array.\n  fix:  {fix}")


def constant(graph: Owner, number: Any, shape: int | Shape = ()) -> Node:
    """A value that is `number` everywhere; a list or an array becomes a node as with `input`.

    Raises:
        DtypeError: neither a number nor an array of numbers.
        ShapeError: a size below 0, or an array of another shape than `shape`.
    """
    dtype = dtype_of("constant", graph)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if min(shape, default=0) < 0:
        raise ShapeError.at_caller(
            f"constant: shape={shape} has a size below 0.\n  rule: {SIZES}\n  fix:  {LEAST_0}"
        )
    if isinstance(number, int | float | np.number):
        return Input(graph=graph, array=np.full(shape, number, dtype))
    node = input(graph, number)
    if shape not in ((), node.shape):
        raise ShapeError.at_caller(
            f"constant: an array of shape {node.shape}, and shape={shape}.\n"
            "  rule: a number is repeated to sizes of 0 or more; an array has its own shape\n"
            "  fix:  leave shape out"
        )
    return node


def parameter(graph: Owner, source: Parameter) -> Node:
    """A parameter as a node, for use as a value rather than a weight (an initial state, say)."""
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
    check_parameter("lookup", table, graph, short=True)
    shape = table._value.shape
    if len(shape) != 2:
        raise ShapeError.at_caller(
            f"lookup: the table {table.name!r} has shape {shape}.\n"
            "  rule: a table is (V, D)\n  fix:  give the parameter two dimensions"
        )
    ids, width = _checked(table, as_ids("lookup", ids)), shape[1]
    sig = graph.signatures.get((Lookup, table, width))
    if sig is None:
        return Lookup(graph=graph, table=table, ids=ids)
    node = Lookup.__new__(Lookup)
    node.table, node.ids = table, ids
    node.complete_as((), graph, 2, ids.size, width, ROWS, sig)
    return node


def _checked(table: Parameter, array: Array) -> Array:
    size = table._value.shape[0]
    if not are_below(array, size):
        position = int(np.flatnonzero((array < 0) | (array >= size))[0])
        raise VocabularyError.at_caller(
            f"lookup in {table.name!r}: id {array[position]} at position {position} of "
            f"{array.size} is outside the table of {size} rows.\n"
            f"  rule: 0 <= id < {size}\n"
            "  fix:  map unknown words to one id of the vocabulary (often <unk>)"
        )
    return array
