"""`explain()`: what ran together, how big, how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynbatch.batcher.executor import Executor


def report(executor: Executor) -> str:
    """The batches of all runs as a table, with the lower bound of each plan beside it."""
    statistics = executor.statistics
    bounds = sum([plan.lower_bound for plan in executor.plans])
    lines = [
        f"{statistics.nodes} nodes in {statistics.batches} batches (lower bound {bounds}), "
        f"{statistics.launches} launches, {statistics.copied_bytes:,} bytes copied, "
        f"peak {statistics.peak_bytes:,} bytes",
        f"kernels {statistics.kernel_seconds * 1e3:.2f} ms, "
        f"host {statistics.host_seconds * 1e3:.2f} ms",
        f"{'step':>4}  {'kind':<22} {'nodes':>6} {'rows':>8} {'width':>6} {'copied':>10} "
        f"{'launches':>8} {'forward ms':>10} {'backward ms':>11}",
    ]
    for number, step in enumerate(executor.steps):
        fused = " +grad" if step.fused else ""
        lines.append(
            f"{number:>4}  {step.kind.__name__ + fused:<22} {len(step.nodes):>6} "
            f"{sum(step.block.lengths):>8} {step.block.width or 'mixed':>6} "
            f"{step.copied_bytes:>10} {step.batch.launches:>8} {step.seconds * 1e3:>10.3f} "
            f"{step.seconds_backward * 1e3:>11.3f}"
        )
    return "\n".join(lines)
