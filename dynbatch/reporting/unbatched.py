"""Warns if a graph, or one node type in it, ran almost one by one, with the likely cause."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Sequence

from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.caller import users_frame
from dynbatch.errors import BatchingWarning
from dynbatch.nodes.operation import signature_type
from dynbatch.recent import free_at_fork
from dynbatch.reporting.advice import why_apart
from dynbatch.reporting.batch_rules import is_almost_one_by_one
from dynbatch.reporting.reasons import differ_in_widths
from dynbatch.reporting.rules import Observed
from dynbatch.reporting.run_record import RunRecord

# Signatures of one node type that differ in widths alone, and how many nodes they have on average.
MANY_WIDTHS = 16
MANY_BATCHES = MANY_WIDTHS  # a graph of fewer is not asked about
MEAN_OF_WIDTHS = 2

_warned = False
_lock = free_at_fork(threading.Lock())


def is_unbatched(statistics: GraphStatistics, plans: Sequence[Plan]) -> bool:
    """Whether `warn` should be called.

    True for 500 nodes or more in batches of fewer than 1.5 on average, and for a node type with 16
    widths or more and fewer than 2 nodes each.
    """
    if _warned:
        return False
    return is_almost_one_by_one(statistics) or apart_by_width(plans) is not None


def apart_by_width(plans: Sequence[Plan]) -> Counter[int] | None:
    """Nodes of each signature of a type that ran almost one by one since its widths differ."""
    if len(plans) == 1:
        counts = plans[0].nodes_by_type  # counted once for all mini-batches of this structure
    else:
        counts = {}
        for plan in plans:
            for node_type, nodes in plan.nodes_by_type.items():
                counts.setdefault(node_type, Counter()).update(nodes)
    for nodes in counts.values():
        if len(nodes) >= MANY_WIDTHS and nodes.total() < MEAN_OF_WIDTHS * len(nodes):
            if differ_in_widths(nodes):
                return nodes
    return None


def warn(record: RunRecord, observed: Observed) -> None:
    """Give the `BatchingWarning` at the user's line, unless the user chose small batches.

    The policy one_by_one chooses them, and so does a `memory_limit` that only parts keep to.
    """
    global _warned
    if any([plan.policy == "one_by_one" or plan.part for plan in record.plans]):
        return
    with _lock:
        is_first, _warned = not _warned, True
    if not is_first:
        return
    cause = why_apart(record, observed)
    of_one_type = apart_by_width(record.plans)
    if of_one_type is None:
        what, batches = f"{record.statistics.nodes} nodes", record.statistics.batches
    else:
        first, *_ = of_one_type
        what = f"{of_one_type.total()} nodes of type {signature_type(first).__name__}"
        batches = len(of_one_type)
    why = "" if cause is None else f": {cause.problem}; {cause.fix}"
    warnings.warn(
        f"{what} ran in {batches} batches, almost one by one{why}. "
        "print(graph.explain()) shows what ran apart, and why; this warning comes once a process.",
        BatchingWarning,
        stacklevel=users_frame()[1] + 1,
    )
