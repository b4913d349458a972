"""`GraphStatistics`: what a graph has cost so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbatch.batcher.steps.step import StepRun


@dataclass
class GraphStatistics:
    """What the runs of one graph cost.

    batches: batch steps run forward · launches: kernels, copies included · copied_bytes: packing,
    structural moves and gradient adds · activation_bytes: sum of all values · peak_bytes: arenas in
    use at once · host_seconds: building the plan and everything between kernels · kernel_seconds ·
    uploads: copies of index tables to a GPU, one a run. On a GPU no kernel is waited for: all time
    counts as host's.
    """

    nodes: int = 0
    batches: int = 0
    launches: int = 0
    copied_bytes: int = 0
    activation_bytes: int = 0
    peak_bytes: int = 0
    host_seconds: float = 0.0
    kernel_seconds: float = 0.0
    uploads: int = 0

    def count(
        self, new: Sequence[StepRun], changed: Sequence[StepRun], anew: bool, launches: bool
    ) -> None:
        """Count a run.

        Args:
            new:      its steps.
            changed:  with earlier ones that its backward went through.
            anew:     those are all steps there are, with what they cost before.
            launches: whether to count launches.
        """
        self.nodes += sum([step.num_nodes for step in new])
        self.batches += sum([step.num_batches for step in new])
        if anew:
            self.copied_bytes = 0
        if launches:
            before = 0 if anew else self.launches
            self.launches = before + sum([step.batch.launches for step in changed])
        self.copied_bytes += sum([step.copied_bytes for step in changed])
