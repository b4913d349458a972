"""`live_operators`: the operators of a trace that its results need, with losses folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dynbatch.blocks.given_arrays import GivenArrays
from dynbatch.blocks.trace import BlockArgument, BlockTrace
from dynbatch.nodes.node import ancestors
from dynbatch.nodes.operation import Operation


class Operators(NamedTuple):
    """The operators of one trace, in order.

    inputs:  of each, positions of operators, or -1 - k for the node argument k.
    results: likewise.
    arrays:  those of the trace.
    """

    nodes: Sequence[Operation]
    inputs: Sequence[tuple[int, ...]]
    results: tuple[int, ...]
    returns_tuple: bool
    arrays: GivenArrays


def live_operators(trace: BlockTrace) -> Operators:
    """The operators of a trace that its results need.

    A loss takes the place of the projection below it, which nothing else reads, as it does between
    nodes of a graph (see `batcher.schedule.folds`).
    """
    nodes = {node.index: node for node in trace.nodes}
    live = ancestors(trace.returned)
    readers = Counter([x.index for node in live.values() for x in node.inputs])
    returned = {node.index for node in trace.returned}
    for index, losses in trace.losses.items():
        reader = [loss for loss in losses if loss in live]
        if index not in returned and readers[index] == 1 and reader:
            nodes[reader[0]] = nodes[reader[0]].folded()
            del live[index]
            live |= {x.index: x for x in nodes[reader[0]].inputs}
    position: dict[int, int] = {}
    for index in sorted(live):
        node = nodes[index]
        if isinstance(node, BlockArgument):
            position[index] = -1 - node.number
    kept = [index for index in sorted(live) if index not in position]
    position.update({index: k for k, index in enumerate(kept)})
    return Operators(
        [nodes[index] for index in kept],
        [tuple([position[x.index] for x in nodes[index].inputs]) for index in kept],
        tuple([position[node.index] for node in trace.returned]),
        trace.returns_tuple,
        trace.arrays,
    )
