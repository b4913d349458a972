"""`StageOrder`: refuses stages in a wrong order, in every run, while lifetimes are found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.errors import PlanError


class StageOrder:
    """The steps whose backward is over, and the rules of what comes before what.

    Each costs a look into a table, so that they hold in every run. Without them a wrong order would
    read memory that nobody has written, or lose a gradient, without a word.

    Args:
        maker: the step of the run that writes each block; blocks of earlier runs have none.

    Attributes:
        finished: steps whose backward runs, or has run: it sends on all the gradient that they
            have.
    """

    def __init__(self, maker: Mapping[Block, StepRun]) -> None:
        self._maker = maker
        self.finished: set[StepRun] = set()

    def require_written(self, block: Block) -> None:
        """Check that a block which this run has not written was written before it.

        Raises:
            PlanError: it was not.
        """
        maker = self._maker.get(block)
        if maker is not None:
            raise _fault(f"{maker.label}, is read before its forward")

    def require_unfinished(self, step: StepRun, blocks: Iterable[Block]) -> None:
        """Check that blocks to which a step sends a gradient will pass it on.

        Raises:
            PlanError: backward of one's maker is over.
        """
        for block in blocks:
            maker = self._maker.get(block)
            if maker is not None and maker in self.finished:
                raise _fault(f"{step.label}, sends a gradient to {maker.label}, after its backward")


def _fault(problem: str) -> PlanError:
    return PlanError(
        f"stages: {problem}.\n"
        "  rule: forward comes before its readers, and backward after theirs, in every part\n"
        "  fix:  none of yours: no gradient was touched; report it with graph.dump(path)"
    )
