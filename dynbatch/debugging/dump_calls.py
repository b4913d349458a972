"""Calls of cells in a dumped graph: the traced cells, and each call's arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

from dynbatch.cells.calls.arguments import NodeArgument, TupleArgument
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.calls import maker
from dynbatch.cells.calls.compiled_step import StepTrace
from dynbatch.cells.calls.forms import MatrixForm
from dynbatch.cells.calls.results import Results, SumArgument
from dynbatch.cells.calls.stack import StackCalls, Stacked
from dynbatch.cells.calls.table import CallGraph, CallTable
from dynbatch.compiler.traced import Way
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.row import Row, row_of

Document = dict[str, Any]
"""A JSON object."""


class CallWriter:
    """Documents of a graph's tables and of the nodes that belong to calls.

    Args:
        tables: the graph's tables of calls.
        nodes:  writes traced nodes.
    """

    def __init__(
        self, tables: Sequence[CallTable], nodes: Callable[[Sequence[Node]], list[Document]]
    ) -> None:
        self._numbers = {table: number for number, table in enumerate(tables)}
        self._nodes = nodes

    def tables(self) -> list[Document]:
        """A document for each table: its cell as traced, and the nodes hoisted out of it."""
        return [
            {
                "name": table.cell.__name__,
                "nodes": self._nodes(table.trace.nodes),
                "arguments": [node.index for node in table.trace.arguments],
                "memories": [node.index for node in table.trace.memories],
                "outputs": [node.index for node in table.trace.outputs],
                "form": table.trace.form,
                "leaves": table.forms,
                "matrices": table.matrices,
                "constants": _numbers(table.hoisted.constants),
                "of_memories": [
                    [[node.index for node in memory], _numbers(nodes)]
                    for memory, nodes in table.hoisted.of_memories.items()
                ],
            }
            for table in self._numbers
        ]

    def node(self, node: Node) -> Document | None:
        """The document of a call, or of a node that is made from calls; None for other nodes."""
        if isinstance(node, Call):
            table = node.origin
            arguments = [table.arguments(k, [node.row]) for k in range(len(table.columns))]
            return {
                "table": self._numbers[table],
                "given": [_given(argument) for (argument,) in arguments],
            }
        if isinstance(node, ResultPart):
            return {"output": [node.call.index, node.first]}
        if isinstance(node, Row):
            return {"row": [node.source.index, node.token]}
        if isinstance(node, StackCalls):
            return {"stack": [_given(result) for result in node.results], "leaf": node.leaf}
        return None


def _numbers(nodes: Mapping[int, Node]) -> list[list[int]]:
    return [[traced, node.index] for traced, node in nodes.items()]


def _given(value: Any) -> Document:
    if isinstance(value, Node):
        return {"node": value.index}
    if isinstance(value, TuplePart):
        return {"part": [value.call.index, value.first, value.form]}
    if isinstance(value, TupleArgument):
        return {"mixed": [_given(part) for part in value.members]}
    if isinstance(value, SumArgument):
        return {"total": [_given(member) for member in value.members]}
    return {"given": None if value.origin is None else value.origin.index}


class CallReader:
    """The tables of a graph, and nodes that belong to calls, from their documents.

    Args:
        graph:     the graph that is built.
        all_nodes: its nodes so far, to which the caller appends.
    """

    def __init__(self, graph: CallGraph, all_nodes: list[Node]) -> None:
        self._graph = graph
        self._all_nodes = all_nodes
        self._tables: list[CallTable] = []

    def add_table(self, document: Document, nodes: list[Operation]) -> None:
        """Enter a table in the graph, whose cell was traced to these nodes."""
        parameters = [parameter for node in nodes for parameter in node.all_parameters()]
        trace = StepTrace(
            nodes,
            [nodes[number] for number in document["arguments"]],
            [nodes[number] for number in document["memories"]],
            [nodes[number] for number in document["outputs"]],
            _form(document["form"]),
            {((Way.ITEM, number),): parameter for number, parameter in enumerate(parameters)},
        )
        cell: Any = SimpleNamespace(__name__=document["name"])
        leaves = iter([MatrixForm(0) if is_matrix else 0 for is_matrix in document["matrices"]])
        forms = [tuple(islice(leaves, count)) for count in document["leaves"]]
        table = CallTable(cell, trace, forms, self._graph, lambda table: None)
        self._tables.append(table)
        self._graph.add_table(table)

    def add_constants(self, documents: Sequence[Document]) -> None:
        for table, document in zip(self._tables, documents, strict=True):
            for number, index in document["constants"]:
                table.hoisted.constants[number] = self._all_nodes[index]
            for memory, places in document["of_memories"]:
                key = tuple([self._all_nodes[index] for index in memory])
                nodes = {number: self._all_nodes[index] for number, index in places}
                table.hoisted.of_memories[key] = nodes

    def node(self, document: Mapping[str, Any]) -> Node | None:
        """The node of a document that `CallWriter.node` wrote; None for another document."""
        if "table" in document:
            return self._call(self._tables[document["table"]], document["given"])
        if "output" in document:
            call, first = document["output"]
            return ResultPart(self._call_at(call), first)
        if "row" in document:
            origin, row = document["row"]
            return row_of(self._all_nodes[origin], row)
        if "stack" in document:
            results = [self._given(result) for result in document["stack"]]
            return StackCalls(Stacked.of(Results.of(results)), document["leaf"])
        return None

    def _call(self, table: CallTable, arguments: Sequence[Document]) -> Node:
        """A call, made by the function that makes the calls of a cell."""
        tables: dict[Any, CallTable] = defaultdict(lambda: table)
        make = maker(len(arguments), None, frozenset())(tables, {}, [], None, Call)
        call: Node = make(tuple([self._given(argument) for argument in arguments]))
        return call

    def _given(self, document: Document) -> Any:
        ((key, content),) = document.items()
        if key == "node":
            return self._all_nodes[content]
        if key == "part":
            call, first, form = content[0], content[1], _form(content[2])
            return TuplePart(self._call_at(call), form, first, self._graph.form_ids[form])
        if key == "mixed":
            return TupleArgument([self._given(part) for part in content], 0)
        if key == "total":
            members = [self._given(member) for member in content]
            return SumArgument(members, members[0].form)
        return NodeArgument(None if content is None else self._all_nodes[content], 0)

    def _call_at(self, index: int) -> Call:
        call = self._all_nodes[index]
        assert isinstance(call, Call)
        return call


def _form(form: Any) -> Any:
    return tuple([_form(part) for part in form]) if isinstance(form, list) else form
