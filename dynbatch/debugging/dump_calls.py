"""Calls of cells in a dumped graph: the cells as traced, and what each call was given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

from dynbatch.cells.calls.arguments import NodeArgument, SumArgument, TupleArgument, form_of
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.calls import maker
from dynbatch.cells.calls.forms import MatrixForm
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.cells.calls.step import StepTrace
from dynbatch.cells.calls.table import CallTable
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.indexing import Row

Document = dict[str, Any]


class CallWriter:
    """Documents of a graph's tables and of the nodes that belong to calls.

    Args:
        tables: of the graph.
        nodes:  writes traced nodes.
    """

    def __init__(
        self, tables: Sequence[CallTable], nodes: Callable[[Sequence[Node]], list[Document]]
    ) -> None:
        self._numbers = {table: number for number, table in enumerate(tables)}
        self._nodes = nodes

    def tables(self) -> list[Document]:
        """The cell of each table, and the nodes in place of what is made once."""
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
                    [[node.index for node in memory], _numbers(made)]
                    for memory, made in table.hoisted.of_memories.items()
                ],
            }
            for table in self._numbers
        ]

    def node(self, node: Node) -> Document | None:
        """A call, or what is made of calls and rows only for them; None of other nodes."""
        if isinstance(node, Call):
            given = [_given(column[node.row]) for column in node.origin.columns]
            return {"table": self._numbers[node.origin], "given": given}
        if isinstance(node, ResultPart):
            return {"output": [node.call.index, node.first]}
        if isinstance(node, Row):
            return {"row": [node.source.index, node.token]}
        if isinstance(node, StackCalls):
            return {"stack": [_given(result) for result in node.results], "leaf": node.leaf}
        return None


def _numbers(made: Mapping[int, Node]) -> list[list[int]]:
    return [[place, node.index] for place, node in made.items()]


def _given(value: Any) -> Document:
    """What a call was given."""
    if isinstance(value, Node):
        return {"node": value.index}
    if isinstance(value, TuplePart):
        return {"part": [value.call.index, value.first, value.form]}
    if isinstance(value, TupleArgument):
        return {"mixed": [_given(one) for one in value.values]}
    if isinstance(value, SumArgument):
        return {"total": [_given(one) for one in value.members]}
    return {"given": None if value.origin is None else value.origin.index}


class CallReader:
    """The tables of a graph, and nodes that belong to calls, from their documents.

    Args:
        graph: that is built.
        made:  its nodes so far, which others append to.
    """

    def __init__(self, graph: Any, made: list[Node]) -> None:
        self._graph = graph
        self._made = made
        self._tables: list[CallTable] = []

    def add_table(self, document: Document, nodes: list[Operation]) -> None:
        """Enter a table in the graph, whose cell was traced to these nodes."""
        parameters = [parameter for node in nodes for parameter in node.all_parameters()]
        trace = StepTrace(
            nodes,
            [nodes[place] for place in document["arguments"]],
            [nodes[place] for place in document["memories"]],
            [nodes[place] for place in document["outputs"]],
            _form(document["form"]),
            {(("item", place),): parameter for place, parameter in enumerate(parameters)},
        )
        cell: Any = SimpleNamespace(__name__=document["name"])
        leaves = iter([MatrixForm(0) if is_matrix else 0 for is_matrix in document["matrices"]])
        forms = [tuple(islice(leaves, count)) for count in document["leaves"]]
        table = CallTable(cell, trace, forms, self._graph, lambda table: None)
        self._tables.append(table)
        self._graph.add_table(table)

    def add_constants(self, documents: Sequence[Document]) -> None:
        """Tell the tables which nodes are in place of what is made once."""
        for table, document in zip(self._tables, documents, strict=True):
            for place, index in document["constants"]:
                table.hoisted.constants[place] = self._made[index]
            for memory, places in document["of_memories"]:
                key = tuple([self._made[index] for index in memory])
                nodes = {place: self._made[index] for place, index in places}
                table.hoisted.of_memories[key] = nodes

    def node(self, document: Mapping[str, Any]) -> Node | None:
        """The node of a document of `CallWriter.node`; None of another."""
        if "table" in document:
            return self._call(self._tables[document["table"]], document["given"])
        if "output" in document:
            call, first = document["output"]
            return ResultPart(self._call_at(call), first)
        if "row" in document:
            origin, row = document["row"]
            return Row(self._made[origin], row)
        if "stack" in document:
            results = [self._given(one) for one in document["stack"]]
            tables = list(dict.fromkeys([result.origin for result in results]))
            phase = max([result.ready for result in results])
            return StackCalls(results, document["leaf"], tables, phase)
        return None

    def _call(self, table: CallTable, given: Sequence[Document]) -> Node:
        """By the very function that makes the calls of a cell."""
        tables: dict[Any, CallTable] = defaultdict(lambda: table)
        make = maker(len(given), None, frozenset())(tables, {}, None, Call.__new__, Call)
        made: Node = make(tuple([self._given(one) for one in given]))
        return made

    def _given(self, document: Document) -> Any:
        ((what, content),) = document.items()
        if what == "node":
            return self._made[content]
        if what == "part":
            call, first, form = content[0], content[1], _form(content[2])
            return TuplePart(self._call_at(call), form, first, self._graph.form_ids.of(form))
        if what == "mixed":
            return TupleArgument([self._given(one) for one in content], 0)
        if what == "total":
            members = [self._given(one) for one in content]
            return SumArgument(members, form_of(members[0]))
        return NodeArgument(None if content is None else self._made[content], 0)

    def _call_at(self, index: int) -> Call:
        call = self._made[index]
        assert isinstance(call, Call)
        return call


def _form(form: Any) -> Any:
    """A form, of whose tuples JSON made lists."""
    return tuple([_form(part) for part in form]) if isinstance(form, list) else form
