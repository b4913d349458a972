"""Random streams and sentence numbers of nodes, derived from the graph's structure on demand."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from dynbatch.nodes.node import Node


class RandomStreams:
    """Gives each node a 32-bit stream number for its random draws.

    The number depends on the graph's seed, on the content of the sources the node descends from and
    on the operations between; never on its index. So dropout masks stay what they are when other
    sentences join, leave or change places. Nodes with the same history (dropout applied twice to
    one value) are told apart by the order of their creation.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
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
        keys = self._keys
        known = keys.get(node.index)
        if known is not None:
            return known
        missing = {node.index: node}
        stack = [node]
        while stack:
            for x in stack.pop().inputs:
                index = x.index
                if index not in keys and index not in missing:
                    missing[index] = x
                    stack.append(x)
        for index in sorted(missing):  # creation order: inputs come first
            source = missing[index]
            read = source.inputs
            # Written out where it is one number, since most nodes have one input.
            numbers = (
                f"[{keys[read[0].index]}]" if len(read) == 1 else [keys[x.index] for x in read]
            )
            content = source.content()
            start = zlib.crc32(content) if content else 0
            keys[index] = zlib.crc32(f"{source.stream_name}{numbers}".encode(), start)
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
