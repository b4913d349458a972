"""Random streams and sentence numbers of nodes, derived from the graph's structure on demand."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from dynbatch.nodes.node import Node


class LateNodes(Protocol):
    """A stand-in, in a graph's list, for nodes that nobody has asked for yet."""

    def enter_keys(self, streams: RandomStreams) -> None:
        """Enter the keys of these nodes, none of which becomes one.

        Those of what was made before have been entered, or can be asked for.
        """

    def number_at(self, index: int) -> int:
        """The greater number under which the key of the node with this index was entered."""


class RandomStreams:
    """Gives each node a 32-bit stream number for its random draws.

    The number depends on the graph's seed, on the content of the sources the node descends from and
    on the operations between; never on its index. So dropout masks stay what they are when other
    sentences join, leave or change places. Nodes with the same history (dropout applied twice to
    one value) are told apart by the order of their creation.

    Args:
        nodes:    of the graph, by index.
        index_of: tells the index of a node that is told by a greater number, as some are in
            `Node.indices_read`.

    Attributes:
        keys: of nodes by index, as far as somebody asked for them: what a stream follows from.
            Those of late nodes stand under their greater numbers.
    """

    def __init__(
        self, seed: int, nodes: Sequence[Node | LateNodes], index_of: Callable[[int], int]
    ) -> None:
        self._seed = seed
        self._nodes = nodes
        self._index_of = index_of
        self._first = 0  # of the nodes that have not been searched for late ones
        self.keys: dict[int, int] = {}
        self._counts: dict[tuple[int, int | str | None], int] = {}

    def of(self, node: Node, example: int | str | None = None) -> int:
        """The node's stream number.

        Args:
            example: the key of the example that it belongs to. Nodes with the same history are told
                apart by it, and only those of one example by their order.
        """
        base = self.key(node.index)
        count = self._counts.get((base, example), 0)
        self._counts[base, example] = count + 1
        suffix = "" if example is None else f",{example!r}"
        return zlib.crc32(f"{self._seed},{base},{count}{suffix}".encode())

    def key(self, index: int) -> int:
        """The key of the node with this index: a hash of all that it descends from."""
        keys, nodes = self.keys, self._nodes
        if index in keys:
            return keys[index]
        missing: dict[int, tuple[Node, list[int]]] = {}
        waiting = [index]
        for other in waiting:  # grows as it goes
            if other in keys or other in missing:
                continue
            node = nodes[other]
            if isinstance(node, Node):
                read = node.indices_read()
                if read and max(read) >= len(nodes):
                    read = [k if k in keys or k < len(nodes) else self._resolve(k) for k in read]
                missing[other] = node, read
                for k in read:
                    if k not in keys:
                        waiting.append(k)
            else:
                number = node.number_at(other)
                if number not in keys:
                    self._enter_late_keys()
                keys[other] = keys[number]
        for other in sorted(missing):  # creation order: inputs come first
            node, read = missing[other]
            start = zlib.crc32(node.content())
            keys[other] = key_of(node.stream_name, [keys[k] for k in read], start)
        return keys[index]

    def _resolve(self, number: int) -> int:
        """The index of a call's node; its number if it is late, and its key is now entered."""
        index = self._index_of(number)
        if isinstance(self._nodes[index], Node):
            return index
        self._enter_late_keys()
        return number

    def _enter_late_keys(self) -> None:
        """Enter those of all late nodes by now: each reads those before it."""
        end = len(self._nodes)
        for late in dict.fromkeys(self._nodes[self._first : end]):  # few stand for many
            if not isinstance(late, Node):
                late.enter_keys(self)
        self._first = end  # at last: after an interrupt they are entered again


def key_of(name: str, read: list[int], start: int = 0) -> int:
    """The key of a node from its `stream_name`, the keys of its inputs, and a hash of `content`."""
    # Written out where it is one number, since most nodes have one input.
    numbers = f"[{read[0]}]" if len(read) == 1 else read
    return zlib.crc32(f"{name}{numbers}".encode(), start)


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
