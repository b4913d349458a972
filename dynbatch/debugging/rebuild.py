"""`Reader`: builds a graph's nodes from a document that `dump.Writer` wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import islice
from types import SimpleNamespace
from typing import Any

from dynbatch.backend import Array, Device
from dynbatch.cells.calls.arguments import NodeArgument, TupleArgument
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.calls import maker
from dynbatch.cells.calls.compiled_step import StepTrace
from dynbatch.cells.calls.forms import MatrixForm
from dynbatch.cells.calls.results import Results, SumArgument
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.cells.calls.table import CallGraph, CallTable
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.trace import Trace, TraceGraph
from dynbatch.compiler.traced import Reads, Way
from dynbatch.debugging.dump import Document, fields_of
from dynbatch.errors import GraphError
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.row import row_of
from dynbatch.parameter import Parameter

MAKERS: dict[str, Callable[..., Any]] = {
    "list": lambda *parts: [*parts],
    "tuple": lambda *parts: parts,
    "slice": slice,
    "range": range,
    "output": ResultPart,
    "row": row_of,
    "stack": lambda leaf, *results: StackCalls(Results.of(results).located(), leaf),
    "part": lambda call, form, first: TuplePart(call, form, first, call.graph.form_ids[form]),
    "mixed": lambda *members: TupleArgument(members, 0),
    "total": lambda *members: SumArgument(members, members[0].form),
    "argument": lambda origin: NodeArgument(origin, 0),
    "everything": lambda: NO_MASK,  # kernels tell it from equal ones
}
"""A value of each type in `dump.PARTS`, from its parts."""


class Reader:
    """Builds nodes from a document.

    Args:
        document, arrays: what `read` returned.
        device:           the parameters' device.
    """

    def __init__(self, document: Document, arrays: dict[str, Array], device: Device) -> None:
        self.parameters: list[Parameter] = []
        for each in document["parameters"]:
            parameter = Parameter(arrays[each["value"]].copy(), each["name"])
            parameter.frozen = each["frozen"]
            parameter.frozen_rows = each["frozen_rows"]
            parameter.to(device)
            self.parameters.append(parameter)
        self.dtype = document["dtype"]
        self.cells: list[CompiledCell] = []
        self._held: dict[str, Any] = {
            "array": arrays, "parameter": self.parameters, "cell": self.cells
        }  # fmt: skip
        for each in document["cells"]:
            nodes, values = self._trace(each)
            self.cells.append(CompiledCell(Trace(nodes, **values, reads={})))

    def graph(self, document: Document, graph: CallGraph) -> list[Node]:
        """The nodes in an empty graph, in order, and its tables of calls."""
        tables = [self._table(each, graph) for each in document["tables"]]
        nodes = self._nodes(document["nodes"], graph, tables)
        for table, each in zip(tables, document["tables"], strict=True):
            hoisted = table.hoisted
            hoisted.constants.update([(traced, nodes[k]) for traced, k in each["constants"]])
            for memory, shared in each["of_memories"]:
                key = tuple([nodes[k] for k in memory])
                hoisted.of_memories[key] = {traced: nodes[k] for traced, k in shared}
        return nodes

    def _nodes(
        self, documents: Sequence[Document], graph: Owner, tables: Sequence[CallTable] = ()
    ) -> list[Any]:
        nodes: list[Any] = []
        for document in documents:
            if "call" in document:
                number, arguments = document["call"]
                node = _call(tables[number], [self._value(each, nodes) for each in arguments])
            elif "type" not in document:
                node = self._value(document, nodes)
            else:
                node_type, written = _imported(document["type"], Operation), document["own"]
                attributes = {name: self._value(x, nodes) for name, x in written.items()}
                if isinstance(attributes.get("cell"), CompiledCell):
                    attributes["uid"] = attributes["cell"].uid
                inputs = [nodes[k] for k in document["inputs"]]
                node = node_type.__new__(node_type)
                Operation.__init__(node, *inputs, graph=graph, **attributes)
            nodes.append(node)
        return nodes

    def _trace(self, document: Document) -> tuple[list[Any], dict[str, Any]]:
        nodes = self._nodes(document["nodes"], TraceGraph(self.dtype))
        return nodes, {name: self._value(x, nodes) for name, x in document["values"].items()}

    def _table(self, document: Document, graph: CallGraph) -> CallTable:
        nodes, values = self._trace(document["trace"])
        parameters = [parameter for node in nodes for parameter in node.all_parameters()]
        reads: Reads = {((Way.ITEM, k),): parameter for k, parameter in enumerate(parameters)}
        cell: Any = SimpleNamespace(__name__=document["name"])
        leaves = iter([MatrixForm(0) if is_matrix else 0 for is_matrix in document["matrices"]])
        forms = [tuple(islice(leaves, count)) for count in document["leaves"]]
        trace = StepTrace(nodes, **values, reads=reads)
        table = CallTable(cell, trace, forms, graph, lambda table: None)
        graph.add_table(table)
        return table

    def _value(self, value: Any, nodes: Sequence[Node]) -> Any:
        """A value that `Writer` wrote among these nodes."""
        if not isinstance(value, dict):
            return value
        ((key, content),) = value.items()
        if key == "node":
            return nodes[content]
        if key in self._held:
            return self._held[key][content]
        if key == "named":
            named, content = _imported(content[0], object), content[1]
            if fields_of(named) is None:
                raise GraphError(f"{value[key][0]} is not a class of named fields.")
            return named(*[self._value(part, nodes) for part in content])
        return MAKERS[key](*[self._value(part, nodes) for part in content])


def _call(table: CallTable, arguments: Sequence[Any]) -> Call:
    """A call, made by the function that makes the calls of a cell."""
    tables: dict[Any, CallTable] = defaultdict(lambda: table)
    make = maker(len(arguments), None, frozenset())(tables, {}, [], None, Call)
    call: Call = make(tuple(arguments))
    return call


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
