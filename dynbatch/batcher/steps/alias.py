"""`AliasStep` and `ColumnsStep`: batch steps of nodes that share the values of their inputs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dynbatch.backend import CPU, Array, DType
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.steps.block import Block, ColumnsView
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.places import Cut, columns_of
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.blocks.program import BlockProgram
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.slice import Slice


class AliasStep(StepRun):
    """A step without launches or memory: readers of its nodes read their inputs.

    No gradient passes, since what they read is a `View`.
    """

    __slots__ = ()

    def __init__(self, nodes: Sequence[Operation]) -> None:
        super().__init__(nodes, nodes[0].graph.dtype, CPU)
        self.block.size = 0
        self.sources = []
        self._share(nodes)

    def bind(self, nodes: Sequence[Operation]) -> None:
        super().bind(nodes)
        self._share(nodes)

    def _share(self, nodes: Sequence[Operation]) -> None:
        if isinstance(nodes, Members):
            nodes.lie_in(None)  # each node lies where its input does
        for node in nodes:
            (x,) = node.inputs
            node._block, node._position, node._start = x._block.base.view(), x._position, x._start

    def forward(self, arena: Array) -> None:
        now = time.perf_counter()
        self.spans.append(("forward", now, now))


class ColumnsStep(AliasStep):
    """A step of slices of features, which are read where they lie in the whole rows.

    Their gradient is those columns of the rows' gradient.

    Args:
        cuts: of each operator, as `columns_of` has them.
    """

    __slots__ = ("_cuts",)

    def __init__(self, nodes: Members, cuts: Sequence[Cut]) -> None:
        self._cuts = cuts
        super().__init__(nodes)

    def _share(self, nodes: Sequence[Operation]) -> None:
        assert isinstance(nodes, Members)
        columns = {cut.block: ColumnsView(cut.block, self.block) for cut in self._cuts}
        nodes.divide([(columns[cut.block], cut.start) for cut in self._cuts])


def columns_among(program: BlockProgram, plan: Plan) -> set[int]:
    """The slices of a block that need no rows of their own.

    Each is read by steps of one operator, whose types take columns of wider rows.
    """
    alone = {step.nodes[0] for step in plan.steps if len(step.nodes) == 1}
    slices = {
        k
        for k, op in enumerate(program.operators)
        if isinstance(op.node, Slice) and k not in program.results and not op.is_shared
    }
    for k, op in enumerate(program.operators):
        strided = op.node.strided() if k in alone else ()
        slices -= {x for position, x in enumerate(op.inputs) if position not in strided}
    steps = [step.nodes for step in plan.steps if slices.issuperset(step.nodes)]
    return {k for nodes in steps for k in nodes}


def column_cuts(nodes: Members, dtype: DType) -> list[Cut] | None:
    """The columns that slices of features are, if they are all of the rows that they cut.

    None where one is not whole rows' columns in one block, and must be copied.
    """
    batch = Batch(nodes, dtype)
    if not Slice.moves_all_of(batch):
        return None
    cuts = [columns_of(r) for r in Slice.moves(batch)]
    whole = [cut for cut in cuts if cut is not None and isinstance(cut.block, Block)]
    return whole if len(whole) == len(cuts) else None
