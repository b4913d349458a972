"""Trees given as arrays of numbers: checks, and an order to compute them in.

No recursion: a tree may be as deep as it has nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.errors import ShapeError
from dynbatch.kernels.trees import Tree, bottom_up
from dynbatch.nodes.arguments import as_ids, not_a_node, same_ids
from dynbatch.nodes.node import Node

ROOT = -1
"""The head of a tree's root."""


def tree_of_heads(what: str, xs: Node, heads: ArrayLike) -> Tree:
    """The tree in which node t, row t of xs (T, D), hangs from `heads[t]`, and one from `ROOT`.

    Raises:
        ShapeError: xs is not a matrix of at least one row, or the heads are not those of one tree:
            not T of them, not a node, no root or several, or a cycle, which is named.
    """
    count = _count(what, xs)
    ids = same_ids(what, heads)
    tree = bottom_up(np.ascontiguousarray(ids)) if ids.size == count else None
    if tree is None:
        raise _no_tree(what, ids.tolist(), count)
    return tree


def _no_tree(what: str, heads: Sequence[int], count: int) -> ShapeError:
    """The error of heads that are not those of one tree of so many nodes."""
    if len(heads) != count:
        return _wrong(
            f"{what}: {len(heads)} heads for {count} rows",
            "one head for each row of xs",
            "give a sentence's own rows and heads",
        )
    for node, head in enumerate(heads):
        if not ROOT <= head < count:
            return _wrong(
                f"{what}: node {node} has head {head}",
                f"0 <= head < {count}, or {ROOT} for the root",
                "in CoNLL-U heads count from 1, and 0 is the root's: subtract 1",
            )
    roots = [node for node, head in enumerate(heads) if head == ROOT]
    if len(roots) != 1:
        return _not_one_root(what, roots)
    return _wrong(
        f"{what}: nodes {_few(_cycle(heads))} are a cycle",
        "every node's head, its head and so on lead to the root",
        "change the head of one of them",
    )


def _not_one_root(what: str, roots: Sequence[int]) -> ShapeError:
    subject = f"nodes {_few(roots)} have" if roots else "no node has"
    return _wrong(
        f"{what}: {subject} head {ROOT}",
        f"exactly one node is the root, with head {ROOT}",
        "take the trees of a forest one by one, or add a node that heads them all"
        if roots
        else "in CoNLL-U heads count from 1, and 0 is the root's: subtract 1",
    )


def _cycle(heads: Sequence[int]) -> list[int]:
    """One of the cycles: the first node whose heads do not lead to the root leads into it."""
    to_root: set[int] = {ROOT}
    for node in range(len(heads)):
        path: dict[int, None] = {}
        while node not in to_root and node not in path:
            path[node] = None
            node = heads[node]
        if node not in to_root:
            cycle = [*path]
            return cycle[cycle.index(node) :]
        to_root.update(path)
    return []


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
