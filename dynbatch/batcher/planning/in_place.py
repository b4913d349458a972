"""Finds blocks that can overwrite others: an output over an input that is not read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbatch.batcher.steps.block import BatchInput, Block
from dynbatch.batcher.steps.placement import GradientTarget, Placement
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.memory import Interval

NEVER = 1 << 61
"""After every stage."""


class InPlace:
    """Finds pairs of blocks such that the kernel that writes one reads the other for the last time.

    And gradients that are equal, as those of both terms of a sum: they share one place until one of
    them is added to, if nobody reads another by then. Whether a node type bears that is its own to
    say: `inplace_forward`, `inplace_backward`, `passes`. Blocks are rows of the plan's table.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[int, int]] = []
        self._equal: list[list[int]] = []
        self._added: dict[int, int] = {}
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
        table: Sequence[Interval],
    ) -> None:
        """Note that a step's last input gradient may take the place of its output's gradient."""
        if step.node_type.passes:
            self._equal.append(
                [
                    gradients[step.sources[position].blocks[0]]
                    for position in step.node_type.passes
                    if _is_whole(step.sources[position], targets[position])
                ]
            )
        if not step.node_type.inplace_backward:
            return
        for source, target in zip(reversed(step.sources), reversed(targets), strict=True):
            if target is not None:
                if target.direct and not _is_whole(source, target):
                    return
                row = gradients[source.gradient_blocks[0]] if target.direct else target.scratch
                gradient = gradients.get(step.block)
                if (
                    gradient is not None
                    and row is not None
                    and table[row].size == table[gradient].size
                ):
                    self._pairs.append((gradient, row))
                return

    def added(self, row: int, time: int) -> None:
        self._added.setdefault(row, time)

    def _shared(self, table: Sequence[Interval]) -> dict[int, list[int]]:
        """The rows of equal gradients that can share one place, by each of them."""
        shared: dict[int, list[int]] = {}
        for rows in self._equal:
            together = rows[:1]
            for row in rows[1:]:
                others = [other for other in together if other != row]
                apart = [
                    table[a].last >= self._added.get(b, NEVER)
                    for other in others
                    for a, b in ((row, other), (other, row))
                ]
                if len(others) == len(together) and not any(apart):
                    together.append(row)
            if len(together) > 1 and table[rows[0]].size:
                shared.update(dict.fromkeys(together, together))
        return shared

    def chains(self, table: Sequence[Interval]) -> list[list[int]]:
        """Chains of rows that share one place: each ends as the next one begins, or equals it."""
        equal = self._shared(table)
        chain_of: dict[int, list[int]] = {}
        for rows in equal.values():
            chain_of.update(dict.fromkeys(rows, rows))
        for old, new in self._pairs:
            block, last = table[old], table[old].last
            if last != table[new].first or block.alignment != table[new].alignment:
                continue
            if self._readers.get((old, last), 0) > 1 or not block.size:
                continue
            follows = equal.get(new, [new])
            before = equal.get(old, [old])
            if any([table[row].last >= last for row in before if row != old]):
                continue
            chain = chain_of.get(old, [old])
            if chain[-len(before) :] == before and chain_of.get(new, follows) == follows:
                chain = chain + follows
                chain_of.update(dict.fromkeys(chain, chain))
        return list({id(chain): chain for chain in chain_of.values()}.values())


def _is_whole(source: BatchInput, target: GradientTarget | None) -> bool:
    return target is not None and target.direct and not target.adds and source.covers
