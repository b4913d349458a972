"""`Narrowing`: the values of a run that are rounded to bfloat16, and those that lie in 16 bits.

In a graph with `precision="bfloat16"` a value is rounded right after the kernel that wrote it, and
kernels read and write float32. So where a value lies in between is the plan's choice, and no bit
depends on it: what backward reads is cut to its upper half when forward has written it, and becomes
float32 again before the first backward that reads it.

float32 stay: parameters, and what is moved from them; the results of types that are `exact`
(losses, sums, inner products), numbers (values without dimensions) that are computed, and what is
computed element by element, or moved, from these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dynbatch.batcher.steps.alias import AliasStep
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.placement import Left
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.nodes.operation import Elementwise
from dynbatch.nodes.sources import ParameterNode

LEAST_NARROWED = 4096
"""Fewer elements are left in float32: cutting them takes longer to start than to do."""

Ranges = Sequence[tuple[int, int]]
"""First elements of a block, and those after the last."""


class Narrowing:
    """The rounding of a run's values.

    Args:
        past: steps that ran before in the graph, in order.
        new:  steps of the run.

    Attributes:
        rounded: of each new step, the ranges of each of its blocks that are rounded; a step that
            rounds nothing is left out.
    """

    def __init__(self, past: Iterable[StepRun], new: Iterable[StepRun]) -> None:
        self.rounded: dict[StepRun, Sequence[Ranges]] = {}
        self._exact: dict[Block, Collection[int]] = {}  # positions of exact nodes
        self._whole: set[Block] = set()  # all of whose values are bfloat16 numbers
        for step in past:
            self._visit(step)
        self.rounded.clear()
        for step in new:
            self._visit(step)

    def _visit(self, step: StepRun) -> None:
        kind = step.node_type
        read = [block.base for source in step.sources for block in source.blocks]
        if issubclass(kind, ParameterNode) or isinstance(step, AliasStep):
            return
        if kind.exact:
            self._exact.update({block: range(len(block.nodes)) for block in step.blocks})
            return
        follows = step.is_structural or issubclass(kind, Elementwise)
        mixes = follows and not self._exact.keys().isdisjoint(read)
        exact = self._reading_exact(step) if mixes else frozenset()
        if step.is_structural:  # nothing is rounded: what is moved is already, or is to be float32
            if exact:
                self._exact[step.block] = exact
            elif self._whole.issuperset(read):
                self._whole.update(step.blocks)
            return
        ranges = [self._ranges(step.block, exact), *map(self._all_of, step.block.ports)]
        if any(ranges):
            self.rounded[step] = ranges

    def _reading_exact(self, step: StepRun) -> frozenset[int]:
        """The positions of a step's nodes that read an exact one."""
        number = {id(node): k for k, node in enumerate(step.nodes)}
        return frozenset(
            [
                number[id(node)]
                for position in range(len(step.sources))
                for node, x in step.readers(position)
                if x._position in self._exact.get(x._block.base, ())
            ]
        )

    def _ranges(self, block: Block, reading_exact: Collection[int]) -> Ranges:
        """The elements of a block that are rounded: all but those of exact nodes."""
        if not (reading_exact or block.width <= 1):
            return self._all_of(block)
        ranges: list[tuple[int, int]] = []
        exact: set[int] = set()
        start = 0
        for position, node in enumerate(block.nodes):
            end = start + node.rows * node.width
            if not node.ndim or position in reading_exact:
                exact.add(position)
            elif ranges and ranges[-1][1] == start:
                ranges[-1] = ranges[-1][0], end
            elif end > start:
                ranges.append((start, end))
            start = end
        if exact:
            self._exact[block] = exact
        else:
            self._whole.add(block)
        return ranges

    def _all_of(self, block: Block) -> Ranges:
        self._whole.add(block)
        return [(0, block.size)] if block.size else []

    def narrowed(
        self, maker: Mapping[Block, StepRun], backward: Collection[StepRun], kept: Collection[Block]
    ) -> dict[StepRun, Sequence[Left]]:
        """The outputs, and what steps leave beside them, that lie in 16 bits until backward.

        Args:
            maker:    the new step that makes each block.
            backward: steps whose backward runs after forward.
            kept:     blocks that outlive the run.
        """
        read = {block for step in backward for block in step.read_by_backward()}
        large = [block for block in read if block in maker and block.size >= LEAST_NARROWED]
        blocks = self._whole.intersection(large).difference(kept)
        late = frozenset(backward)
        left: dict[StepRun, Sequence[Left]] = {}
        for step in dict.fromkeys(maker.values()):
            outputs = [number for number, block in enumerate(step.blocks) if block in blocks]
            if narrow := [*outputs, *(_narrowed_saved(step) if step in late else ())]:
                left[step] = narrow
        return left


def _narrowed_saved(step: StepRun) -> list[str]:
    """The names of what a step leaves beside values that lies in 16 bits.

    Backward reads all or none in 16 bits of what it can read so.
    """
    if not step.node_type.saves or not (narrow := step.node_type.narrow_saved(step.batch)):
        return []
    saved = step.node_type.saved(step.batch)
    sizes = {name: saved[name][0] * saved[name][1] for name in narrow}
    together = step.node_type.read_narrow(step.batch)
    if sum([sizes[name] for name in together]) >= LEAST_NARROWED:
        sizes |= dict.fromkeys(together, LEAST_NARROWED)
    return [name for name in narrow if sizes[name] >= LEAST_NARROWED]
