"""Writes a graph to a file and rebuilds it: nodes, attributes and arrays, but no code.

The file is NumPy's `.npz`: one entry, "graph", is a JSON text, the others are the arrays it names
by their numbers. Nothing is pickled. A node type is written as where it is imported from, the cell
of a scan or of a table of calls as the operators that it was traced to.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dynbatch.atomic import replacing
from dynbatch.backend import Array
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.arguments import NodeArgument, TupleArgument
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.compiled_step import StepTrace
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.cells.calls.table import CallTable
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.trace import Trace
from dynbatch.errors import GraphError
from dynbatch.kernels.arrays import download
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.row import Row
from dynbatch.parameter import Parameter

VERSION = 5
T = TypeVar("T")

Document = dict[str, Any]
"""A JSON object."""

PARTS: dict[type, tuple[str, Callable[[Any], Iterable[Any]]]] = {
    list: ("list", iter),
    tuple: ("tuple", iter),
    slice: ("slice", attrgetter("start", "stop", "step")),
    range: ("range", attrgetter("start", "stop", "step")),
    ResultPart: ("output", attrgetter("call", "first")),
    Row: ("row", attrgetter("source", "token")),
    StackCalls: ("stack", lambda node: (node.leaf, *node.results)),
    TuplePart: ("part", attrgetter("call", "form", "first")),
    TupleArgument: ("mixed", attrgetter("members")),
    SumArgument: ("total", attrgetter("members")),
    NodeArgument: ("argument", lambda argument: (argument.origin,)),
}
"""The name of a type in documents, and the parts that `rebuild.MAKERS` makes a value of."""

OF_CELL = "tokens", "states", "memories", "output", "next_states"
OF_STEP = "arguments", "memories", "outputs", "form"


class Writer:
    """Turns nodes into a document for JSON.

    Args:
        tables:  the graph's tables of calls.
        numbers: places of the graph's nodes among those that are written.

    Attributes:
        arrays:     the arrays of all attributes and parameters, by name.
        parameters: a document for each parameter.
        cells:      a document for each cell of a scan.
    """

    def __init__(self, tables: Sequence[CallTable], numbers: Mapping[Node, int]) -> None:
        self._tables = tables
        self._places = numbers
        self.arrays: dict[str, Array] = {}
        self.parameters: list[Document] = []
        self.cells: list[Document] = []
        self._numbers: dict[int, tuple[int, object]] = {}  # by the identity of what is held here

    def nodes(self, nodes: Sequence[Node]) -> list[Document]:
        """Documents of nodes whose inputs are among them."""
        return [self._node(node) for node in nodes]

    def tables(self) -> list[Document]:
        """A document for each table: its cell as traced, and the nodes hoisted out of it."""
        return [
            {
                "name": table.cell.__name__,
                "trace": self._trace(table.trace, OF_STEP),
                "leaves": table.forms,
                "matrices": table.matrices,
                "constants": self._shared(table.hoisted.constants),
                "of_memories": [
                    [[self._number(node) for node in memory], self._shared(nodes)]
                    for memory, nodes in table.hoisted.of_memories.items()
                ],
            }
            for table in self._tables
        ]

    def _number(self, node: Node) -> int:
        """The place of a node among those of the graph, or of its trace."""
        return self._places[node] if node in self._places else node.index

    def _shared(self, nodes: Mapping[int, Node]) -> list[list[int]]:
        return [[traced, self._number(node)] for traced, node in nodes.items()]

    def _trace(self, trace: Trace | StepTrace, names: Sequence[str]) -> Document:
        values = {name: self._value(None, name, getattr(trace, name)) for name in names}
        return {"nodes": self.nodes(trace.nodes), "values": values}

    def _node(self, node: Node) -> Document:
        if isinstance(node, Call):
            table = node.origin
            each = [table.arguments(k, [node.row])[0] for k in range(len(table.columns))]
            arguments = [self._value(node, "arguments", argument) for argument in each]
            return {"call": [self._tables.index(table), arguments]}
        if type(node) in PARTS:
            return self._made_of_parts(node, "parts", node)
        assert isinstance(node, Operation)
        attributes = node.attributes()
        if isinstance(attributes.get("cell"), CompiledCell):
            attributes.pop("uid", None)  # it holds in this process; the rebuilt cell has another
        values = {name: self._value(node, name, value) for name, value in attributes.items()}
        inputs = [self._number(x) for x in node.inputs]
        return {"type": _path_of(type(node)), "inputs": inputs, "own": values}

    def _value(self, node: Node | None, name: str, value: Any) -> Any:
        """An attribute; types that JSON lacks become a dict with one key, the type."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return self._value(node, name, value.item())
        if isinstance(value, Node):
            return {"node": self._number(value)}
        if isinstance(value, Parameter):
            return {"parameter": self._once(value, self.parameters, self._parameter)}
        if isinstance(value, CompiledCell):
            return {"cell": self._once(value, self.cells, lambda x: self._trace(x.trace, OF_CELL))}
        if value is NO_MASK:
            return {"everything": []}
        fields = fields_of(value)
        if fields is not None:
            parts = [self._value(node, name, getattr(value, field)) for field in fields]
            return {"named": [_path_of(type(value)), parts]}
        if any([base in PARTS for base in type(value).__mro__]):
            return self._made_of_parts(node, name, value)
        array = download(value) if hasattr(value, "dtype") else None
        if array is None or array.dtype.hasobject:
            assert node is not None
            raise GraphError(
                f"{node.label()}: its attribute {name!r} is a {type(value).__name__}, which "
                "cannot be dumped.\n"
                "  rule: attributes are numbers, text, arrays, parameters, and tuples of these\n"
                "  fix:  leave this node out of the graph, or store the attribute as one of these"
            )
        return {"array": self._array(array)}

    def _made_of_parts(self, node: Node | None, name: str, value: Any) -> Document:
        kind, parts_of = next(PARTS[base] for base in type(value).__mro__ if base in PARTS)
        return {kind: [self._value(node, name, part) for part in parts_of(value)]}

    def _once(self, value: T, documents: list[Document], write: Callable[[T], Document]) -> int:
        if id(value) not in self._numbers:
            document = write(value)
            self._numbers[id(value)] = (len(documents), value)
            documents.append(document)
        return self._numbers[id(value)][0]

    def _array(self, array: Array) -> str:
        name = str(len(self.arrays))
        self.arrays[name] = array
        return name

    def _parameter(self, parameter: Parameter) -> Document:
        array = self._array(parameter.numpy())
        rows = parameter.frozen_rows
        return {
            "name": parameter.name,
            "value": array,
            "frozen": parameter.frozen,
            "frozen_rows": None if rows is None else rows.tolist(),
        }


def runs_of(
    plans: Sequence[Plan], steps: Sequence[StepRun], backwards: Sequence[tuple[int, int]]
) -> list[list[int] | int]:
    """The runs in order: indices of a forward's nodes, or of a backward's loss.

    Args:
        backwards: for each backward the number of batch steps before it, and its loss.
    """
    runs: list[tuple[int, int, list[int] | int]] = [(before, 1, loss) for before, loss in backwards]
    start = 0
    for number, plan in enumerate(plans):
        members = [step for step in steps[start:] if step.planned[0] == number]
        # Else it is that backward's forward, or the forward of one of its parts.
        if not plan.part and start not in [before for before, _ in backwards]:
            indices = {index for step in members for node in step.nodes for index in _indices(node)}
            runs.append((start, 0, sorted(indices)))
        start += len(members)
    return [run for _, _, run in sorted(runs, key=lambda each: each[:2])]


def _indices(node: Node) -> list[int]:
    if isinstance(node, RegionNode):
        return [call.index for call, _ in node.calls()]
    return [node.index]


def write(path: Path, document: Document, writer: Writer) -> None:
    """Write a file of a document and the arrays it names; it is replaced whole or not at all."""
    whole = document | {
        "version": VERSION, "parameters": writer.parameters, "cells": writer.cells
    }  # fmt: skip
    text = np.frombuffer(json.dumps(whole).encode(), np.uint8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, graph=text, **writer.arrays)


def read(path: Path) -> tuple[Document, dict[str, Array]]:
    """Read a file from `write`.

    Raises:
        GraphError: the file was not written by `write`, or by another version.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        document: Document = json.loads(arrays.pop("graph").tobytes())
    except (ValueError, KeyError, EOFError, TypeError) as error:
        raise GraphError(
            f"{path} does not hold a graph ({error}).\n  fix:  give a file from graph.dump(path)"
        ) from error
    if document.get("version") != VERSION:
        raise GraphError(
            f"{path} was written as version {document.get('version')}; this is {VERSION}.\n"
            "  fix:  read it with the dynbatch that wrote it"
        )
    return document, arrays


def fields_of(value: Any) -> Sequence[str] | None:
    """The fields of one of our named tuples or dataclasses, or of such a class; else None."""
    named = value if isinstance(value, type) else type(value)
    if not named.__module__.startswith("dynbatch."):
        return None
    if dataclasses.is_dataclass(named):
        return [field.name for field in dataclasses.fields(named)]
    fields: Sequence[str] | None = getattr(named, "_fields", None)
    return fields


def _path_of(named: type) -> str:
    return f"{named.__module__}:{named.__qualname__}"
