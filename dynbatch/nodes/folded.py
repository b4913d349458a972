"""`Folded`: a node that replaces another one in a run, and skips that one's input."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation


def _of_node(name: str) -> Any:
    """An attribute that a folded node has in common with the node it stands for."""

    def store(folded: Folded, value: object) -> None:
        setattr(folded.stands_for, name, value)

    return property(attrgetter(f"stands_for.{name}"), store)


class Folded(Operation):
    """Base of types that compute the value of a node from the inputs of that node's input.

    It is made for one run, where nobody else wants that input (see `batcher.schedule.folds`), and
    is none of the graph's nodes. Its value is that of the node it stands for, and lies where that
    node's value lies.

    Args:
        stands_for: the node.
        inputs:     the nodes that are read instead of its inputs.
    """

    __slots__ = ("stands_for",)
    stands_for: Operation

    def __init__(self, stands_for: Operation, *inputs: Node, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)
        self.stands_for = stands_for
        self.inputs = inputs
        self.graph, self.index, self.phase = stands_for.graph, stands_for.index, stands_for.phase
        self.ndim, self.rows, self.width = stands_for.ndim, stands_for.rows, stands_for.width
        self.ragged = stands_for.ragged
        self.sig = self.signature()

    _block = _of_node("_block")
    _position = _of_node("_position")
    _start = _of_node("_start")
