"""`unrolled`: a graph's nodes with the operators of blocks in place of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.batcher.steps.block_batch import BlockBatch
from dynbatch.batcher.steps.members import Members
from dynbatch.blocks.call import BlockCall, BlockResult
from dynbatch.nodes.folded import Folded
from dynbatch.nodes.node import Node


def unrolled(
    nodes: Sequence[Node],
) -> tuple[list[Node], dict[Node, int], list[tuple[int, int]]]:
    """The nodes of a graph without blocks that computes the same, and the place of each node there.

    And the places of each input that was folded inside of a block, and of its reader. The place of
    a call, or of a further result, is that of the operator that computes it.
    """
    flat: list[Node] = []
    stands_for: dict[Node, Node] = {}
    results: dict[Node, Sequence[Node]] = {}
    folded: list[list[Any]] = []
    for node in nodes:
        if isinstance(node, BlockCall):
            operators = _operators(node)
            results[node] = [
                operators[k][-1] if k >= 0 else node.inputs[-1 - k] for k in node.program.results
            ]
            stands_for[node] = results[node][node.program.main]
            flat += [x for of_operator in operators for x in of_operator]
            folded += [of_operator for of_operator in operators if len(of_operator) > 1]
        elif isinstance(node, BlockResult):
            stands_for[node] = results[node.inputs[0]][node.number]
        else:
            flat.append(node)
    places = {node: number for number, node in enumerate(flat)}
    for node, other in stands_for.items():  # which may stand for a further one, made before
        places[node] = places[other]
    return flat, places, [(places[node], places[reader]) for node, reader in folded]


def _operators(call: BlockCall) -> list[list[Any]]:
    """The nodes of each operator of a call, as they would be in a graph; the last has its value."""
    batch = BlockBatch([call])
    nodes: list[list[Any]] = []
    for k, operator in enumerate(call.program.operators):
        node = Members(batch, [k])[0]
        node.inputs = tuple(
            [nodes[x][-1] if x >= 0 else call.inputs[-1 - x] for x in operator.inputs]
        )
        traced = operator.node
        nodes.append(_unfolded(node, traced) if isinstance(traced, Folded) else [node])
    return nodes


def _unfolded(node: Any, traced: Folded) -> list[Any]:
    """The nodes that a folded one stands for: its input, which it leaves out, and the reader."""
    attributes = node.attributes()
    reader = traced.stands_for
    parts: list[Any] = [object.__new__(type(x)) for x in (reader.inputs[0], reader)]
    for part in parts:
        for name, value in attributes.items():
            if hasattr(type(part), name):
                setattr(part, name, value)
        part.graph, part.index = node.graph, node.index
    parts[0].inputs, parts[1].inputs = node.inputs, (parts[0],)
    return parts
