"""A graph as a file, from which it can be built again: nodes, attributes, arrays; no code.

The file is NumPy's `.npz`: one entry, "graph", is a JSON text, the others are the arrays it names
by their numbers. Nothing is pickled. A node type is written as where it is imported from, the cell
of a scan as the operators that it was traced to.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dynbatch.atomic import replacing
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.steps.step import StepRun
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.table import CallTable
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.trace import Trace, TraceGraph
from dynbatch.debugging.dump_calls import CallReader, CallWriter
from dynbatch.errors import GraphError
from dynbatch.kernels.arrays import download
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.operation import Operation
from dynbatch.parameter import Array, Parameter

VERSION = 3


class Writer:
    """Turns nodes into a document for JSON.

    Args:
        tables: of the graph.

    Attributes:
        arrays:     of all attributes and parameters, by name.
        parameters: each once, as documents.
        cells:      each once, as documents.
    """

    def __init__(self, tables: Sequence[CallTable] = ()) -> None:
        self.calls = CallWriter(tables, self.nodes)
        self.arrays: dict[str, Array] = {}
        self.parameters: list[dict[str, Any]] = []
        self.cells: list[dict[str, Any]] = []
        self._known: dict[Any, Any] = {}  # by identity, with what has it, so that it stays its own

    def nodes(self, nodes: Sequence[Node]) -> list[dict[str, Any]]:
        """Documents of nodes whose inputs are among them."""
        places = {node.index: place for place, node in enumerate(nodes)}
        return [
            self.calls.node(node) or self._node(node, [places[x.index] for x in node.inputs])
            for node in nodes
        ]

    def _node(self, node: Node, inputs: list[int]) -> dict[str, Any]:
        assert isinstance(node, Operation)  # what is not is the calls'
        kind, own = type(node), node.attributes()
        if isinstance(own.get("cell"), CompiledCell):
            own.pop("uid", None)  # of this process; the rebuilt cell has its own
        made = {name: self._value(node, name, value) for name, value in own.items()}
        return {"type": f"{kind.__module__}:{kind.__qualname__}", "inputs": inputs, "own": made}

    def _value(self, node: Node, name: str, value: Any) -> Any:
        """An attribute; what JSON does not have is a dict of one key, its kind."""
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
        if isinstance(value, list | tuple):
            parts = [self._value(node, name, part) for part in value]
            if hasattr(value, "_fields") and type(value).__module__.startswith("dynbatch."):
                kind = type(value)
                return {"named": [f"{kind.__module__}:{kind.__qualname__}", parts]}
            return {"list" if isinstance(value, list) else "tuple": parts}
        array = download(value) if hasattr(value, "dtype") else None
        if array is None or array.dtype.hasobject:
            raise GraphError(
                f"{node.label()}: its attribute {name!r} is a {type(value).__name__}, which "
                "cannot be dumped.\n"
                "  rule: attributes are numbers, text, arrays, parameters, and tuples of these\n"
                "  fix:  leave this node out of the graph, or keep in it what fits"
            )
        return {"array": self._array(array)}

    def _once(self, value: Any, documents: list[dict[str, Any]], write: Any) -> int:
        known = self._known.get(id(value))
        if known is None:
            document = write(value)
            known = self._known[id(value)] = (len(documents), value)
            documents.append(document)
        place: int = known[0]
        return place

    def _array(self, array: Array) -> str:
        name = str(len(self.arrays))
        self.arrays[name] = array
        return name

    def _parameter(self, parameter: Parameter) -> dict[str, Any]:
        array = self._array(download(parameter.value))
        return {"name": parameter.name, "value": array, "frozen": parameter.frozen}

    def _cell(self, cell: CompiledCell) -> dict[str, Any]:
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
    """What has run, in order: indices of the nodes of a forward, or of the loss of a backward.

    Args:
        backwards: of each backward the batch steps that there were before it, and its loss.
    """
    found: list[tuple[int, int, list[int] | int]] = [
        (before, 1, loss) for before, loss in backwards
    ]
    start = 0
    for plan in plans:
        end = start + len(plan.steps)
        # Else it is that backward's forward, or the forward of one of its parts.
        if not plan.part and start not in [before for before, _ in backwards]:
            nodes = [node for step in steps[start:end] for node in step.nodes]
            found.append((start, 0, sorted(itertools.chain(*map(_indices, nodes)))))
        start = end
    return [run for _, _, run in sorted(found, key=lambda each: each[:2])]


def _indices(node: Node) -> list[int]:
    """Of a node, or of the calls that it ran."""
    return (
        [call.index for call, _ in node.calls()] if isinstance(node, RegionNode) else [node.index]
    )


def write(path: Path, document: dict[str, Any], writer: Writer) -> None:
    """Write a file of a document and the arrays it names; it is replaced whole or not at all."""
    whole = document | {
        "version": VERSION, "parameters": writer.parameters, "cells": writer.cells
    }  # fmt: skip
    text = np.frombuffer(json.dumps(whole).encode(), np.uint8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, graph=text, **writer.arrays)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """What `write` wrote.

    Raises:
        GraphError: the file is no such file, or of a later version.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        document: dict[str, Any] = json.loads(arrays.pop("graph").tobytes())
    except (ValueError, KeyError, EOFError, TypeError) as error:
        raise GraphError(
            f"{path} does not hold a graph ({error}).\n  fix:  give what graph.dump(path) wrote"
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
        document, arrays: as `read` gives them.
        device:           where parameters go.
    """

    def __init__(self, document: dict[str, Any], arrays: dict[str, Array], device: Any) -> None:
        self.arrays = arrays
        self.parameters: list[Parameter] = []
        for each in document["parameters"]:
            parameter = Parameter(arrays[each["value"]].copy(), each["name"])
            parameter.frozen = each["frozen"]
            parameter.to(device)
            self.parameters.append(parameter)
        self.dtype = document["dtype"]
        self.cells: list[CompiledCell] = []
        for each in document["cells"]:
            self.cells.append(self._cell(each))

    def graph(self, document: dict[str, Any], graph: Owner) -> list[Node]:
        """The nodes in an empty graph, in order, and its tables of calls."""
        made: list[Node] = []
        calls = CallReader(graph, made)
        for table in document["tables"]:
            trace = TraceGraph(self.dtype)
            self._nodes(table["nodes"], trace, [])
            calls.add_table(table, trace.nodes)
        self._nodes(document["nodes"], graph, made, calls)
        calls.add_constants(document["tables"])
        return made

    def _nodes(
        self,
        documents: Sequence[dict[str, Any]],
        graph: Owner,
        made: list[Node],
        calls: CallReader | None = None,
    ) -> list[Node]:
        """Append nodes to `made`, which are the inputs of later ones."""
        for document in documents:
            light = None if calls is None else calls.node(document)
            if light is not None:
                made.append(light)
                continue
            kind = _imported(document["type"], Operation)
            own = {name: self._value(value) for name, value in document["own"].items()}
            if isinstance(own.get("cell"), CompiledCell):
                own["uid"] = own["cell"].uid
            node = kind.__new__(kind)
            Operation.__init__(node, *[made[k] for k in document["inputs"]], graph=graph, **own)
            made.append(node)
        return made

    def _value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "array":
            return self.arrays[content]
        if kind == "parameter":
            return self.parameters[content]
        if kind == "cell":
            return self.cells[content]
        if kind == "everything":
            return NO_MASK
        if kind in ("slice", "range"):
            return slice(*content) if kind == "slice" else range(*content)
        if kind == "named":
            return _imported(content[0], tuple)(*[self._value(part) for part in content[1]])
        parts = [self._value(part) for part in content]
        return parts if kind == "list" else tuple(parts)

    def _cell(self, document: dict[str, Any]) -> CompiledCell:
        graph = TraceGraph(self.dtype)
        made = self._nodes(document["nodes"], graph, [])

        def at(name: str) -> list[Node]:
            return [made[k] for k in document[name]]

        states, following, output = at("states"), at("next_states"), made[document["output"]]
        return CompiledCell(
            Trace(graph.nodes, at("tokens"), states, at("memories"), output, following, {})
        )


def _imported(path: str, base: type) -> Any:
    """The class at "module:name", a subclass of `base`.

    Raises:
        GraphError: it cannot be imported, or is something else.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise GraphError(
            f"the graph has nodes of type {name} of module {module!r}, which cannot be imported "
            f"({error}).\n  rule: a node type is found by its module and name\n"
            "  fix:  run this where the module can be imported; define the type at the top of a\n"
            "        module, not in a function or in __main__"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise GraphError(f"{path} is no {base.__name__} type.")
    return found
