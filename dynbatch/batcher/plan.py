"""`Plan`: which nodes run together, and in which order. It holds no arrays and no device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dynbatch.errors import PlanError
from dynbatch.nodes.base import signature_type


class BatchStep(NamedTuple):
    """Nodes of one signature that run as one kernel; positions within the scheduled nodes."""

    signature: int
    nodes: tuple[int, ...]


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


@dataclass(frozen=True)
class Plan:
    """Batch steps in order. `str(plan)` prints it; equal plans compare equal."""

    structure: Structure
    steps: tuple[BatchStep, ...]
    policy: str

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

    @property
    def lower_bound(self) -> int:
        """No schedule needs fewer batches: per signature its longest chain, summed.

        Source: Chen et al. 2023 (ED-Batch), arXiv:2302.03851, section 3.
        """
        chains: list[dict[int, int]] = []
        longest: dict[int, int] = {}
        for signature, inputs in zip(self.structure.signatures, self.structure.inputs, strict=True):
            chain: dict[int, int] = {}
            for i in inputs:
                for kind, length in chains[i].items():
                    if length > chain.get(kind, 0):
                        chain[kind] = length
            chain[signature] = chain.get(signature, 0) + 1
            longest[signature] = max(longest.get(signature, 0), chain[signature])
            chains.append(chain)
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
