"""`Plan`: which nodes run together, and in which order. It holds no arrays and no device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dynbatch.errors import PlanError
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import signature_type


class BatchStep(NamedTuple):
    """Nodes of one signature that run as one kernel; positions within the scheduled nodes."""

    signature: int
    nodes: tuple[int, ...]


TypeGraph = tuple[frozenset[int], frozenset[tuple[int, int]]]


def _without_sources(edges: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """The edges left after repeatedly removing vertices that no edge leads to."""
    targets: dict[int, list[int]] = {}
    num_sources: dict[int, int] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(target)
        num_sources[target] = num_sources.get(target, 0) + 1
    gone = [source for source in targets if source not in num_sources]
    for source in gone:  # grows on the way
        for target in targets.get(source, ()):
            num_sources[target] -= 1
            if not num_sources[target]:
                gone.append(target)
    left = set(targets).difference(gone)
    return [edge for edge in edges if edge[0] in left]


@dataclass(frozen=True)
class Structure:
    """A policy's view of some nodes, which have numbers in creation order.

    Creation order is a topological order: a node comes after its inputs.

    Attributes:
        signatures: of each node an integer; nodes of equal signatures may share a batch.
        inputs:     of each node the positions of its inputs, without those that have a value.
    """

    signatures: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.signatures)

    def batch(self, nodes: Iterable[int]) -> BatchStep:
        """A batch of the nodes at these positions, all of one signature: what a policy yields.

        Raises:
            PlanError: there are none, or one is not a position.
        """
        members = tuple(nodes)
        if not members or not all([0 <= node < len(self) for node in members]):
            raise PlanError(
                f"batch({list(members)}): a batch holds nodes of the structure.\n"
                f"  rule: nodes are known by their positions, from 0 to {len(self) - 1}\n"
                "  fix:  yield structure.batch(nodes) with at least one position"
            )
        return BatchStep(self.signatures[members[0]], members)

    def depths(self) -> list[int]:
        """Longest path from a node without inputs to each node."""
        depths: list[int] = []
        for inputs in self.inputs:
            depth = 0
            for i in inputs:
                if depths[i] >= depth:
                    depth = depths[i] + 1
            depths.append(depth)
        return depths

    def own_chains(self) -> list[int]:
        """The most nodes of its signature on a path that starts at it, for each node.

        Cost: O(nodes + inputs · signatures that a path can meet twice).
        """
        # A path can meet those twice that are on a cycle of the graph of types, or between two.
        cyclic = _without_sources([(t, s) for s, t in _without_sources(self.type_graph()[1])])
        recurring = {signature for edge in cyclic for signature in edge}
        chains: list[dict[int, int]] = [{} for _ in self.signatures]
        lengths = [1] * len(chains)
        for node in range(len(chains) - 1, -1, -1):
            signature = self.signatures[node]
            if signature not in recurring:
                continue
            chain, chains[node] = chains[node], {}  # no reader is left: its room is free
            lengths[node] = chain[signature] = chain.get(signature, 0) + 1
            for i in self.inputs[node]:
                if self.signatures[i] in recurring:
                    above = chains[i]
                    for reached, length in chain.items():
                        if length > above.get(reached, 0):
                            above[reached] = length
        return lengths

    def longest_chains(self) -> dict[int, int]:
        longest: dict[int, int] = {}
        for signature, chain in zip(self.signatures, self.own_chains(), strict=True):
            longest[signature] = max(longest.get(signature, 0), chain)
        return longest

    def type_graph(self) -> TypeGraph:
        """The signatures, and as edges (signature, signature of a node that reads such a node).

        Mini-batches of one network have one type graph, whatever their sentences.
        """
        signatures = self.signatures
        edges = [
            (signatures[i], signature)
            for signature, inputs in zip(signatures, self.inputs, strict=True)
            for i in inputs
        ]
        return frozenset(signatures), frozenset(edges)


@dataclass(frozen=True)
class Plan:
    """Batch steps in order. `str(plan)` prints it; equal plans compare equal.

    Args:
        part: which part of its run it is, from 0, where a mini-batch runs in parts.
    """

    structure: Structure
    steps: tuple[BatchStep, ...]
    policy: str
    part: int = 0

    def validate(self, label: Callable[[int], str] = "node {}".format) -> None:
        """Check what the policy returned.

        Args:
            label: what an error calls the node at a position.

        Raises:
            PlanError: not every node runs once, after its inputs, in batches of one signature.
        """
        done: set[int] = set()
        for number, step in enumerate(self.steps):
            if not isinstance(step, BatchStep):
                raise self._fault(f"batch {number} is {step!r}", "yield structure.batch(nodes)")
            for node in step.nodes:
                if self.structure.signatures[node] != step.signature:
                    raise self._fault(
                        f"batch {number}: {label(node)} has another signature than the batch",
                        "gather the nodes of a batch by structure.signatures[node]",
                    )
                missing = [i for i in self.structure.inputs[node] if i not in done]
                if missing:
                    raise self._fault(
                        f"batch {number}: {label(node)} runs before {label(missing[0])}, its input",
                        "take a node when all of structure.inputs[node] are in earlier batches",
                    )
            before = len(done)
            done.update(step.nodes)
            if len(done) < before + len(step.nodes):
                raise self._fault(
                    f"batch {number}: one of {', '.join(map(label, step.nodes[:8]))} runs twice",
                    "remove the nodes of a batch from the rest once it has been yielded",
                )
        if len(done) < len(self.structure):
            first = next(node for node in range(len(self.structure)) if node not in done)
            raise self._fault(
                f"{len(self.structure) - len(done)} nodes never run; the first is {label(first)}",
                "yield batches until all of range(len(structure)) are in one",
            )

    def _fault(self, problem: str, fix: str) -> PlanError:
        return PlanError(
            f"policy {self.policy!r}: {problem}.\n"
            "  rule: a policy yields every node once, after its inputs, in batches of one "
            f"signature\n  fix:  {fix}"
        )

    @cached_property
    def longest_chains(self) -> dict[int, int]:
        """The most nodes of each signature on a path: as many batches it needs at least."""
        return self.structure.longest_chains()

    @property
    def lower_bound(self) -> int:
        """No schedule needs fewer batches: per signature its longest chain, summed.

        Source: Chen et al. 2023 (ED-Batch), arXiv:2302.03851, section 3.
        """
        return sum(self.longest_chains.values())

    @cached_property
    def nodes_by_type(self) -> dict[type[Node], Counter[int]]:
        """The number of nodes by signature, for each node type."""
        counts: dict[type[Node], Counter[int]] = {}
        for step in self.steps:
            of_type = counts.setdefault(signature_type(step.signature), Counter())
            of_type[step.signature] += len(step.nodes)
        return counts

    @cached_property
    def stages(self) -> list[tuple[int, ...]]:
        """Positions of consecutive steps that do not read each other, and so may run at once."""
        stages: list[list[int]] = []
        members: set[int] = set()
        for number, step in enumerate(self.steps):
            if stages and not any(
                i in members for node in step.nodes for i in self.structure.inputs[node]
            ):
                stages[-1].append(number)
            else:
                stages.append([number])
                members = set()
            members.update(step.nodes)
        return [tuple(stage) for stage in stages]

    def __str__(self) -> str:
        head = (
            f"plan by {self.policy}: {len(self.structure)} nodes in {len(self.steps)} batches "
            f"(lower bound {self.lower_bound})"
        )
        rows = [
            f"  {number:>4}  {signature_type(step.signature).__name__:<20} x {len(step.nodes)}"
            for number, step in enumerate(self.steps)
        ]
        return "\n".join([head, *rows])
