"""Advice, and the observations that its rules look at.

A gain is what a change brings at most, in seconds of the run; what a rule cannot measure has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dynbatch.reporting.last_graphs import GraphSummary
from dynbatch.reporting.run_record import RunRecord

MUCH_WORK = 10_000_000
"""Operations of a batch, from which on several threads share it to advantage whatever it is."""

FIXED = "\xa0"
"""A space at which no line ends."""


class Advice(NamedTuple):
    """A change, and what it would bring.

    Args:
        seconds: of the run that it saves at most; 0 where the run does not tell.
        problem: with the run's own figures.
        fix:     what to write.
        stands_out: whether counts alone show a mistake, however long anything took: then it stands
            on the first lines of `explain()`.
    """

    seconds: float
    problem: str
    fix: str
    stands_out: bool = False


def mistake(problem: str, fix: str) -> Advice:
    """Advice that stands out, though nobody knows what it would bring."""
    return Advice(0.0, problem, fix, stands_out=True)


class Observed(NamedTuple):
    """Observations that a run's record does not have.

    Args:
        block_notes: calls of blocks that are more than a node each, and why; see `explain`.
        saving:      what a `memory_limit` made it do, `MemoryUse.saving`.
        is_doubled:  `check` or `guard` looks at each batch.
        is_float64:  values have 8 bytes.
        is_closed:   nothing more will run.
        kept:        kept nodes that other nodes read, where half of all nodes or more are kept.
        converted_bytes: of inputs that were given in another dtype.
        graphs:      this graph, and the thread's graphs before it, the last first.
        reading:     the share of a training's time in which it waited for mini-batches.
    """

    block_notes: Mapping[tuple[str, str], int]
    saving: str
    is_doubled: bool
    is_float64: bool
    is_closed: bool = False
    kept: int = 0
    converted_bytes: int = 0
    graphs: Sequence[GraphSummary] = ()
    reading: float = 0.0


def total_seconds(record: RunRecord) -> float:
    return record.build_seconds + record.statistics.host_seconds + record.statistics.kernel_seconds


def in_ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}{FIXED}ms"


def a_batch(record: RunRecord) -> float:
    return record.statistics.host_seconds / max(1, record.statistics.batches)
