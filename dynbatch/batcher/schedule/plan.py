"""`Plan`: which nodes run together, and in which order. It holds no arrays and no device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dynbatch.errors import PlanError
from dynbatch.nodes.base import signature_type


class BatchStep(NamedTuple):
    """Nodes of one signature that run as one kernel; positions within the scheduled nodes."""

    signature: int
    nodes: tuple[int, ...]


Kind = tuple[frozenset[int], frozenset[tuple[int, int]]]


def _without_sources(edges: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """The edges left when what nothing leads to has been taken away, again and again."""
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
    """All a policy sees: a signature and the inputs of each node, in creation order.

    Creation order is a topological order. Inputs that are already computed are left out.
    """

    signatures: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.signatures)

    def depths(self) -> list[int]:
        """Longest path from a node without inputs to each node."""
        depths: list[int] = []
        for inputs in self.inputs:
            depths.append(1 + max([depths[i] for i in inputs]) if inputs else 0)
        return depths

    def own_chains(self) -> list[int]:
        """For each node the most nodes of its own signature on a path that starts at it.

        Cost: O(nodes + inputs · signatures that a path can meet twice).
        """
        # A path can meet those twice that are on a cycle of the graph of types, or between two.
        cyclic = _without_sources([(t, s) for s, t in _without_sources(self.kind()[1])])
        recurring = {signature for edge in cyclic for signature in edge}
        chains: list[dict[int, int]] = [{} for _ in self.signatures]
        own = [1] * len(chains)
        for node in range(len(chains) - 1, -1, -1):
            signature = self.signatures[node]
            if signature not in recurring:
                continue
            chain, chains[node] = chains[node], {}  # no reader is left: its room is free
            own[node] = chain[signature] = chain.get(signature, 0) + 1
            for i in self.inputs[node]:
                if self.signatures[i] in recurring:
                    above = chains[i]
                    for kind, length in chain.items():
                        if length > above.get(kind, 0):
                            above[kind] = length
        return own

    def kind(self) -> Kind:
        """The signatures, and the graph of types: (signature, signature of a node that reads it).

        Mini-batches of one network are of one kind, whatever their sentences.
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

    def validate(self) -> None:
        """Raise `PlanError` unless every node runs once, after its inputs, with its own kind."""
        done: set[int] = set()
        for number, step in enumerate(self.steps):
            if len(set(step.nodes)) < len(step.nodes) or not done.isdisjoint(step.nodes):
                raise PlanError(f"step {number}: some node of {step.nodes} runs twice")
            for node in step.nodes:
                if self.structure.signatures[node] != step.signature:
                    raise PlanError(f"step {number}: node {node} has another signature")
                if not done.issuperset(self.structure.inputs[node]):
                    raise PlanError(f"step {number}: node {node} runs before its inputs")
            done.update(step.nodes)
        if len(done) != len(self.structure):
            raise PlanError(f"{len(self.structure) - len(done)} nodes never run")

    @cached_property
    def lower_bound(self) -> int:
        """No schedule needs fewer batches: per signature its longest chain, summed.

        Source: Chen et al. 2023 (ED-Batch), arXiv:2302.03851, section 3.
        """
        longest: dict[int, int] = {}
        for signature, chain in zip(
            self.structure.signatures, self.structure.own_chains(), strict=True
        ):
            longest[signature] = max(longest.get(signature, 0), chain)
        return sum(longest.values())

    @cached_property
    def stages(self) -> list[tuple[int, ...]]:
        """Positions of consecutive steps that do not read each other, and so may run at once."""
        found: list[list[int]] = []
        members: set[int] = set()
        for number, step in enumerate(self.steps):
            if found and not any(
                i in members for node in step.nodes for i in self.structure.inputs[node]
            ):
                found[-1].append(number)
            else:
                found.append([number])
                members = set()
            members.update(step.nodes)
        return [tuple(stage) for stage in found]

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
