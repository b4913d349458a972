"""`GraphStatistics`: what a graph has cost so far."""

from __future__ import annotations

from dataclasses import dataclass


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
