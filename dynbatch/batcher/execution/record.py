"""`GraphStatistics` and `RunTimes`: the costs of a graph's runs, and when they ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels.runtime.compiling import seconds_compiling


@dataclass
class GraphStatistics:
    """The costs of one graph's runs.

    Attributes:
        nodes:            nodes run.
        batches:          batch steps run forward.
        lone_runs:        runs that one value was the reason for: `node.value`.
        launches:         kernels, copies included.
        copied_bytes:     packing, structural moves and gradient adds.
        activation_bytes: the sum of all values.
        peak_bytes:       arenas in use at once.
        host_seconds:     building the plan and everything between kernels. On a GPU no kernel is
                          waited for: all time counts as the host's.
        kernel_seconds:   the rest.
        compile_seconds:  beside both: compiling and loading, in the first runs of a process.
        uploads:          copies of index tables to a GPU, one a run.
    """

    nodes: int = 0
    batches: int = 0
    lone_runs: int = 0
    launches: int = 0
    copied_bytes: int = 0
    activation_bytes: int = 0
    peak_bytes: int = 0
    host_seconds: float = 0.0
    kernel_seconds: float = 0.0
    compile_seconds: float = 0.0
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


class RunTimes(NamedTuple):
    """The times when a run began, was planned, had its memory, and ended, by perf_counter."""

    begin: float
    planned: float
    placed: float
    end: float


def seconds_between(begin: float, end: float) -> float:
    """Seconds between two times, without those of compiling."""
    return end - begin - seconds_compiling(begin, end)
