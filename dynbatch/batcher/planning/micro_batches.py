"""`MicroBatches`: divides a mini-batch into parts that run one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.blocks.call import BlockCall
from dynbatch.cells.calls.call import Call
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.stream import Sentences


class MicroBatches:
    """The sentences below a loss, and their division into parts.

    A loss can be split where, from it down to one node or more of each sentence, every node's
    backward needs no value: means, sums and scalings. Then the gradient of each sentence's loss is
    known before any of them is computed.

    Args:
        nodes: all of the graph.
        loss:  a scalar that has not been computed.
        alone: further nodes to compute, each with its sentence if the loss needs that.

    Attributes:
        reason: why the loss cannot be split, or "".
        largest: the number of the sentence with the largest values.
    """

    def __init__(self, nodes: Sequence[Node], loss: Node, alone: Sequence[Node] = ()) -> None:
        sentences = Sentences(nodes)
        targets: dict[int, list[Node]] = {}
        self.reason = ""
        seen = {loss.index}
        stack = [loss]
        while stack:
            node = stack.pop()
            sentence = sentences.of(node)
            if sentence is not None:
                targets.setdefault(sentence, []).append(node)
            elif not isinstance(node, Operation) or (
                node.inputs and (node.reads_values() or node.parameters())
            ):
                self.reason = (
                    f"{node.label()} joins sentences, and its gradient depends on its value"
                )
            for x in node.inputs if sentence is None else ():
                if x.index not in seen:
                    seen.add(x.index)
                    stack.append(x)
        if len(targets) < 2 and not self.reason:
            self.reason = "it has one sentence"
        others: dict[int, list[Node]] = {number: [] for number in targets}
        for node in alone:
            sentence = sentences.of(node)
            if sentence in others:
                others[sentence].append(node)
        sizes = dict.fromkeys(targets, 0)
        for node in nodes:
            number = sentences.of(node)
            if number in sizes:
                sizes[number] += _size(node)
        # The largest first: each goes to the part that has least so far.
        in_turn = sorted(targets, key=lambda n: (-sizes[n], n))
        self.largest = in_turn[0] if in_turn else 0
        self._targets = [(targets[n], others[n]) for n in in_turn]
        self._sizes = sorted(sizes.values(), reverse=True)

    def __len__(self) -> int:
        return 1 if self.reason else len(self._targets)

    def parts(self, count: int) -> list[tuple[list[Node], list[Node]]]:
        """The nodes to compute in each of `count` parts of about the same size.

        First those that the loss reads, then others.

        Source: Graham 1969, Bounds on Multiprocessing Timing Anomalies (largest first).
        """
        filled = [0] * count
        parts: list[tuple[list[Node], list[Node]]] = [([], []) for _ in range(count)]
        for (targets, others), size in zip(self._targets, self._sizes, strict=True):
            part = filled.index(min(filled))
            filled[part] += size
            parts[part][0].extend(targets)
            parts[part][1].extend(others)
        return [part for part in parts if part[0]]


def _size(node: Node) -> int:
    """Elements of a value; of a call, of all that it returns; of a block's call, of all inside."""
    if isinstance(node, Call):
        return sum(node.origin.widths)
    if isinstance(node, BlockCall):
        return node.elements
    return 0 if not isinstance(node, Operation) else node.rows * node.width
