"""`Held`: the nodes of a graph that its program can still ask for.

CPython counts the references to each object. A graph refers to a node from its list of nodes and
from that of nodes that have not run, and a reader refers to it from its tuple of inputs. What is
counted beyond these is a variable, a list or a closure of the program, a name, or a table of the
library's: so whoever may ask for a value is seen, and a mistake can only be to keep one too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress
from operator import sub
from sys import getrefcount

from dynbatch.nodes.node import Node

SEEN = next(map(getrefcount, [object()])) - 1
"""References that are counted since an iterator shows the object."""


class Held:
    """The nodes that somebody beside the graph refers to, as it is now.

    Args:
        pending: nodes that have not run, in creation order.
        lists:   how many lists each of them is in: the graph's, that of its pending nodes, …

    Attributes:
        nodes:  those of them that are held.
        unread: those that none of them reads.
    """

    def __init__(self, pending: Sequence[Node], lists: int = 2) -> None:
        # Several passes in C take half the time of one loop in Python.
        self._pending = pending
        inputs = list(filter(None, [node.inputs for node in pending]))
        if max(map(getrefcount, inputs), default=0) > SEEN + 2:  # two nodes share a tuple
            inputs = list({id(read): read for read in inputs}.values())
        counts = list(map(getrefcount, pending))  # before anything here refers to a node
        # Each node once for itself, which makes the order that of `pending`, and for each reader.
        reads = Counter(chain(pending, chain.from_iterable(inputs))).values()
        beyond = map(sub, counts, reads)
        self.nodes = list(compress(pending, map((SEEN + lists).__le__, beyond)))
        self.unread = list(compress(pending, map((1).__eq__, reads)))

    def needs_all(self) -> bool:
        """Whether each node is held, or has a reader that is needed."""
        return {*self.nodes}.issuperset(self.unread)

    def staying(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes whose values must outlive a run: the program, or a later run, may read them.

        They are those that are held, those that wait for a later run to read them, and those of
        the run that are not among the pending: regions of calls, tokens of sentences, folded nodes.

        Args:
            nodes: of the run.
        """
        if nodes == self._pending:
            return self.nodes
        held = {*self.nodes}
        later: set[Node] = set()
        run = {node.index: node for node in nodes}
        for node in reversed(self._pending):
            if run.pop(node.index, None) is None and (node in held or node in later):
                later.update(node.inputs)
        return [*self.nodes, *later, *run.values()]
