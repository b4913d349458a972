"""Blocks written over others: an output over an input that nobody reads afterwards, and so on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dynbatch.batcher.steps.step import StepRun
from dynbatch.memory import Interval


class InPlace:
    """Finds pairs of blocks, one of which ends in the very kernel that writes the other.

    Whether a node type bears that is its own to say: `inplace_forward`, `inplace_backward`.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Interval, Interval]] = []
        self._readers: dict[tuple[int, int], int] = {}

    def forward(self, step: StepRun, time: int) -> None:
        """A step has been planned: its output may take the room of an input."""
        read = {id(block.interval) for source in step.sources for block in source.blocks}
        for interval in read:
            key = interval, time
            self._readers[key] = self._readers.get(key, 0) + 1
        if not step.node_type.inplace_forward:
            return
        output = step.block.interval
        assert output is not None
        for source in step.sources:
            place = source.blocks[0].interval if source.covers else source.packing
            if place is not None and source.size == step.block.size:
                self._pairs.append((place, output))

    def backward(self, step: StepRun) -> None:
        """The last gradient that a step makes may take the room of its output's."""
        wanted = [
            (source.gradient_blocks[0], target)
            for source, target in zip(step.sources, step.targets, strict=True)
            if target is not None
        ]
        if not step.node_type.inplace_backward or not wanted:
            return
        block, target = wanted[-1]
        gradient = step.block.gradient_interval
        place = block.gradient_interval if target.direct else target.scratch
        if gradient is not None and place is not None and place.size == gradient.size:
            self._pairs.append((gradient, place))

    def share(self, intervals: Iterable[Interval]) -> tuple[list[Interval], list[list[Interval]]]:
        """The blocks as they are to be placed, and the chains of those that are one place.

        The first of each chain of blocks stands for all of it, from its first write to the last
        read of the last.
        """
        chain_of: dict[int, list[Interval]] = {}
        for old, new in self._pairs:
            chain = chain_of.get(id(old), [old])
            fits = old.last == new.first and old.alignment == new.alignment
            if fits and self._readers.get((id(old), old.last), 0) <= 1 and id(new) not in chain_of:
                if chain[-1] is old and old.size:
                    chain.append(new)
                    chain_of[id(old)] = chain_of[id(new)] = chain
        chains = {id(chain): chain for chain in chain_of.values()}
        placed = [interval for interval in intervals if id(interval) not in chain_of]
        for chain in chains.values():
            whole = replace(chain[0], last=chain[-1].last)
            placed.append(whole)
            chain.insert(0, whole)
        return placed, list(chains.values())
