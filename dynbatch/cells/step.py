"""One application of a cell to nodes, traced and compiled: a program as a scan's, without a state.

All that the cell is given are *streams*: rows that are gathered before a batch of calls runs. What
is known of all calls before the first one runs (a word, say, which no call has made) is a *token*:
its linear maps are one product for all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dynbatch.cells.compiled import CompiledLoop
from dynbatch.cells.program import Program
from dynbatch.cells.recorder import Path, Recorder, is_unchanged, reads_of
from dynbatch.cells.trace import (
    Placeholder,
    Split,
    TraceGraph,
    ancestors,
    require_inside,
    require_vector,
    run_traced,
)
from dynbatch.errors import GraphError, ShapeError
from dynbatch.nodes.base import Node, Owner, caller
from dynbatch.nodes.dropout import Dropout
from dynbatch.nodes.linear import Linear
from dynbatch.nodes.sources import check_parameter
from dynbatch.parameter import Parameter

Form = Any
"""What a cell is given or returns: a vector's width, 0 for a scalar, or a tuple of forms."""


def leaves(form: Form) -> list[int]:
    """The widths of a form's vectors and scalars, in order; 0 for a scalar."""
    if not isinstance(form, tuple):
        return [form]
    return [width for part in form for width in leaves(part)]


def build(form: Form, values: Iterator[Any]) -> Any:
    """The values, one for each leaf, in the structure of the form."""
    if not isinstance(form, tuple):
        return next(values)
    return tuple([build(part, values) for part in form])


@dataclass
class StepTrace:
    """What a cell built when it was given one value for each leaf.

    form:     of what it returned.
    reads:    what it read from its parameters.
    compiled: for each set of tokens it was needed for.
    """

    nodes: list[Node]
    arguments: list[Node]
    outputs: list[Node]
    form: Form
    reads: dict[Path, Any]
    compiled: dict[frozenset[int], CompiledStep] = field(default_factory=dict)

    def is_current(self, params: Any) -> bool:
        """Whether `params` holds what the trace read from its own."""
        return is_unchanged(params, self.reads)

    def check_parameters(self, name: str, graph: Owner) -> None:
        """Raise an error unless the parameters are of the graph's dtype and on its device."""
        for read in self.reads.values():
            if isinstance(read, Parameter):
                check_parameter(f"cell {name!r}", read, graph)

    @property
    def batches(self) -> bool:
        """Whether calls can be one node each.

        Not with dropout, whose masks belong to a sentence's nodes, nor with matrices.
        """
        return not any([node.ndim > 1 or isinstance(node, Dropout) for node in self.nodes])


def trace_step(
    function: Callable[..., Any],
    forms: Sequence[Form],
    params_at: int | None,
    params: Any,
    dtype: Any,
) -> StepTrace:
    """Run `function` once on placeholders.

    Args:
        forms:     of the values it is given, in order.
        params_at: the position of `params` among the arguments; None for a cell without.

    Raises:
        ShapeError: it returns something that is neither vector, scalar, nor tuple of them.
        GraphError: it reads a value, sets a parameter, or uses a node from outside it.
    """
    first = _trace_once(function, forms, params_at, params, dtype)
    again = _trace_once(function, forms, params_at, params, dtype)
    if first.form != again.form or _operators(first) != _operators(again):
        raise GraphError(
            f"cell {_name(function)!r} built other operators when it was run again.\n"
            "  rule: a cell runs once for all its calls; equal arguments give equal operators\n"
            "  fix:  decide outside the cell, between several cells, or give what differs as an\n"
            f"        argument\n  made at {caller()}"
        )
    return first


def _trace_once(
    function: Callable[..., Any],
    forms: Sequence[Form],
    params_at: int | None,
    params: Any,
    dtype: Any,
) -> StepTrace:
    graph = TraceGraph(dtype)
    widths = [width for form in forms for width in leaves(form)]
    placeholders: list[Node] = [
        Placeholder(graph=graph, role="argument", place=k, given=(width,) if width else ())
        for k, width in enumerate(widths)
    ]
    values = iter(placeholders)
    arguments = [build(form, values) for form in forms]
    recorder = Recorder(params)
    if params_at is not None:
        arguments.insert(params_at, recorder)
    returned = run_traced(function, arguments, params)
    outputs: list[Node] = []
    form = _form_of(_name(function), returned, outputs)
    require_inside(_name(function), outputs, graph)
    return StepTrace(graph.nodes, placeholders, outputs, form, reads_of(recorder))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "cell")


def _operators(trace: StepTrace) -> list[tuple[Any, ...]]:
    return [
        (type(node), node.sig, [x.index for x in node.inputs])
        for node in trace.nodes
        if node.sig >= 0
    ]


def _form_of(name: str, returned: Any, outputs: list[Node]) -> Form:
    """The form of what a cell returned; appends its nodes to `outputs`."""
    if isinstance(returned, Node):
        require_vector(returned)
        outputs.append(returned)
        return returned.width if returned.ndim else 0
    if isinstance(returned, tuple) and returned:
        return tuple([_form_of(name, part, outputs) for part in returned])
    raise ShapeError(
        f"cell {name!r} returned {returned!r}.\n"
        "  rule: a cell returns a vector, a scalar, or a tuple of them\n"
        f"  fix:  make lists and dicts tuples, and numbers nodes\n  made at {caller()}"
    )


def split_step(trace: StepTrace, tokens: frozenset[int]) -> Split:
    """Sort the operators: linear maps of tokens and constants before, the rest in the loop.

    Args:
        tokens: places of the arguments that are known of all calls before the first one runs.
    """
    needed = ancestors(trace.outputs)
    given = {node.index for node in trace.arguments}
    order = [n for n in trace.nodes if n.index in needed and n.index not in given]
    kinds = {
        node.index: "token argument" if place in tokens else "argument"
        for place, node in enumerate(trace.arguments)
    }
    returned = {node.index for node in trace.outputs}
    for node in order:
        read = {kinds[x.index] for x in node.inputs}
        if read <= {"memory"}:
            kinds[node.index] = "memory"
        elif read == {"token argument"} and isinstance(node, Linear) and node.index not in returned:
            kinds[node.index] = "token"
        else:
            kinds[node.index] = "loop"
    loop = [n for n in order if kinds[n.index] == "loop"]
    for node in loop:
        require_vector(node)
    before = [n for n in order if kinds[n.index] in ("token", "memory")]
    return Split(before, loop, [], trace.outputs, kinds)


class StepProgram(Program):
    """The program of one call: its arguments are its first streams, its outputs its exports."""

    def __init__(self, trace: StepTrace, parts: Split) -> None:
        self.begin(parts)
        for node in trace.arguments:
            self.enter(node)
        for node in parts.loop:
            self.add(node)
        self.leave(trace.outputs, [])

    @property
    def constants(self) -> list[Node]:
        """Traced nodes behind the streams that are no arguments: parameters, say, as values."""
        return [n for n in self.stream_nodes if not isinstance(n, Placeholder)]


class CompiledStep(CompiledLoop):
    """A call, compiled for given tokens.

    Attributes:
        num_arguments: streams that calls are given; the rest are constants.
        reached:       streams that backward gives a gradient.
        columns:       first column of each output among the exports, and their total width.
    """

    program: StepProgram

    def __init__(self, trace: StepTrace, tokens: frozenset[int]) -> None:
        self.trace = trace
        self.tokens = tokens
        self.parts = split_step(trace, tokens)
        super().__init__(StepProgram(trace, self.parts))
        self.num_arguments = len(trace.arguments)
        ends = np.cumsum([value.width for value in self.program.exports]).tolist()
        self.columns: list[int] = [0, *ends[:-1]]
        self.width: int = ends[-1]
        self.reached = self.reverse_pass.streams | {
            op.inputs[0].place
            for number, op in self.stream_maps.items()
            if number in self.reverse_pass.of_maps
        }
