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
    say: `inplace_forward`, `inplace_backward`, `passes`.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Interval, Interval]] = []
        self._equal: list[list[Interval]] = []
        self._added: dict[Interval, int] = {}
        self._readers: dict[tuple[Interval, int], int] = {}

    def forward(
        self, step: StepRun, time: int, values: Mapping[Block, Interval], placement: Placement
    ) -> None:
        """Note a planned step: its output may take the place of an input."""
        for one in {values[b] for source in step.sources for b in source.blocks if b in values}:
            self._readers[one, time] = self._readers.get((one, time), 0) + 1
        if not step.node_type.inplace_forward:
            return
        for source, packing in zip(step.sources, placement.packings, strict=True):
            read = values.get(source.blocks[0]) if source.covers else packing
            if read is not None and source.size == step.block.size:
                self._pairs.append((read, placement.blocks[0]))

    def backward(
        self,
        step: StepRun,
        targets: Sequence[GradientTarget | None],
        gradients: Mapping[Block, Interval],
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
                written = gradients[source.gradient_blocks[0]] if target.direct else target.scratch
                gradient = gradients.get(step.block)
                if gradient and written and gradient.size == written.size:
                    self._pairs.append((gradient, written))
                return

    def added(self, gradient: Interval, time: int) -> None:
        self._added.setdefault(gradient, time)

    def _shared(self) -> dict[Interval, list[Interval]]:
        """Equal gradients that can share one place, by each of them."""
        shared: dict[Interval, list[Interval]] = {}
        for gradients in self._equal:
            together = gradients[:1]
            for gradient in gradients[1:]:
                others = [other for other in together if other is not gradient]
                apart = [
                    a.last >= self._added.get(b, NEVER)
                    for other in others
                    for a, b in ((gradient, other), (other, gradient))
                ]
                if len(others) == len(together) and not any(apart):
                    together.append(gradient)
            if len(together) > 1 and gradients[0].size:
                shared.update(dict.fromkeys(together, together))
        return shared

    def chains(self) -> list[list[Interval]]:
        """Chains of blocks that share one place: each ends as the next one begins, or equals it."""
        equal = self._shared()
        chain_of: dict[Interval, list[Interval]] = {}
        for gradients in equal.values():
            chain_of.update(dict.fromkeys(gradients, gradients))
        for old, new in self._pairs:
            if old.last != new.first or old.alignment != new.alignment:
                continue
            if self._readers.get((old, old.last), 0) > 1 or not old.size:
                continue
            follows = equal.get(new, [new])
            before = equal.get(old, [old])
            if any([block.last >= old.last for block in before if block is not old]):
                continue
            chain = chain_of.get(old, [old])
            if chain[-len(before) :] == before and chain_of.get(new, follows) == follows:
                chain = chain + follows
                chain_of.update(dict.fromkeys(chain, chain))
        return list({id(chain): chain for chain in chain_of.values()}.values())


def _is_whole(source: BatchInput, target: GradientTarget | None) -> bool:
    return target is not None and target.direct and not target.adds and source.covers
