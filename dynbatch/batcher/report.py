"""`explain()`: what ran together, how big, how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dynbatch.batcher.layout import Layout
from dynbatch.batcher.plan import Plan
from dynbatch.batcher.statistics import Statistics
from dynbatch.batcher.step import StepRun
from dynbatch.memory import Interval


class Row(NamedTuple):
    """One batch step in the table; `width` is 0 where the nodes' widths differ."""

    kind: str
    nodes: int
    rows: int
    width: int
    copied_bytes: int
    launches: int
    seconds: float
    seconds_backward: float


def row_of(step: StepRun) -> Row:
    """What the table says of a step."""
    return Row(
        step.kind.__name__ + (" +grad" if step.fused else ""),
        len(step.nodes),
        sum(step.block.lengths),
        step.block.width,
        step.copied_bytes,
        step.batch.launches,
        step.seconds,
        step.seconds_backward,
    )


def needs(layout: Layout, itemsize: int) -> str:
    """What a run asks most memory for, in bytes; not all of it at the same time."""
    parts: Counter[str] = Counter()
    for stage in layout.sequence:
        for step in stage.steps:
            kind = step.kind.__name__
            if stage.is_backward:
                found = [block.gradient_interval for block in step.blocks]
                parts[f"gradients of {kind}"] += _size(found)
                parts[f"backward scratch of {kind}"] += _size([step.workspace_backward])
                continue
            parts[f"values of {kind}"] += _size([block.interval for block in step.blocks])
            parts[f"what {kind} keeps for backward"] += _size(
                [i for i, _, _ in step.saved.values()]
            )
            parts[f"scratch of {kind}"] += _size([step.workspace])
    largest = [f"{what} {size * itemsize:,}" for what, size in parts.most_common(4) if size]
    return f"used by: {'; '.join(largest)} bytes"


def _size(intervals: Iterable[Interval | None]) -> int:
    return sum([interval.size for interval in intervals if interval is not None])


def report(statistics: Statistics, plans: Sequence[Plan], rows: Sequence[Row]) -> str:
    """The batches of all runs as a table, with the lower bound of all plans beside it."""
    bounds = sum([plan.lower_bound for plan in plans])
    lines = [
        f"{statistics.nodes} nodes in {statistics.batches} batches (lower bound {bounds}), "
        f"{statistics.launches} launches, {statistics.copied_bytes:,} bytes copied, "
        f"peak {statistics.peak_bytes:,} bytes",
        f"kernels {statistics.kernel_seconds * 1e3:.2f} ms, "
        f"host {statistics.host_seconds * 1e3:.2f} ms",
        f"{'step':>4}  {'kind':<22} {'nodes':>6} {'rows':>8} {'width':>6} {'copied':>10} "
        f"{'launches':>8} {'forward ms':>10} {'backward ms':>11}",
    ]
    for number, row in enumerate(rows):
        lines.append(
            f"{number:>4}  {row.kind:<22} {row.nodes:>6} {row.rows:>8} {row.width or 'mixed':>6} "
            f"{row.copied_bytes:>10} {row.launches:>8} {row.seconds * 1e3:>10.3f} "
            f"{row.seconds_backward * 1e3:>11.3f}"
        )
    return "\n".join(lines)
