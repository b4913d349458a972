"""Writes a graph to a file and rebuilds it: nodes, attributes and arrays, but no code.

The file is NumPy's `.npz`: one entry, "graph", is a JSON text, the others are the arrays it names
by their numbers. Nothing is pickled. A node type is written as where it is imported from, the cell
of a scan as the operators that it was traced to.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dynbatch.atomic import replacing
from dynbatch.backend import Array, Device
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.table import CallGraph, CallTable
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.trace import Trace, TraceGraph
from dynbatch.debugging.dump_calls import CallReader, CallWriter, Document
from dynbatch.errors import GraphError
from dynbatch.kernels.arrays import download
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.operation import Operation
from dynbatch.parameter import Parameter

VERSION = 4
T = TypeVar("T")


class Writer:
    """Turns nodes into a document for JSON.

    Args:
        tables: the graph's tables of calls.

    Attributes:
        arrays:     the arrays of all attributes and parameters, by name.
        parameters: a document for each parameter.
        cells:      a document for each cell of a scan.
    """

    def __init__(self, tables: Sequence[CallTable] = ()) -> None:
        self.calls = CallWriter(tables, self.nodes)
        self.arrays: dict[str, Array] = {}
        self.parameters: list[Document] = []
        self.cells: list[Document] = []
        self._numbers: dict[int, tuple[int, object]] = {}  # by the identity of what is held here

    def nodes(self, nodes: Sequence[Node]) -> list[Document]:
        """Documents of nodes whose inputs are among them."""
        places = {node.index: number for number, node in enumerate(nodes)}
        return [
            self.calls.node(node) or self._node(node, [places[x.index] for x in node.inputs])
            for node in nodes
        ]

    def _node(self, node: Node, inputs: list[int]) -> Document:
        assert isinstance(node, Operation)  # what is not belongs to calls
        attributes = node.attributes()
        if isinstance(attributes.get("cell"), CompiledCell):
            attributes.pop("uid", None)  # it holds in this process; the rebuilt cell has another
        values = {name: self._value(node, name, value) for name, value in attributes.items()}
        return {"type": _path_of(type(node)), "inputs": inputs, "own": values}

    def _value(self, node: Node, name: str, value: Any) -> Any:
        """An attribute; types that JSON lacks become a dict with one key, the type."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return self._value(node, name, value.item())
        if isinstance(value, Parameter):
            return {"parameter": self._once(value, self.parameters, self._parameter)}
        if isinstance(value, CompiledCell):
            return {"cell": self._once(value, self.cells, self._cell)}
        if value is NO_MASK:  # kernels tell it from equal ones
            return {"everything": None}
        if isinstance(value, slice | range):
            return {type(value).__name__: [value.start, value.stop, value.step]}
        fields = _fields_of(value)
        if fields is not None or isinstance(value, list | tuple):
            values = value if fields is None else [getattr(value, field) for field in fields]
            parts = [self._value(node, name, part) for part in values]
            if fields is not None:
                return {"named": [_path_of(type(value)), parts]}
            return {"list" if isinstance(value, list) else "tuple": parts}
        array = download(value) if hasattr(value, "dtype") else None
        if array is None or array.dtype.hasobject:
            raise GraphError(
                f"{node.label()}: its attribute {name!r} is a {type(value).__name__}, which "
                "cannot be dumped.\n"
                "  rule: attributes are numbers, text, arrays, parameters, and tuples of these\n"
                "  fix:  leave this node out of the graph, or store the attribute as one of these"
            )
        return {"array": self._array(array)}

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

    def _cell(self, cell: CompiledCell) -> Document:
        trace = cell.trace
        return {
            "nodes": self.nodes(trace.nodes),
            "tokens": [node.index for node in trace.tokens],
            "states": [node.index for node in trace.states],
            "memories": [node.index for node in trace.memories],
            "output": trace.output.index,
            "next_states": [node.index for node in trace.next_states],
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


class Reader:
    """Builds nodes from a document.

    Args:
        document, arrays: what `read` returned.
        device:           the parameters' device.
    """

    def __init__(self, document: Document, arrays: dict[str, Array], device: Device) -> None:
        self.arrays = arrays
        self.parameters: list[Parameter] = []
        for each in document["parameters"]:
            parameter = Parameter(arrays[each["value"]].copy(), each["name"])
            parameter.frozen = each["frozen"]
            parameter.frozen_rows = each.get("frozen_rows")  # older files have none
            parameter.to(device)
            self.parameters.append(parameter)
        self.dtype = document["dtype"]
        self.cells: list[CompiledCell] = []
        for each in document["cells"]:
            self.cells.append(self._cell(each))

    def graph(self, document: Document, graph: CallGraph) -> list[Node]:
        """The nodes in an empty graph, in order, and its tables of calls."""
        nodes: list[Node] = []
        calls = CallReader(graph, nodes)
        for table in document["tables"]:
            trace = TraceGraph(self.dtype)
            self._nodes(table["nodes"], trace, [])
            calls.add_table(table, trace.nodes)
        self._nodes(document["nodes"], graph, nodes, calls)
        calls.add_constants(document["tables"])
        return nodes

    def _nodes(
        self,
        documents: Sequence[Document],
        graph: Owner,
        nodes: list[Node],
        calls: CallReader | None = None,
    ) -> list[Node]:
        """Append the nodes of documents to `nodes`, where later ones find their inputs."""
        for document in documents:
            of_calls = None if calls is None else calls.node(document)
            if of_calls is not None:
                nodes.append(of_calls)
                continue
            node_type = _imported(document["type"], Operation)
            attributes = {name: self._value(value) for name, value in document["own"].items()}
            if isinstance(attributes.get("cell"), CompiledCell):
                attributes["uid"] = attributes["cell"].uid
            inputs = [nodes[k] for k in document["inputs"]]
            node = node_type.__new__(node_type)
            Operation.__init__(node, *inputs, graph=graph, **attributes)
            nodes.append(node)
        return nodes

    def _value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((key, content),) = value.items()
        if key == "array":
            return self.arrays[content]
        if key == "parameter":
            return self.parameters[content]
        if key == "cell":
            return self.cells[content]
        if key == "everything":
            return NO_MASK
        if key in ("slice", "range"):
            return slice(*content) if key == "slice" else range(*content)
        if key == "named":
            named = _imported(content[0], object)
            if _fields_of(named) is None:
                raise GraphError(f"{content[0]} is not a class of named fields.")
            return named(*[self._value(part) for part in content[1]])
        parts = [self._value(part) for part in content]
        return parts if key == "list" else tuple(parts)

    def _cell(self, document: Document) -> CompiledCell:
        graph = TraceGraph(self.dtype)
        nodes = self._nodes(document["nodes"], graph, [])

        def at(name: str) -> list[Node]:
            return [nodes[k] for k in document[name]]

        states, following, output = at("states"), at("next_states"), nodes[document["output"]]
        return CompiledCell(
            Trace(graph.nodes, at("tokens"), states, at("memories"), output, following, {})
        )


def _fields_of(value: Any) -> Sequence[str] | None:
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


def _imported(path: str, base: type) -> Any:
    """The class at "module:name", a subclass of `base`.

    Raises:
        GraphError: it cannot be imported, or is not such a class.
    """
    module, _, name = path.partition(":")
    try:
        named: Any = import_module(module)
        for part in name.split("."):
            named = getattr(named, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise GraphError(
            f"the graph has nodes of type {name} of module {module!r}, which cannot be imported "
            f"({error}).\n  rule: a node type is found by its module and name\n"
            "  fix:  run this where the module can be imported; define the type at the top of a\n"
            "        module, not in a function or in __main__"
        ) from error
    if not (isinstance(named, type) and issubclass(named, base)):
        raise GraphError(f"{path} is not a subclass of {base.__name__}.")
    return named
