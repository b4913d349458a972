"""Random streams and sentence numbers of nodes, derived from the graph's structure on demand."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dynbatch.nodes.node import Node


class Ancestor(NamedTuple):
    """The part of a node that random streams look at.

    Attributes:
        name:    the `stream_name` of its type.
        content: bytes that tell it from others of its type and inputs.
        read:    the indices of its inputs.
    """

    name: str
    content: bytes
    read: list[int]


class LateNodes(Protocol):
    """A stand-in, in a graph's list, for nodes that nobody has asked for yet."""

    def ancestor(self, index: int) -> Ancestor:
        """The node with this index, which does not become one."""


class RandomStreams:
    """Gives each node a 32-bit stream number for its random draws.

    The number depends on the graph's seed, on the content of the sources the node descends from and
    on the operations between; never on its index. So dropout masks stay what they are when other
    sentences join, leave or change places. Nodes with the same history (dropout applied twice to
    one value) are told apart by the order of their creation.

    Args:
        nodes: of the graph, by index.
    """

    def __init__(self, seed: int, nodes: Sequence[Node | LateNodes]) -> None:
        self._seed = seed
        self._nodes = nodes
        self._keys: dict[int, int] = {}
        self._counts: dict[tuple[int, int | str | None], int] = {}

    def of(self, node: Node, example: int | str | None = None) -> int:
        """The node's stream number.

        Args:
            example: the key of the example that it belongs to. Nodes with the same history are told
                apart by it, and only those of one example by their order.
        """
        base = self._key(node)
        count = self._counts.get((base, example), 0)
        self._counts[base, example] = count + 1
        suffix = "" if example is None else f",{example!r}"
        return zlib.crc32(f"{self._seed},{base},{count}{suffix}".encode())

    def _key(self, node: Node) -> int:
        keys, nodes = self._keys, self._nodes
        known = keys.get(node.index)
        if known is not None:
            return known
        missing: dict[int, Ancestor] = {}
        waiting = [node.index]
        while waiting:
            index = waiting.pop()
            if index not in keys and index not in missing:
                other = nodes[index]
                missing[index] = ancestor = (
                    Ancestor(other.stream_name, other.content(), other.indices_read())
                    if isinstance(other, Node)
                    else other.ancestor(index)
                )
                waiting += ancestor.read
        for index in sorted(missing):  # creation order: inputs come first
            name, content, read = missing[index]
            # Written out where it is one number, since most nodes have one input.
            numbers = f"[{keys[read[0]]}]" if len(read) == 1 else [keys[k] for k in read]
            start = zlib.crc32(content) if content else 0
            keys[index] = zlib.crc32(f"{name}{numbers}".encode(), start)
        return keys[node.index]


class Sentences:
    """The connected parts of a graph, numbered in order of creation.

    Parameters as values are shared by all sentences, so they do not connect anything; nor does a
    node that reads scalars only: the losses of all sentences meet in one.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        parent: dict[int, int] = {}

        def find(index: int) -> int:
            while parent[index] != index:
                parent[index] = parent[parent[index]]
                index = parent[index]
            return index

        for other in nodes:
            parent[other.index] = other.index
            if not (_joins_scalars(other) or other.joins_sentences):
                for x in other.inputs:
                    if not x.is_shared:
                        parent[find(other.index)] = find(x.index)
        self._find = find
        self._roots: dict[int, int] = {}
        for other in nodes:
            if not (other.is_shared or _joins_scalars(other) or other.joins_sentences):
                self._roots.setdefault(find(other.index), len(self._roots))

    def __len__(self) -> int:
        return len(self._roots)

    def of(self, node: Node) -> int | None:
        """The number of the sentence that `node` belongs to.

        Returns:
            None for what belongs to several sentences or to none, or is new and reads nothing.
        """
        if node.joins_sentences:
            return None
        find, roots = self._find, self._roots
        if getattr(node, "index", None) is None:
            return roots.get(find(node.inputs[0].index)) if node.inputs else None
        if not _joins_scalars(node):
            return roots.get(find(node.index))
        read = {find(x.index) for x in node.inputs if x.inputs or x.is_sentence}
        return roots.get(read.pop()) if len(read) == 1 else None


def _joins_scalars(node: Node) -> bool:
    """Whether a node reads scalars only, or is a scalar input."""
    if not node.inputs:
        return node.ndim == 0 and not node.is_sentence
    return all([x.ndim == 0 for x in node.inputs])
