"""`explain()`: what ran together, how big, how long, and what ran apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dynbatch.batcher.plan import Plan
from dynbatch.batcher.reasons import Known, Names, apart, names_of, notes
from dynbatch.batcher.statistics import Statistics
from dynbatch.batcher.step import Span, StepRun
from dynbatch.cells.region_node import RegionNode

SHOWN = 3
"""Reasons beside one batch in the table; the page has them all."""


class Row(NamedTuple):
    """One batch step in the table; `width` is 0 where the nodes' widths differ.

    A region of calls has `batches` of its own: `inside` are cell and number of calls of each.
    """

    kind: str
    nodes: int
    rows: int
    width: int
    copied_bytes: int
    launches: int
    prepare_seconds: float
    spans: Sequence[Span]
    parameters: Names
    batches: int
    lower_bound: int
    inside: Sequence[tuple[str, int]]

    @property
    def batches_text(self) -> str:
        """Of calls: "3 batches (lower bound 3)"."""
        if not self.inside:
            return ""
        return f"{self.batches} batch{'es' * (self.batches > 1)} (lower bound {self.lower_bound})"

    @property
    def seconds(self) -> float:
        """Of forward."""
        return sum([end - begin for what, begin, end in self.spans if what == "forward"])

    @property
    def seconds_backward(self) -> float:
        """Of backward, and of adding up what it gave."""
        return sum([end - begin for what, begin, end in self.spans if what != "forward"])


class RunTimes(NamedTuple):
    """When a run began, had a plan, had its places in memory, and ended; by perf_counter."""

    begin: float
    planned: float
    placed: float
    end: float


class Record(NamedTuple):
    """All that reports are made of. It outlives the graph's nodes.

    `begin` is when the graph was made. Where `is_cuda`, times are those of the host, which makes
    the launches and does not wait for the GPU.
    """

    statistics: Statistics
    plans: Sequence[Plan]
    rows: Sequence[Row]
    runs: Sequence[RunTimes]
    begin: float
    is_cuda: bool

    @property
    def known(self) -> Known:
        """What the signatures of all batches stand for."""
        steps = [step for plan in self.plans for step in plan.steps]
        return Known(
            {uid: name for row in self.rows for uid, name in row.parameters.items()},
            {step.signature: r.parameters for step, r in zip(steps, self.rows, strict=True)},
        )

    @property
    def lower_bound(self) -> int:
        """The fewest batches that all runs together could have had."""
        of_calls = sum([row.lower_bound - 1 for row in self.rows])
        return sum([plan.lower_bound for plan in self.plans]) + of_calls

    @property
    def host_share(self) -> float:
        """Part of the runs' time in which no batch ran: planning, placing, finishing. 0 to 1."""
        spent = self.statistics.host_seconds + self.statistics.kernel_seconds
        return self.statistics.host_seconds / spent if spent else 0.0

    @property
    def mean_batch(self) -> float:
        """Nodes a batch."""
        return self.statistics.nodes / max(1, self.statistics.batches)

    @property
    def build_seconds(self) -> float:
        """From making the graph to its first run: the user's code, and the nodes it makes."""
        return self.runs[0].begin - self.begin if self.runs else 0.0


def row_of(step: StepRun) -> Row:
    """What the table says of a step."""
    first = step.nodes[0]
    rows, width = sum(step.block.lengths), step.block.width
    if isinstance(first, RegionNode):
        widths = {group.cell.width for group in first.region.groups}
        rows, width = first.region.count, widths.pop() if len(widths) == 1 else 0
    return Row(
        _kind_of(step),
        step.num_nodes,
        rows,
        width,
        step.copied_bytes,
        step.batch.launches,
        step.prepare_seconds,
        step.spans,
        names_of(first.all_parameters()),
        step.num_batches,
        step.lower_bound,
        first.batch_sizes() if isinstance(first, RegionNode) else (),
    )


def _kind_of(step: StepRun) -> str:
    first = step.nodes[0]
    if isinstance(first, RegionNode):
        return first.label()
    return step.kind.__name__ + (" +grad" if step.fused else "")


def report(record: Record) -> str:
    """The batches of all runs as a table, with the lower bound, and beside each what ran apart."""
    statistics = record.statistics
    wide = max([22, *[len(row.kind) for row in record.rows]])
    times = "host's times, no GPU is waited for" if record.is_cuda else "building not counted"
    lines = [
        f"{statistics.nodes} nodes in {statistics.batches} batches (lower bound "
        f"{record.lower_bound}), {statistics.launches} launches, "
        f"{statistics.copied_bytes:,} bytes copied, peak {statistics.peak_bytes:,} bytes",
        f"kernels {statistics.kernel_seconds * 1e3:.2f} ms, "
        f"host {statistics.host_seconds * 1e3:.2f} ms (share {record.host_share:.0%}; {times}), "
        f"mean batch {record.mean_batch:.1f} nodes",
        f"{'step':>4}  {'kind':<{wide}} {'nodes':>6} {'rows':>8} {'width':>6} {'copied':>10} "
        f"{'launches':>8} {'forward ms':>10} {'backward ms':>11}  apart from",
    ]
    beside = notes(apart(record.plans, record.known))
    for number, row in enumerate(record.rows):
        reasons = beside.get(number, [])
        if len(reasons) > SHOWN:
            reasons = [*reasons[:SHOWN], f"{len(reasons) - SHOWN} more"]
        if row.inside:
            reasons = [row.batches_text, *reasons]
        line = (
            f"{number:>4}  {row.kind:<{wide}} {row.nodes:>6} {row.rows:>8} "
            f"{row.width or 'mixed':>6} {row.copied_bytes:>10} {row.launches:>8} "
            f"{row.seconds * 1e3:>10.3f} {row.seconds_backward * 1e3:>11.3f}  {'; '.join(reasons)}"
        )
        lines.append(line.rstrip())
    return "\n".join(lines)
