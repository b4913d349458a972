"""`Frontier`: the ready nodes by signature, updated as batches are taken."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

from dynbatch.batcher.schedule.plan import Structure


class Frontier:
    """Ready nodes of a structure. Taking every batch costs O((nodes + inputs) · log nodes) in all.

    Attributes:
        ready:    signature -> its ready nodes; a signature without any is absent.
        priority: signature -> (average depth of its nodes that have not run, its first ready node),
                  for those in `ready`; neither changes until the signature is taken.
    """

    def __init__(self, structure: Structure) -> None:
        self._signatures = structure.signatures
        self._depths = structure.depths()
        self._readers: list[list[int]] = [[] for _ in self._depths]
        self._num_inputs = [len(inputs) for inputs in structure.inputs]
        for node, inputs in enumerate(structure.inputs):
            for i in inputs:
                self._readers[i].append(node)
        self._depth_of_all: dict[int, int] = {}
        pairs = zip(self._signatures, self._depths, strict=True)
        for (signature, depth), count in Counter(pairs).items():
            self._depth_of_all[signature] = self._depth_of_all.get(signature, 0) + depth * count
        self._count_of_all = Counter(self._signatures)
        self.restart()

    def restart(self) -> None:
        self._waiting = self._num_inputs.copy()
        self._total = self._depth_of_all.copy()
        self._count = self._count_of_all.copy()
        self.ready: dict[int, list[int]] = {}
        self.priority: dict[int, tuple[float, int]] = {}
        self._agenda: list[tuple[float, int, int]] = []
        self._release([node for node, count in enumerate(self._num_inputs) if not count])

    def take(self, signature: int) -> list[int]:
        """Run all ready nodes of a signature; return them in order of creation."""
        nodes = sorted(self.ready.pop(signature))
        self._total[signature] -= sum([self._depths[node] for node in nodes])
        self._count[signature] -= len(nodes)
        waiting = self._waiting
        released = []
        for node in nodes:
            for reader in self._readers[node]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    released.append(reader)
        self._release(released)
        return nodes

    def _release(self, nodes: list[int]) -> None:
        for node in nodes:
            signature = self._signatures[node]
            others = self.ready.get(signature)
            if others is not None:
                others.append(node)
                continue
            self.ready[signature] = [node]
            average = self._total[signature] / self._count[signature]
            self.priority[signature] = (average, node)
            heappush(self._agenda, (average, node, signature))

    def lowest(self) -> int:
        """The ready signature of lowest average depth; ties break on the first ready node."""
        signature = self._first_ready(self._agenda)
        assert signature is not None, "nothing is ready"
        return signature

    def _first_ready(self, heap: list[tuple[float, int, int]]) -> int | None:
        """The signature of the least entry that is not out of date."""
        while heap:
            _, first, signature = heap[0]
            # It was taken since, if the entry is out of date: a node becomes ready only once.
            if signature in self.ready and self.priority[signature][1] == first:
                return signature
            heappop(heap)
        return None


class BoundedFrontier(Frontier):
    """A frontier with the lower bound of the remaining batches, and the batches that lower it.

    The bound is, for each signature, the most of its nodes on a path, summed over signatures. A
    batch of a signature lowers it by 1 where every longest such path begins at a ready node, and by
    0 otherwise; so the batches of a plan exceed the bound by as many as do not lower it.
    """

    def __init__(self, structure: Structure) -> None:
        self._chains = structure.own_chains()
        self._nodes_of: dict[int, list[int]] = {}
        pairs = zip(structure.signatures, self._chains, strict=True)
        for (signature, chain), count in Counter(pairs).items():
            counts = self._nodes_of.setdefault(signature, [])
            counts.extend([0] * (chain - len(counts)))
            counts[chain - 1] += count
        super().__init__(structure)

    def restart(self) -> None:
        # signature -> at n - 1 its nodes, of those that have not run, that begin a chain of n.
        self._left = {signature: counts.copy() for signature, counts in self._nodes_of.items()}
        self._longest_ready = dict.fromkeys(self._left, 0)
        self._lowering: list[tuple[float, int, int]] = []
        super().restart()

    @property
    def bound(self) -> int:
        """The lower bound: no order runs the rest in fewer batches."""
        return sum([len(counts) for counts in self._left.values()])

    def lowers(self, signature: int) -> bool:
        return self._longest_ready[signature] == self._left[signature][-1]

    def take(self, signature: int) -> list[int]:
        left = self._left[signature]
        for node in self.ready[signature]:
            left[self._chains[node] - 1] -= 1
        while left and not left[-1]:
            left.pop()
        self._longest_ready[signature] = 0
        return super().take(signature)

    def _release(self, nodes: list[int]) -> None:
        super()._release(nodes)
        for node in nodes:
            signature = self._signatures[node]
            left = self._left[signature]
            if self._chains[node] == len(left):
                longest = self._longest_ready[signature] = self._longest_ready[signature] + 1
                if longest == left[-1]:  # its batch lowers the bound
                    heappush(self._lowering, (*self.priority[signature], signature))

    def lowest(self) -> int:
        """The signature of lowest depth, among those whose batch lowers the bound or else all."""
        signature = self._first_ready(self._lowering)
        return super().lowest() if signature is None else signature
