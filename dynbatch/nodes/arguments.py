"""Checks of the arguments of `F`'s functions: nodes, graphs, lists of ids, parameters."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from dynbatch.arguments import is_integer, refused, shown
from dynbatch.backend import CPU, Array, DType
from dynbatch.errors import ArgumentError, BackendError, DtypeError, DynbatchError, ShapeError
from dynbatch.nodes.node import Node, Owner
from dynbatch.parameter import Parameter

SIZES = "a size is 0 or more"
LEAST_0 = "2 * T - 1 is -1 in a sentence without tokens: write max(2 * T - 1, 0)"
"""The fix where a size that follows from the length is below 0."""


def not_a_node(what: str, value: object) -> DtypeError:
    """The error for an array, a number or anything else where a node belongs."""
    fix = "turn arrays into nodes with F.input(graph, array)"
    if isinstance(value, Parameter):
        fix = "F.linear multiplies by a weight; F.parameter(graph, p) makes a parameter a node"
    elif _is_width(value):
        fix = (
            "x * number and x + number take numbers, F.constant(graph, number) is a node;\n"
            "        h = db.initial_state(graph, width) begins a loop that may run no step"
        )
    elif isinstance(value, bool | int | float | np.number):
        fix = "x * number and x + number take numbers; F.constant(graph, number) is a node"
    elif isinstance(value, list | tuple) and any([isinstance(each, Node) for each in value]):
        fix = "give one node at a time; F.stack and F.concat join several into one"
    elif value is None:
        fix = "check where None comes from: a function may have forgotten to return its node"
    elif not isinstance(value, list | tuple) and isinstance(getattr(value, "nodes", None), list):
        fix = "leave the graph out here; only functions such as F.input(graph, array) take it"
    return DtypeError.at_caller(
        f"{what}: a node expected, got {type(value).__name__}.\n  fix:  {fix}"
    )


def _is_width(value: object) -> bool:
    """Whether a value may be the width of an initial state, or a tuple of widths."""
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_width, value))
    return is_integer(value) and bool(value > 0)


def node_of(what: str, value: object) -> Node:
    """The value, a node; inside a cell or a block a parameter is one.

    Raises:
        DtypeError: it is neither.
    """
    if isinstance(value, Node):
        return value
    node: Node | None = value._as_node() if isinstance(value, Parameter) else None
    if node is None:
        raise not_a_node(what, value)
    return node


def nodes_of(what: str, *values: object) -> list[Node]:
    """`node_of` each value."""
    nodes: list[Node] = []
    for value in values:  # a call for each would be half of what a node costs
        nodes.append(value if isinstance(value, Node) else node_of(what, value))
    return nodes


def require_graph(what: str, graph: object) -> None:
    """Raise `DtypeError` if the first argument of a function is not a graph."""
    if not hasattr(graph, "add_light") or isinstance(graph, type):
        raise DtypeError.at_caller(
            f"{what}: a graph expected, got {type(graph).__name__}.\n"
            "  rule: the graph comes first in functions that take no node\n"
            f"  fix:  with db.Graph() as graph: {what}(graph, …)"
        )


def not_a_graph(what: str, value: object) -> ArgumentError:
    """The error for a first argument that is not a graph."""
    fix = f"with db.Graph() as graph: F.{what}(graph, …)"
    return refused(what, f"graph is {shown(value)}", "the graph comes first", fix)


def dtype_of(what: str, graph: Any) -> DType:
    """The dtype of a graph; an array has one too, and may have come in its place.

    Raises:
        ArgumentError: it is not a graph.
    """
    try:
        _ = graph.add_light
        dtype: DType = graph.dtype
        return dtype
    except AttributeError:
        raise not_a_graph(what, graph) from None


IDS, UNSIGNED = np.dtype(np.int64), np.dtype(np.uint64)


def as_ids(what: str, ids: Any, error: type[DynbatchError] = ShapeError) -> Array:
    """Ids as a one-dimensional int64 array, or an error that names `what`."""
    if type(ids) is np.ndarray and ids.dtype is IDS and ids.ndim == 1:  # nearly always
        return ids.copy()
    try:
        # A copy: the caller may write to `ids` before the graph runs. A tensor is not copied by
        # `np.array` without a warning.
        array = np.array(np.asarray(ids))
    except ValueError:
        array = np.empty((len(ids), 0))
    except TypeError:  # of what has a length, and is no sequence
        array = np.array(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        kind = f"{array.dtype} of {array.ndim} dimension{'' if array.ndim == 1 else 's'}"
        fix = "pass one sentence's ids, e.g. [4, 17, 2]"
        if array.dtype.kind == "b":
            kind, fix = (
                "truth values",
                "give ids: int(value) is 0 or 1; np.array(values).astype(int)",
            )
        elif array.dtype.kind in "US":
            kind, fix = "text", "give each word's id, from a vocabulary of yours"
        elif array.dtype.kind == "O":
            kind = type(ids).__name__
        raise error.at_caller(
            f"{what}: a one-dimensional sequence of integers expected, got {kind}.\n  fix:  {fix}"
        )
    return array if array.dtype == IDS else array.astype(IDS)


def same_ids(what: str, ids: Any) -> Array:
    """`as_ids`, but an array of ids is returned itself: for one that nobody writes to."""
    if type(ids) is np.ndarray and ids.dtype == IDS and ids.ndim == 1:
        return ids
    return as_ids(what, ids)


def are_below(ids: Array, count: int) -> bool:
    """Whether 0 <= id < count for all ids (T,) int64, as one comparison."""
    # Negative ids become huge as unsigned numbers. For a sentence argmax is much quicker than max.
    return not ids.size or 0 <= ids.item(ids.view(UNSIGNED).argmax()) < count


def check_parameter(what: str, source: Parameter, graph: Owner, short: bool = False) -> None:
    """Raise an error unless `source` is a parameter of the graph's dtype, on the graph's device.

    Args:
        short: whether it is read where it lies in 16 bits, too.

    Raises:
        ArgumentError: what stands in the graph's place is not one.
        DtypeError:    it is not a parameter, or has another dtype; or it lies in 16 bits, and is
            not read so, or is to be trained.
        BackendError:  it is on another device.
    """
    if not isinstance(source, Parameter):
        if hasattr(source, "add_light"):
            raise not_a_graph(what, graph)
        raise DtypeError.at_caller(
            f"{what}: a parameter expected, got {type(source).__name__}.\n"
            "  fix:  make it one, once, with db.Parameter(array); F.matmul multiplies two nodes"
        )
    value = source._value
    try:
        dtype, device = graph.dtype, graph.device
    except AttributeError:
        raise not_a_graph(what, graph) from None
    is_usual = value.dtype is dtype and device is CPU and type(value) is np.ndarray
    if is_usual and not source._is_fresh:
        return  # nearly always; no array has that device
    dtype = dtype_of(what, graph)
    if not source.settle_as(dtype):
        ours, theirs = str(source.dtype), str(dtype)
        raise DtypeError.at_caller(
            f"{what}: parameter {source.name!r} is {ours}, the graph {theirs}.\n"
            "  rule: a parameter takes the dtype of the first graph that reads it, and keeps it\n"
            f"  fix:  db.Graph(dtype={ours!r}), or model.astype({theirs!r})"
        )
    if source.is_short and not (short and graph.reads_short):
        is_trained = short and not graph.is_trace
        raise DtypeError.at_caller(
            f"{what}: parameter {source.name!r} lies in 16 bits"
            + (", and the graph is one of training.\n" if is_trained else ".\n")
            + "  rule: parameters in bfloat16 are read by F.linear, F.lookup and F.positions, not\n"
            "        in a cell, in graphs without gradients\n  fix:  "
            + ("db.Graph(grad=False); to train, " if is_trained else "")
            + 'load the model without dtype="bfloat16", or model.astype("float32")'
        )
    if device is not None and source.device != device:
        ours, theirs = source.device.name, device.name
        raise BackendError.at_caller(
            f"{what}: parameter {source.name!r} is on the {ours}, the graph on {theirs}.\n"
            f"  fix:  model.to({theirs!r}), or db.Graph(device={ours!r})"
        )


def refuse_dimensions(what: str, x: Node) -> NoReturn:
    """Raise the error of a value that has more than two dimensions, where a cell reads it."""
    x.refuse(
        f"{what} of shape {x.shape}",
        "a cell reads scalars, vectors and matrices (T, D)",
        f"F.reshape(x, (-1, {x.width})) makes one row of all dimensions but the last",
    )
