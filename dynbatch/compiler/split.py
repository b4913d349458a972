"""Splits a trace into operators that run once per sentence, for each token, or in the loop.

before  operators that depend on the tokens only: run once, over all tokens of all sentences, as
        ordinary nodes ahead of the scan; or on the memory only: once for each sentence
loop    operators that the next state depends on: the recurrence itself
after   operators that feed the output only: ordinary nodes behind the scan
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dynbatch.compiler.trace import Placeholder, Section, Trace, made_at
from dynbatch.errors import ShapeError
from dynbatch.nodes.node import Node, ancestors
from dynbatch.nodes.operation import Operation


@dataclass
class Split:
    """The three parts of a trace, each in creation order.

    exports:  values of the loop, or of the state, that the output or `after` read. Where they need
              none, the state all the same: a scan has a value, if only for its last state's sake.
    sections: by index: TOKEN and MEMORY (before), LOOP, AFTER; placeholders: their role. What reads
              neither token nor state is MEMORY, parameters and constants too: it is made once a
              sentence.
    """

    before: list[Operation]
    loop: list[Operation]
    after: list[Operation]
    exports: list[Node]
    sections: dict[int, Section]


def split(trace: Trace) -> Split:
    """Sort the operators of a trace into before, loop and after; drop unread ones."""
    needed = ancestors([trace.output, *trace.next_states])
    for_state = ancestors(trace.next_states)
    order = [n for n in trace.nodes if n.index in needed and not isinstance(n, Placeholder)]
    sections = {n.index: Section(n.role) for n in trace.nodes if isinstance(n, Placeholder)}
    readers: dict[int, list[int]] = {}
    for node in order:
        for x in node.inputs:
            readers.setdefault(x.index, []).append(node.index)
        sections[node.index] = _section(node, sections)
    # Backward through the operators: one that only operators after the loop read can follow the
    # loop itself, where it runs once for all tokens instead of once a step.
    for node in reversed(order):
        free = sections[node.index] is Section.LOOP and node.index not in for_state
        if free and node.is_rowwise() and not makes_or_reads_matrix(node, sections):
            if all([sections[i] is Section.AFTER for i in readers.get(node.index, [])]):
                sections[node.index] = Section.AFTER

    def nodes_of(*wanted: Section) -> list[Operation]:
        return [n for n in order if sections[n.index] in wanted]

    loop, after = nodes_of(Section.LOOP), nodes_of(Section.AFTER)
    require_known_rows([*nodes_of(Section.TOKEN), *loop, *after], sections, trace.open_rows)
    require_vector(trace.output)
    wanted = [trace.output, *[x for n in after for x in n.inputs]]
    exports = {x.index: x for x in wanted if sections[x.index] in (Section.LOOP, Section.STATE)}
    # At least one value is exported: any state will do.
    exports = exports or {trace.states[0].index: trace.states[0]}
    before = nodes_of(Section.TOKEN, Section.MEMORY)
    return Split(before, loop, after, list(exports.values()), sections)


def _section(node: Operation, sections: dict[int, Section]) -> Section:
    """MEMORY, TOKEN or LOOP, from the sections of the node's inputs."""
    read = {sections[x.index] for x in node.inputs}
    draws = node.draws and node.ndim < 2  # anew at each token
    if read <= {Section.MEMORY} and not draws:
        return Section.MEMORY
    if makes_or_reads_matrix(node, sections):
        return Section.LOOP
    rows_of_memory = any([x.ndim == 2 and sections[x.index] is Section.MEMORY for x in node.inputs])
    if not node.is_rowwise() or read & {Section.STATE, Section.LOOP} or rows_of_memory:
        return Section.LOOP
    return Section.TOKEN


def makes_or_reads_matrix(node: Node, sections: dict[int, Section]) -> bool:
    """Whether a node of a step has a matrix of that step as its value, or among its inputs."""
    if sections.get(node.index) is Section.MEMORY:
        return False
    of_step = [x for x in node.inputs if x.ndim > 1 and sections[x.index] is not Section.MEMORY]
    return node.ndim > 1 or bool(of_step)


def require_known_rows(
    nodes: Sequence[Operation], sections: dict[int, Section], open_rows: Collection[int]
) -> None:
    """Raise `ShapeError` if a matrix of a step follows from a memory's rows, which may be any."""
    for node in [n for n in nodes if makes_or_reads_matrix(n, sections)]:
        for x in (node, *node.inputs):
            if x.index in open_rows and x.ndim > 1:
                raise _is_matrix(
                    x,
                    f"(rows, {x.width})",
                    "what a step makes of the rows of a memory is a vector, however many there are",
                    "attend to a memory with F.attention, or sum it; the rest belongs outside",
                )


def require_vector(node: Node) -> None:
    """Raise `ShapeError` if what a cell returns is a matrix."""
    if node.ndim > 1:
        raise _is_matrix(
            node,
            str(node.shape),
            "a cell returns vectors; matrices are states of a scan, and what a step makes inside",
            "F.reshape(y, (-1,)) makes one vector of it",
        )


def _is_matrix(node: Node, shape: str, rule: str, fix: str) -> ShapeError:
    return ShapeError.at_caller(
        f"cell: {node.label()} is a matrix {shape}, in a step of one sentence.\n"
        f"  rule: {rule}\n  fix:  {fix}",
        made_at(node),
    )
