"""Trees given as arrays of numbers: checks, and an order to compute them in.

No recursion: a tree may be as deep as it has nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.errors import ShapeError
from dynbatch.nodes.arguments import as_ids, not_a_node
from dynbatch.nodes.node import Node

ROOT = -1
"""The head of a tree's root."""


class Tree(NamedTuple):
    """children: of each node, in order of their numbers · order: all nodes, children first."""

    children: list[list[int]]
    order: list[int]

    @property
    def root(self) -> int:
        return self.order[-1]


def tree_of_heads(what: str, xs: Node, heads: ArrayLike) -> Tree:
    """The tree in which node t, row t of xs (T, D), hangs from `heads[t]`, and one from `ROOT`.

    Raises:
        ShapeError: xs is not a matrix of at least one row, or the heads are not those of one tree:
            not T of them, not a node, no root or several, or a cycle, which is named.
    """
    count = _count(what, xs)
    listed: list[int] = as_ids(what, heads).tolist()
    if len(listed) != count:
        raise _wrong(
            f"{what}: {len(listed)} heads for {count} rows",
            "one head for each row of xs",
            "give a sentence's own rows and heads",
        )
    children: list[list[int]] = [[] for _ in listed]
    for node, head in enumerate(listed):
        if head == ROOT:
            continue
        if not 0 <= head < count:
            raise _wrong(
                f"{what}: node {node} has head {head}",
                f"0 <= head < {count}, or {ROOT} for the root",
                "in CoNLL-U heads count from 1, and 0 is the root's: subtract 1",
            )
        children[head].append(node)
    _require_one_root(what, [node for node, head in enumerate(listed) if head == ROOT])
    return Tree(children, _bottom_up(what, listed, children))


def _require_one_root(what: str, roots: Sequence[int]) -> None:
    if len(roots) != 1:
        subject = f"nodes {_few(roots)} have" if roots else "no node has"
        raise _wrong(
            f"{what}: {subject} head {ROOT}",
            f"exactly one node is the root, with head {ROOT}",
            "take the trees of a forest one by one, or add a node that heads them all"
            if roots
            else "in CoNLL-U heads count from 1, and 0 is the root's: subtract 1",
        )


def _bottom_up(what: str, heads: Sequence[int], children: Sequence[Sequence[int]]) -> list[int]:
    missing = [len(of) for of in children]
    order = [node for node, count in enumerate(missing) if count == 0]
    for node in order:  # grows as it goes
        head = heads[node]
        if head != ROOT:
            missing[head] -= 1
            if missing[head] == 0:
                order.append(head)
    if len(order) < len(heads):
        raise _wrong(
            f"{what}: nodes {_few(_cycle(heads, missing))} are a cycle",
            "every node's head, its head and so on lead to the root",
            "change the head of one of them",
        )
    return order


def _cycle(heads: Sequence[int], missing: Sequence[int]) -> list[int]:
    """One of the cycles: what still waits for children lies on one, and so does its head."""
    start = next(node for node, count in enumerate(missing) if count)
    cycle = [start]
    while heads[cycle[-1]] != start:
        cycle.append(heads[cycle[-1]])
    return cycle


def checked_pairs(what: str, xs: Node, pairs: ArrayLike) -> list[tuple[int, int]]:
    """The inner nodes of a binary tree whose leaves are the T rows of xs, bottom-up.

    Args:
        pairs: (T - 1, 2) integers: inner node k is number T + k and joins two nodes of smaller
            numbers, (left, right). The last is the root; every other node is joined once.

    Raises:
        ShapeError: xs is not a matrix of at least one row, or the pairs are not those of one tree.
    """
    count = _count(what, xs)
    checked = _as_pairs(what, pairs, count)
    joined = [False] * (count + len(checked))
    for k, pair in enumerate(checked):
        for node in pair:
            if not 0 <= node < count + k:
                raise _wrong(
                    f"{what}: pair {k}, {pair}, joins node {node}",
                    f"pair {k} is node {count + k} and joins nodes 0 … {count + k - 1}",
                    "list the pairs bottom-up: leaves are 0 … T - 1, pair j is node T + j",
                )
            if joined[node]:
                raise _wrong(
                    f"{what}: pair {k}, {pair}, joins node {node} a second time",
                    "every node but the last has one parent",
                    f"what pair j joined is node {count} + j",
                )
            joined[node] = True
    return checked


def _as_pairs(what: str, pairs: Any, count: int) -> list[tuple[int, int]]:
    sizes = [np.size(pair) for pair in pairs]
    if sizes != [2] * (count - 1):
        odd = next((f", one of {size} numbers" for size in sizes if size != 2), "")
        raise _wrong(
            f"{what}: {len(sizes)} pairs{odd} for {count} leaves",
            f"a binary tree of T leaves has T - 1 pairs (left, right), here {count - 1}",
            "give one pair for each inner node, of one tree alone",
        )
    flat = as_ids(what, [node for pair in pairs for node in pair]).tolist() if sizes else []
    return list(zip(flat[::2], flat[1::2], strict=True))


def _count(what: str, xs: object) -> int:
    """Rows of xs, if it can be a tree's nodes."""
    if not isinstance(xs, Node):
        raise not_a_node(what, xs)
    if xs.ndim != 2 or xs.rows == 0:
        raise _wrong(
            f"{what}: xs has shape {xs.shape}",
            "a tree's nodes are the rows of a matrix (T, D), T >= 1",
            "leave out sentences without tokens; F.unsqueeze one vector",
        )
    return xs.rows


def _few(nodes: Sequence[int], most: int = 8) -> str:
    listed = ", ".join([str(node) for node in nodes[:most]])
    return f"{listed}, … ({len(nodes)} of them)" if len(nodes) > most else listed


def _wrong(problem: str, rule: str, fix: str) -> ShapeError:
    return ShapeError.at_caller(f"{problem}.\n  rule: {rule}\n  fix:  {fix}")
