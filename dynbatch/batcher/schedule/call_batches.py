"""Schedules the calls of a region in batches.

Under a policy of ours, calls of a cell that reads none of its readers are batched by the longest
chain of such calls below each: as many batches as that chain has calls, which is the fewest that
any policy could reach. So are cells that read each other in a circle, where each level is of one
cell, as in a tree of nodes and edges; others are scheduled by the policy, as nodes are. So are all
calls of a region where each call is a batch, or where the policy is the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.schedule.argument_arrays import Pending, edges_among
from dynbatch.batcher.schedule.plan import Structure
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.batcher.schedule.schedule import schedule_structure
from dynbatch.indexing import repeat
from dynbatch.kernels.levels import levels


@dataclass
class Ordered:
    """The batches of a region.

    order:   for each table, its pending calls in the order in which they run; in a batch those
        whose memory comes first (see `Pending.by_memory`).
    batches: (table, first, end) in order: ranges of its calls in that order.
    """

    order: list[Array]
    batches: list[tuple[int, int, int]]
    lower_bound: int


def call_batches(pending: Sequence[Pending], policy: str | Policy) -> Ordered:
    """The batches of connected tables.

    Args:
        policy: a name of `policies.POLICIES`, or a function.

    Raises:
        PlanError: a function's batches break a rule.
    """
    number = {calls.table: k for k, calls in enumerate(pending)}
    reads = [[number[table] for table in calls.reads_now] for calls in pending]
    ordered = Ordered([calls.rows for calls in pending], [], 0)
    if policy == "one_by_one" or not isinstance(policy, str):
        _by_policy(list(range(len(pending))), pending, policy, ordered)
        return ordered
    for part in circles(reads):
        if not _by_level(part, pending, ordered):
            _by_policy(part, pending, policy, ordered)
    return ordered


def circles(reads: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups of tables that read each other in a circle, each after the groups it reads."""
    reached: list[set[int]] = []
    for k in range(len(reads)):
        others: set[int] = set()
        stack = list(reads[k])
        while stack:
            other = stack.pop()
            if other not in others:
                others.add(other)
                stack.extend(reads[other])
        reached.append(others - {k})
    parts: list[list[int]] = []
    for k in sorted(range(len(reads)), key=lambda k: len(reached[k])):
        if not any([k in part for part in parts]):
            parts.append([k, *sorted([j for j in reached[k] if k in reached[j]])])
    return parts


def _by_level(part: Sequence[int], pending: Sequence[Pending], ordered: Ordered) -> bool:
    """Batch the calls of some tables by their levels, unless one is of several tables.

    What is ready is then of one table at any time, so that a policy of ours has no choice. The
    longest path meets every level, so there are no fewer batches.
    """
    tables = [pending[k] for k in part]
    sizes = [calls.rows.size for calls in tables]
    depth = tables[0].depths() if len(part) == 1 else levels(sum(sizes), *edges_among(tables))
    memories = [calls.by_memory for calls in tables]
    order = np.argsort(depth, kind="stable")
    if any(memories):
        ranks = [
            np.zeros(size, np.int64) if memory is None else memory[1]
            for memory, size in zip(memories, sizes, strict=True)
        ]
        order = np.lexsort((np.concatenate(ranks), depth))
    depth, owner = depth[order], repeat(np.arange(len(part)), sizes)[order]
    changes = np.diff(depth) > 0
    if (np.diff(owner) != 0)[~changes].any():
        return False
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    counts = np.diff([*starts, order.size]).tolist()
    ends = [0] * len(part)
    for k, size in zip(owner[starts].tolist(), counts, strict=True):
        ordered.batches.append((part[k], ends[k], ends[k] + size))
        ends[k] += size
    for k, first in enumerate(np.cumsum([0, *sizes[:-1]]).tolist()):
        ordered.order[part[k]] = order[owner == k] - first
    ordered.lower_bound += len(starts)
    return True


def _by_policy(
    part: Sequence[int], pending: Sequence[Pending], policy: str | Policy, ordered: Ordered
) -> None:
    """Schedule some tables' calls as nodes of a structure, in order of creation."""
    starts = np.cumsum([0, *[pending[k].rows.size for k in part]])
    calls = [(pending[k].table, row) for k in part for row in pending[k].rows.tolist()]
    # Policies see nodes in order of creation, so calls of all tables are merged by their index.
    by_creation = np.argsort([table.index_of(row) for table, row in calls])
    position = np.empty(len(calls), np.int64)
    position[by_creation] = np.arange(len(calls))
    inputs: list[list[int]] = [[] for _ in calls]
    readers, read = [position[ends].tolist() for ends in edges_among([pending[k] for k in part])]
    for reader, call in zip(readers, read, strict=True):
        inputs[reader].append(call)
    owner = repeat(np.arange(len(part)), np.diff(starts))[by_creation]
    structure = Structure(tuple(owner.tolist()), tuple(map(tuple, inputs)))

    def label(node: int) -> str:
        table, row = calls[by_creation[node]]
        name: str = table.call(row).label()
        return name

    plan = schedule_structure(structure, policy, label, as_read=False)
    ordered.lower_bound += plan.lower_bound
    taken: list[list[int]] = [[] for _ in part]
    row_in_table = (by_creation - starts[owner]).tolist()
    for step in plan.steps:
        rows = taken[step.signature]
        first = len(rows)
        chosen = [row_in_table[node] for node in step.nodes]
        # In the order of their memories, whose rows are then read in order, too.
        memory = pending[part[step.signature]].by_memory
        rows += chosen if memory is None else sorted(chosen, key=memory[1].__getitem__)
        ordered.batches.append((part[step.signature], first, len(rows)))
    for i, k in enumerate(part):
        ordered.order[k] = np.array(taken[i])
