"""A warning where a graph of many nodes ran almost one by one, with the likely cause."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter

from dynbatch.batcher.reasons import DEPENDS, apart
from dynbatch.batcher.report import Record
from dynbatch.batcher.statistics import Statistics
from dynbatch.errors import BatchingWarning
from dynbatch.recent import free_at_fork

MANY_NODES = 500
MEAN_BATCH = 1.5

INSIDE = __file__.rsplit("batcher", 1)[0]

_warned = False
_lock = free_at_fork(threading.Lock())


def is_unbatched(statistics: Statistics) -> bool:
    """Whether `warn` should be asked: 500 nodes or more in batches of fewer than 1.5 on average."""
    few = statistics.nodes < MEAN_BATCH * statistics.batches
    return few and statistics.nodes >= MANY_NODES and not _warned


def warn(record: Record) -> None:
    """Give the `BatchingWarning` at the user's line, but not where small batches were asked for.

    That is by the policy one_by_one, or by a `memory_limit` that only parts keep to.
    """
    global _warned
    if any([plan.policy == "one_by_one" or plan.part for plan in record.plans]):
        return
    with _lock:
        is_first, _warned = not _warned, True
    if not is_first:
        return
    warnings.warn(
        f"{record.statistics.nodes} nodes ran in {record.statistics.batches} batches, almost one "
        f"by one: {likely_cause(record)}. print(graph.explain()) shows what ran apart, and why; "
        "this warning comes once a process.",
        BatchingWarning,
        stacklevel=_frames_inside() + 1,
    )


def _frames_inside() -> int:
    """How many frames of dynbatch the caller and its callers are, before the first of the user."""
    frame, count = sys._getframe(1), 0
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, count = frame.f_back, count + 1
    return count


def likely_cause(record: Record) -> str:
    """Why batches are small, and what can be done about it."""
    nodes = record.statistics.nodes
    signatures = {step.signature for plan in record.plans for step in plan.steps}
    if len(signatures) * MEAN_BATCH > nodes:
        reasons = Counter([one.reason for one in apart(record.plans, record.known)])
        reasons.pop(DEPENDS, None)
        common = f", for instance {reasons.most_common(1)[0][0]}" if reasons else ""
        return f"they have {len(signatures)} different signatures{common}"
    if len(record.plans) * 10 > nodes:
        return (
            f"values were read {len(record.plans)} times in between, and each reading runs what "
            "there is; build all sentences of a mini-batch before reading"
        )
    if record.lower_bound * MEAN_BATCH > record.statistics.batches:
        return (
            "nearly every node reads the one before it; a graph of one sentence, or of one chain, "
            "has nothing to batch: put all sentences of a mini-batch into one graph, or use scan"
        )
    return f"the policy {record.plans[0].policy} found few nodes of one signature ready at once"
