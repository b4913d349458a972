"""In which batches the calls of a region run.

Calls of a cell that reads none of its readers are batched by the longest chain of such calls below
each: as many batches as that chain has calls, which is the fewest. Cells that read each other in a
circle are scheduled by the graph's policy, as nodes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch.batcher.schedule.argument_arrays import Pending
from dynbatch.batcher.schedule.plan import Plan, Structure
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.parameter import Array


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


def call_batches(pending: Sequence[Pending], policy: str) -> Ordered:
    """The batches of connected tables.

    Args:
        policy: a name of `policies.POLICIES`. "one_by_one" makes each call a batch.
    """
    place = {one.table: k for k, one in enumerate(pending)}
    reads = [[place[table] for table in one.reads_now] for one in pending]
    if policy == "one_by_one":
        parts = [list(range(len(pending)))]
    else:
        parts = circles(reads)
    ordered = Ordered([one.rows for one in pending], [], 0)
    for part in parts:
        if len(part) == 1 and policy != "one_by_one":
            _by_depth(part[0], pending[part[0]], ordered)
        else:
            _by_policy(part, pending, policy, ordered)
    return ordered


def circles(reads: Sequence[Sequence[int]]) -> list[list[int]]:
    """Tables that read each other in a circle together, each such part after what it reads."""
    reached: list[set[int]] = []
    for k in range(len(reads)):
        found: set[int] = set()
        stack = list(reads[k])
        while stack:
            other = stack.pop()
            if other not in found:
                found.add(other)
                stack.extend(reads[other])
        reached.append(found - {k})
    parts: list[list[int]] = []
    for k in sorted(range(len(reads)), key=lambda k: len(reached[k])):
        if not any([k in part for part in parts]):
            parts.append([k, *sorted([j for j in reached[k] if k in reached[j]])])
    return parts


def _by_depth(k: int, pending: Pending, ordered: Ordered) -> None:
    depth = _depths(pending)
    memory = pending.by_memory
    order = np.argsort(depth, kind="stable") if memory is None else np.lexsort((memory[1], depth))
    changes = np.flatnonzero(np.diff(depth[order])) + 1
    ends = [*changes.tolist(), order.size]
    ordered.order[k] = order
    ordered.batches += [(k, a, b) for a, b in zip([0, *ends], ends, strict=False)]
    ordered.lower_bound += len(ends)


def _depths(pending: Pending) -> Array:
    """For how many calls of this run and table each waits, one after the other.

    What was counted when the calls were made holds unless some have run by now.
    """
    if not pending.table.runs:
        counted: Array = pending.table.depth[pending.rows]
        return counted
    depth = [0] * pending.rows.size
    readers, read = pending.edges(pending)
    for reader, one in sorted(zip(readers.tolist(), read.tolist(), strict=True)):
        depth[reader] = max(depth[reader], depth[one] + 1)  # of `one`, all has been seen
    return np.array(depth)


def _by_policy(
    part: Sequence[int], pending: Sequence[Pending], policy: str, ordered: Ordered
) -> None:
    """Schedule some tables' calls as nodes of a structure, in order of creation."""
    starts = np.cumsum([0, *[pending[k].rows.size for k in part]])
    calls = [pending[k].table.calls for k in part]
    index = np.array([calls[i][row].index for i, k in enumerate(part) for row in pending[k].rows])
    by_creation = np.argsort(index)
    number = np.empty(index.size, np.int64)
    number[by_creation] = np.arange(index.size)
    inputs: list[list[int]] = [[] for _ in index]
    for i, k in enumerate(part):
        for j, other in enumerate(part):
            readers, read = pending[k].edges(pending[other])
            readers, read = number[starts[i] + readers], number[starts[j] + read]
            for a, b in zip(readers.tolist(), read.tolist(), strict=True):
                inputs[a].append(b)
    owner = np.repeat(np.arange(len(part)), np.diff(starts))[by_creation].tolist()
    structure = Structure(tuple(owner), tuple(map(tuple, inputs)))
    steps = tuple(POLICIES[policy](structure))
    ordered.lower_bound += Plan(structure, steps, policy).lower_bound
    taken: list[list[int]] = [[] for _ in part]
    local = (by_creation - starts[np.array(owner)]).tolist()
    for step in steps:
        mine = taken[step.signature]
        first = len(mine)
        chosen = [local[node] for node in step.nodes]
        memory = pending[part[step.signature]].by_memory
        mine += chosen if memory is None else sorted(chosen, key=memory[1].__getitem__)
        ordered.batches.append((part[step.signature], first, len(mine)))
    for i, k in enumerate(part):
        ordered.order[k] = np.array(taken[i])
