"""Trees given by the head of each node: an order to compute them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat
from dynbatch.kernels.runtime.dispatch import HOST, kernel


class Tree(NamedTuple):
    """A tree of T nodes.

    order:    (T,) all nodes, children before their head; the root is the last.
    counts:   (T,) the children of each, in this order.
    children: (T - 1,) their places in the order, those of one head by their numbers.
    parents:  (T - 1,) the head of each of them.
    """

    order: Array
    counts: Array
    children: Array
    parents: Array

    @classmethod
    def of_children(cls, order: Sequence[int], children: Sequence[Sequence[int]]) -> Tree:
        """The tree of an order, and of the children of each node by its number."""
        positions = {node: k for k, node in enumerate(order)}
        counts = [len(children[node]) for node in order]
        places = [positions[child] for node in order for child in children[node]]
        nodes, sizes, read = [np.array(each, np.int64) for each in (order, counts, places)]
        return cls(nodes, sizes, read, repeat(nodes, sizes))

    @property
    def root(self) -> int:
        return int(self.order[-1])


@kernel(c=HOST)
def bottom_up(heads: Array) -> Tree | None:
    """The tree in which node t hangs from `heads[t]`, and the root from -1; None if it is none.

    Leaves come first, by their numbers, and every other node behind the last of its children.

    Args:
        heads: (T,) int64, T > 0.
    """
    listed = heads.tolist()
    children: list[list[int]] = [[] for _ in listed]
    for node, head in enumerate(listed):
        if not -1 <= head < len(listed):
            return None
        if head >= 0:
            children[head].append(node)
    missing = [*map(len, children)]
    order = [node for node, count in enumerate(missing) if not count]
    for node in order:  # grows as it goes
        head = listed[node]
        if head >= 0:
            missing[head] -= 1
            if not missing[head]:
                order.append(head)
    is_tree = len(order) == len(listed) and listed.count(-1) == 1
    return Tree.of_children(order, children) if is_tree else None
