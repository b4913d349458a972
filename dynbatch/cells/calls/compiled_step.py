"""One call of a cell on nodes, traced and compiled like a scan's step, but without a state.

The vectors and scalars that the cell is given are *streams*: rows that are gathered before a batch
of calls runs. An argument that is known before the first call runs (a word, say) is a *token*: its
linear maps are one product for all calls.

The matrices are *memories*. What reads nothing else is not a part of a call: it becomes ordinary
nodes, once for each memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from numpy.typing import DTypeLike

from dynbatch.cells.calls.forms import CellFunction, Form, MatrixForm, ResultForm, build, leaves
from dynbatch.compiler.any_rows import repeats_beside_rows, trace_any_rows
from dynbatch.compiler.buffers import Role
from dynbatch.compiler.compiled import CompiledLoop, token_rows
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.recorder import recorded
from dynbatch.compiler.split import Split, require_known_rows, require_vector
from dynbatch.compiler.trace import Placeholder, Section, TraceGraph, require_inside, run_traced
from dynbatch.compiler.traced import Reads
from dynbatch.errors import GraphError, ShapeError
from dynbatch.nodes.linear import LinearMap
from dynbatch.nodes.node import Node, ancestors
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.expand import Expand


@dataclass
class StepTrace:
    """The trace of a cell that was given one value for each leaf.

    arguments: vectors and scalars among these, and `memories` the matrices.
    form:     of what it returned.
    reads:    what it read from its parameters.
    open_rows: indices of the nodes whose rows follow from a memory's, which may be any.
    compiled: for each set of tokens it was needed for.
    """

    nodes: list[Operation]
    arguments: list[Node]
    memories: list[Node]
    outputs: list[Node]
    form: ResultForm
    reads: Reads
    open_rows: frozenset[int] = frozenset()
    compiled: dict[frozenset[int], CompiledStep] = field(default_factory=dict)

    @cached_property
    def of_memory(self) -> frozenset[int]:
        """Indices of the nodes that depend on memories and on no other argument."""
        follow = {node.index for node in self.memories}
        arguments = {node.index for node in self.arguments}
        for node in self.nodes:
            read = {x.index for x in node.inputs}
            if read & arguments:
                arguments.add(node.index)
            elif read & follow:
                follow.add(node.index)
        return frozenset(follow)

    @cached_property
    def batches(self) -> bool:
        """Whether calls can be one node each.

        Not with dropout, whose masks belong to a sentence's nodes, nor with matrices that do not
        follow from those the cell is given.
        """
        if self is NOT_TRACED:
            return False
        # A vector repeated beside a memory: made anew, it is repeated as each memory has rows.
        expanded = [n for n in self.nodes if isinstance(n, Expand)]
        repeated = {n.index for n in expanded if n.ndim > 1 and n.inputs[0].ndim < 2}
        for node in self.nodes:
            follows = node.index in self.of_memory
            if node.draws or (node.ndim > 1 and not follows and node.index not in repeated):
                return False
        return repeats_beside_rows(self.nodes)


NOT_TRACED = StepTrace([], [], [], [], (), {})
"""The trace of a function that runs but cannot be traced."""


def trace_step(
    function: CellFunction,
    forms: Sequence[Form],
    params_at: int | None,
    params: object,
    dtype: DTypeLike,
) -> StepTrace:
    """Run `function` once on placeholders.

    Args:
        forms:     of the values it is given, in order.
        params_at: the position of `params` among the arguments; None for a cell without.

    Raises:
        ShapeError: it returns something that is neither vector, scalar, nor tuple of them.
        GraphError: it reads a value, sets a parameter, or uses a node from outside it; or what it
            builds depends on the number of rows of a matrix.
    """
    trace = partial(_trace_once, function, forms, params_at, params, dtype)
    count = sum([isinstance(leaf, MatrixForm) for leaf in leaves(tuple(forms))])
    step = trace_any_rows(trace, count, lambda x: (x.form, [node.index for node in x.outputs]))
    if step is None:
        raise GraphError.at_caller(
            f"cell {_name(function)!r} built other operators when it was run again.\n"
            "  rule: a cell runs once for all its calls; equal arguments give equal operators\n"
            "  fix:  decide outside the cell, between several cells, or give what differs as\n"
            "        an argument"
        )
    return step


def _trace_once(
    function: CellFunction,
    forms: Sequence[Form],
    params_at: int | None,
    params: object,
    dtype: DTypeLike,
    rows: Sequence[int],
) -> StepTrace:
    graph = TraceGraph(dtype)
    placeholders: dict[Section, list[Node]] = {Section.ARGUMENT: [], Section.MEMORY: []}
    values: list[Node] = []
    for leaf in leaves(tuple(forms)):
        is_matrix = isinstance(leaf, MatrixForm)
        role = Section.MEMORY if is_matrix else Section.ARGUMENT
        number = len(placeholders[role])
        shape = (rows[number], leaf.width) if is_matrix else (leaf,) if leaf else ()
        values.append(Placeholder(graph=graph, role=role, number=number, traced=shape))
        placeholders[role].append(values[-1])
    arguments: list[object] = [*build(tuple(forms), iter(values))]
    given_params, reads = recorded(params)
    if params_at is not None:
        arguments.insert(params_at, given_params)
    returned = run_traced(function, arguments, params, graph)
    outputs: list[Node] = []
    form = _form_of(_name(function), returned, outputs)
    require_inside(_name(function), outputs, graph)
    vectors, memories = placeholders.values()
    return StepTrace(graph.nodes, vectors, memories, outputs, form, reads)


def _name(function: CellFunction) -> str:
    return getattr(function, "__name__", "cell")


def _form_of(name: str, returned: object, outputs: list[Node]) -> ResultForm:
    """The form of a cell's result; appends its nodes to `outputs`."""
    if isinstance(returned, Node):
        require_vector(returned)
        outputs.append(returned)
        return returned.width if returned.ndim else 0
    if isinstance(returned, tuple) and returned:
        return tuple([_form_of(name, part, outputs) for part in returned])
    raise ShapeError.at_caller(
        f"cell {name!r} returned {returned!r}.\n"
        "  rule: a cell returns a vector, a scalar, or a tuple of them\n"
        "  fix:  make lists and dicts tuples, and numbers nodes"
    )


def split_step(trace: StepTrace, tokens: frozenset[int]) -> Split:
    """Sort the operators: linear maps of tokens and constants before, the rest in the loop.

    Args:
        tokens: places of the arguments that are known of all calls before the first one runs.
    """
    needed = ancestors(trace.outputs)
    outside = {node.index for node in [*trace.arguments, *trace.memories]}
    order = [n for n in trace.nodes if n.index in needed and n.index not in outside]
    sections = {
        node.index: Section.KNOWN_ARGUMENT if number in tokens else Section.ARGUMENT
        for number, node in enumerate(trace.arguments)
    }
    sections.update({node.index: Section.MEMORY for node in trace.memories})
    returned = {node.index for node in trace.outputs}
    for node in order:
        read = {sections[x.index] for x in node.inputs}
        is_map = isinstance(node, LinearMap) and node.index not in returned
        if read <= {Section.MEMORY}:
            sections[node.index] = Section.MEMORY
        elif read == {Section.KNOWN_ARGUMENT} and is_map:
            sections[node.index] = Section.TOKEN
        else:
            sections[node.index] = Section.LOOP
    loop = [n for n in order if sections[n.index] is Section.LOOP]
    require_known_rows(loop, sections, trace.open_rows)
    before = [n for n in order if sections[n.index] in (Section.TOKEN, Section.MEMORY)]
    return Split(before, loop, [], trace.outputs, sections)


class StepProgram(LoopProgram):
    """The program of one call: its arguments are its first streams, its outputs its exports.

    Attributes:
        summaries: traced vectors and scalars that follow from memories: the streams that come next.
        num_given: number of these streams.
        constants: traced nodes behind all further streams: parameters, say, as values.
    """

    def __init__(self, trace: StepTrace, parts: Split) -> None:
        self.begin(parts)
        read = {x.index for node in parts.loop for x in node.inputs}
        read |= {node.index for node in trace.outputs}
        summaries = [n for n in parts.before if n.index in trace.of_memory and n.ndim < 2]
        self.summaries = [node for node in summaries if node.index in read]
        for node in [*trace.arguments, *self.summaries]:
            self.enter(node)
        for node in parts.loop:
            self.add(node)
        self.leave(trace.outputs, [])
        self.num_given = len(trace.arguments) + len(self.summaries)
        self.constants = self.stream_nodes[self.num_given :]


class CompiledStep(CompiledLoop):
    """A call, compiled for given tokens.

    Gradients of all streams have rows, those of tokens too: they are given back from there.

    Attributes:
        columns: first column of each output among the exports, and their total width.
    """

    program: StepProgram
    reads_first_memories = False
    overwrites = False  # another loss may follow, and what calls returned has a gradient to be read

    def __init__(self, trace: StepTrace, tokens: frozenset[int]) -> None:
        self.trace = trace
        self.tokens = tokens
        self.parts = split_step(trace, tokens)
        super().__init__(StepProgram(trace, self.parts))
        reached = sorted(self.reached.keys() - self.backward_program.of_streams)
        streams = self.program.streams
        self.backward_rows += [token_rows(Role.STREAM_GRADIENT, k, streams[k]) for k in reached]
        self.columns = [column for _, column in self.program.exports_at()]
        self.width = self.program.width
