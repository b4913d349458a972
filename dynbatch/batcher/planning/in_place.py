"""Finds blocks that can overwrite others: an output over an input that is not read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.placement import GradientTarget, Placement
from dynbatch.batcher.steps.step_run import StepRun


class InPlace:
    """Finds pairs of blocks such that the kernel that writes one reads the other for the last time.

    Whether a node type bears that is its own to say: `inplace_forward`, `inplace_backward`. Blocks
    are rows of the plan's table.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[int, int]] = []
        self._readers: dict[tuple[int, int], int] = {}

    def forward(
        self, step: StepRun, time: int, values: Mapping[Block, int], placement: Placement
    ) -> None:
        """Note a planned step: its output may take the place of an input."""
        for read in {values[b] for source in step.sources for b in source.blocks if b in values}:
            self._readers[read, time] = self._readers.get((read, time), 0) + 1
        if not step.node_type.inplace_forward:
            return
        for source, packing in zip(step.sources, placement.packings, strict=True):
            row = values.get(source.blocks[0]) if source.covers else packing
            if row is not None and source.size == step.block.size:
                self._pairs.append((row, placement.blocks[0]))

    def backward(
        self,
        step: StepRun,
        targets: Sequence[GradientTarget | None],
        gradients: Mapping[Block, int],
        sizes: Sequence[int],
    ) -> None:
        """Note that a step's last input gradient may take the place of its output's gradient."""
        if not step.node_type.inplace_backward:
            return
        for source, target in zip(reversed(step.sources), reversed(targets), strict=True):
            if target is not None:
                row = gradients[source.gradient_blocks[0]] if target.direct else target.scratch
                gradient = gradients.get(step.block)
                if gradient is not None and row is not None and sizes[row] == sizes[gradient]:
                    self._pairs.append((gradient, row))
                return

    def chains(
        self,
        sizes: Sequence[int],
        firsts: Sequence[int],
        lasts: Sequence[int],
        alignments: Sequence[int],
    ) -> list[list[int]]:
        """Chains of rows that share one place: each ends as the next one begins."""
        chain_of: dict[int, list[int]] = {}
        for old, new in self._pairs:
            if lasts[old] != firsts[new] or alignments[old] != alignments[new] or new in chain_of:
                continue
            if self._readers.get((old, lasts[old]), 0) > 1 or not sizes[old]:
                continue
            chain = chain_of.get(old, [old])
            if chain[-1] == old:
                chain.append(new)
                chain_of[old] = chain_of[new] = chain
        return list({id(chain): chain for chain in chain_of.values()}.values())
