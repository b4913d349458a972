"""`explain()`: what ran together, how big, how long, and what ran apart."""

from __future__ import annotations

from collections.abc import Mapping

from dynbatch.batcher.execution.record import RunRecord
from dynbatch.reporting.backends import without_c
from dynbatch.reporting.reasons import apart, notes

SHOWN = 3
"""The most reasons for one batch in the table; the page has them all."""


def report(record: RunRecord, block_notes: Mapping[tuple[str, str], int]) -> str:
    """The batches of all runs as a table with reasons, below the lower bound.

    Args:
        block_notes: calls by the block's name and what is to be said of them.
    """
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
    beside = notes(apart(record))
    for number, row in enumerate(record.rows):
        reasons = beside.get(number, [])
        if len(reasons) > SHOWN:
            reasons = [*reasons[:SHOWN], f"{len(reasons) - SHOWN} more"]
        if row.inside:
            reasons = [row.batches_text, *reasons]
        if row.remarks:
            reasons = [*reasons, row.remarks]
        line = (
            f"{number:>4}  {row.kind:<{wide}} {row.nodes:>6} {row.rows:>8} "
            f"{row.width or 'mixed':>6} {row.copied_bytes:>10} {row.launches:>8} "
            f"{row.seconds * 1e3:>10.3f} {row.seconds_backward * 1e3:>11.3f}  {'; '.join(reasons)}"
        )
        lines.append(line.rstrip())
    if not record.is_cuda and (line := without_c()):
        lines.append(line)
    for (name, what), count in block_notes.items():
        lines.append(f"{name}: {count} call{'s' * (count > 1)} {what}")
    return "\n".join(lines)
