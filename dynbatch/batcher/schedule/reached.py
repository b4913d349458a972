"""Keeps nodes that a loss's gradient reaches out of the batches of those that it does not reach.

Backward of a batch goes through all of its nodes. Were one among them that the loss does not read,
or reads through an argmax alone, its gradient would be 0, and the others would pay for it: backward
would read values that nothing else asks for, which parts of a mini-batch compute at the very end;
0 · inf would be NaN in the gradient of what both read; and a parameter without a gradient would get
zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dynbatch.blocks.call import BlockCall, BlockResult
from dynbatch.blocks.program import BlockProgram
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.signature import Reach, reach_of, with_reach

Positions = Sequence[Sequence[int]]
"""Of each node, the positions of those that it reads."""

UNREACHED = Reach()


def signatures_of(
    nodes: Sequence[Operation], inputs: Positions, roots: Iterable[Node]
) -> tuple[int, ...]:
    """The signatures of nodes where backward begins at the roots; of those among them that count.

    Args:
        nodes: in a topological order.
    """
    position = {node.index: i for i, node in enumerate(nodes)}
    positions = [position.get(root.producer().index) for root in roots]
    begun = {i for i in positions if i is not None}
    signatures = [node.sig for node in nodes]
    types: set[type[Operation]] = set(map(type, nodes))
    is_plain = all([t.differentiable and not issubclass(t, BlockCall) for t in types])
    if is_plain and len(begun.union(*inputs)) == len(nodes):
        return tuple(signatures)  # each leads to a root
    reached = _reached(nodes, inputs, begun)
    results: dict[int, set[int]] = {}
    for i, node in enumerate(nodes):
        if not reached[i]:
            if node.inputs or node.all_parameters():
                signatures[i] = _apart(node, node.sig)
            continue
        if isinstance(node, BlockCall):
            results[i] = {node.program.results[node.program.main]} if i in begun else set()
        for x in inputs[i] if node.differentiable else ():
            call = nodes[x]
            if isinstance(call, BlockCall):
                number = node.number if isinstance(node, BlockResult) else call.program.main
                results[x].add(call.program.results[number])
    for i, operators in results.items():
        call = nodes[i]
        if isinstance(call, BlockCall) and len(operators) < len(_all_results(call.program)):
            signatures[i] = with_reach(call.sig, Reach(tuple(sorted(operators))))
    return tuple(signatures)


def results_reached(program: BlockProgram, signature: int) -> tuple[int, ...]:
    """The operators of the results that backward reaches in calls of a batch's signature."""
    reach = reach_of(signature)
    return _all_results(program) if reach is None else reach.results


def signatures_of_operators(program: BlockProgram, results: Collection[int]) -> tuple[int, ...]:
    nodes = [operator.node for operator in program.operators]
    reached = _reached(nodes, program.edges, results)
    return tuple(
        [
            _apart(op.node, signature)
            if not is_reached and (op.inputs or op.node.all_parameters())
            else signature
            for op, signature, is_reached in zip(
                program.operators, program.signatures, reached, strict=True
            )
        ]
    )


def _reached(nodes: Sequence[Operation], inputs: Positions, roots: Iterable[int]) -> list[bool]:
    reached = [False] * len(nodes)
    for root in roots:
        reached[root] = True
    for i in range(len(nodes) - 1, -1, -1):
        if reached[i] and nodes[i].differentiable:
            for x in inputs[i]:
                reached[x] = True
    return reached


def _apart(node: Operation, signature: int) -> int:
    """The signature that an unreached node has, unless none that is reached may be its company."""
    is_alone = isinstance(node, RegionNode | BlockResult) or not node.differentiable
    return signature if is_alone else with_reach(signature, UNREACHED)


def _all_results(program: BlockProgram) -> tuple[int, ...]:
    return tuple(sorted({operator for operator in program.results if operator >= 0}))
